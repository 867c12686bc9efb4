"""The pages of docs/flags: `python docs/flag_pages.py` writes them, and their pictures, from the code.

The page of a rewrite has the docstring of the pass, the program that docs/flags/programs.py has for it, both drawings,
and what `explain()` says. That of a flag of the run has what docs/flags/of_the_run.py gives for two values. Graphviz
(apt-get install graphviz) draws; without it pictures are left as they are.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import shutil
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

from pictures import svg

import minigraph as mg
from minigraph.compiler.strategy import PASSES, RUN_FLAGS, PassRow
from minigraph.ir.dot import to_dot

DOCS = Path(__file__).resolve().parent
FOLDER, PICTURES = DOCS / "flags", DOCS / "pictures" / "flags"
WIDTH = 100  # of lines of prose
IMPORTS = {  # name -> how a block gets it
    "np": "import numpy as np\n", "mg": "import minigraph as mg", "F": "from minigraph.nn import functional as F",
    "reduce_gradients": "from minigraph.program.reductions import reduce_gradients",
}  # fmt: skip
LAST = "Made by `python docs/flag_pages.py`. All flags: [rewrites.md](../rewrites.md)."


def programs(name: str = "programs") -> ModuleType:
    """A module of docs/flags."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Example:
    """The program of a flag before and after the pass, and what the pass says of it."""

    def __init__(self, row: PassRow, module: ModuleType) -> None:
        self.row, self.source = row, inspect.getsource(getattr(module, row.flag)).strip()
        self.main = mg.static.Program(row.flag)
        with mg.static.program_guard(self.main, mg.static.Program()), mg.base.unique_name.guard():
            fetches = getattr(module, row.flag)()
        self.fetches = [v.name for v in (fetches if isinstance(fetches, list | tuple) else [fetches])]
        self.flags = {**module.ALSO.get(row.flag, {}), row.flag: True}
        self.compiled = self.with_flags(**self.flags)

    def with_flags(self, **flags: Any) -> mg.static.CompiledProgram:
        made = mg.static.CompiledProgram(self.main, mg.static.BuildStrategy(**flags))
        made.program_for(self.fetches)
        return made

    def drawings(self) -> dict[str, str]:
        """{"before" or "after": DOT}; before is what the other flags make of it."""
        before = self.with_flags(**{**self.flags, self.row.flag: False}).after
        return {"before": to_dot(before), "after": to_dot(self.compiled.after, before)}

    def said(self) -> str:
        """The lines of explain() about the pass, without the time."""
        return re.sub(r" +[\d.]+ ms$", "", self.compiled.reports[self.row.flag].render(), flags=re.MULTILINE)


def page(example: Example) -> str:
    """The text of a page."""
    row = example.row
    strategy = f"BuildStrategy({', '.join(f'{name}={value}' for name, value in example.flags.items())})"
    in_all = "`BuildStrategy.all()` turns it on." if row.in_all else "`BuildStrategy.all()` does not turn it on."
    files = {when: f"../pictures/flags/{row.flag}_{when}.svg" for when in ("before", "after")}
    pictures = " | ".join(f"[![{when}]({file})]({file})" for when, file in files.items())
    parts = [
        f"# {row.flag}",
        prose(f"{what_it_does(row.flag)}. {in_all}"),
        docstring(row),
        *options(row),
        "## An example",
        code(example.source),
        prose(f"Its values are fetched. The program without and with `{strategy}`; new operators are yellow:"),
        f"| before | after |\n|---|---|\n| {pictures} |",
        "`print(compiled.explain())` says",
        f"```text\n{example.said()}\n```",
        *order(row),
        LAST,
    ]
    return "\n\n".join(parts) + "\n"


def page_of_the_run(flag: str, module: ModuleType) -> str:
    """The text of the page of a flag that Plans read."""
    default = getattr(mg.static.BuildStrategy(), flag)
    parts = [f"# {flag}", prose(f"{what_it_does(flag)}. The default is `{default!r}`."), *shown(flag, module), LAST]
    return "\n\n".join(parts) + "\n"


def shown(flag: str, module: ModuleType) -> list[str]:
    """A program, and what it prints with two values of a flag; or where to read on."""
    if flag in module.UNSEEN:
        return [prose(f"Only a GPU shows what it does. {module.UNSEEN[flag]}")]
    function = getattr(module, flag)
    parts = ["## An example", code(inspect.getsource(function).strip())]
    for value in module.VALUES[flag]:
        with mg.static.program_guard(mg.static.Program(flag), mg.static.Program()), mg.base.unique_name.guard():
            text = function(mg.static.BuildStrategy(**{flag: value}))
        parts += [f"`print({flag}(BuildStrategy({flag}={value!r})))` says", f"```text\n{text}\n```"]
    return parts


def code(source: str) -> str:
    """A block with the imports that a function needs."""
    imports = [line for name, line in IMPORTS.items() if re.search(rf"\b{name}[.(]", source)]
    return "\n".join(["```python", *imports, "\n", source, "```"])


def prose(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def what_it_does(flag: str) -> str:
    """The row of a flag in the docstring of BuildStrategy."""
    rows = mg.static.BuildStrategy.__doc__ or ""
    found = re.search(rf"^ *{flag} +(.*?)(?=\n *\n|\n {{0,4}}\S|\Z)", rows, re.DOTALL | re.MULTILINE)
    assert found is not None, flag
    text = " ".join(found[1].split())
    return text[:1].upper() + text[1:]


def docstring(row: PassRow) -> str:
    """That of the file of the pass, without the name it begins with; what is indented, as equations are, is code."""
    text = inspect.getdoc(sys.modules[row.apply.__module__]) or ""
    text = re.sub(r"^\w+: ", "", text)
    paragraphs = re.split(r"\n\s*\n", text)
    shown = [f"```text\n{textwrap.dedent(p)}\n```" if p.startswith("    ") else prose(p) for p in paragraphs]
    return "\n\n".join([shown[0][:1].upper() + shown[0][1:], *shown[1:]])


def options(row: PassRow) -> list[str]:
    """The fields of BuildStrategy that the pass takes."""
    own = [option for option in row.options if option not in {r.flag for r in PASSES}]
    return [prose(f"Options: {', '.join(f'`{option}`' for option in own)}.")] if own else []


def order(row: PassRow) -> list[str]:
    """What stands before it, and with what it cannot be on."""
    said_there = {other.flag: other.conflicts[row.flag] for other in PASSES if row.flag in other.conflicts}
    lines = [f"- After [{flag}]({flag}.md): {why}." for flag, why in row.after.items()]
    never = {**row.conflicts, **said_there}
    lines += [f"- Not together with [{flag}]({flag}.md): {why}." for flag, why in never.items()]
    filled = "\n".join(textwrap.fill(line, WIDTH, subsequent_indent="  ", break_on_hyphens=False) for line in lines)
    return ["## Order", filled] if lines else []


def main() -> int:
    module = programs()
    PICTURES.mkdir(parents=True, exist_ok=True)
    has_graphviz = shutil.which("dot") is not None
    if not has_graphviz:
        print("dot is not there: pictures are left as they are", file=sys.stderr)
    for row in PASSES:
        example = Example(row, module)
        (FOLDER / f"{row.flag}.md").write_text(page(example), encoding="utf-8")
        for when, text in example.drawings().items() if has_graphviz else ():
            (PICTURES / f"{row.flag}_{when}.svg").write_text(svg(text), encoding="utf-8")
    for flag in RUN_FLAGS:
        text = page_of_the_run(flag, programs("of_the_run"))
        (FOLDER / f"{flag}.md").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
