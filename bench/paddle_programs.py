"""Programs of Paddle's own documentation under Paddle 2.6.2 and under minigraph: how many give the same.

    PYTHONPATH=. PYTHON_WITH_PADDLE -m bench.paddle_programs [--show WORDS]

PYTHON_WITH_PADDLE has the extra `paddle`. The programs are the examples in docstrings of the package that is installed
there; none of their text is kept. `written` are those in static mode, `turned` those in dynamic mode that Paddle also
runs after enable_static(). Left out are those about what minigraph does not try to be (OUTSIDE), and those that Paddle
itself does not run here.

A program runs three times, each in a process of its own: twice under Paddle with other seeds, then under minigraph,
where one line of imports differs. Parameters start from Paddle's values. Each value that a run of an Executor gives is
compared, in its type and shape alone where the two runs of Paddle differ. Each variable that has a name at the end is
compared, too: its type and shape, and its value where nothing is fed.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import doctest
import importlib
import importlib.util
import io
import json
import multiprocessing
import os
import random
import re
import tempfile
import textwrap
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .harness import machine, now, write_report

SECONDS = 20  # for one run of a program
NEAR = {"float16": 5e-3, "float32": 2e-5, "float64": 2e-6}  # Paddle keeps attributes in float32
FOLDERS = (
    "distributed", "fleet", "incubate", "quantization", "sparse", "vision", "audio", "text", "jit", "distribution",
    "hapi", "geometric", "onnx", "inference", "dataset", "profiler", "cost_model", "callbacks",
)  # fmt: skip
OUTSIDE = re.compile(
    r"[Cc]onv|[Pp]ool|lod|LoD|sequence_|distributed|fleet|incubate|vision|[Ii]pu|[Xx]pu|sparse|complex|fft|signal|linalg\.eig"
    r"|jit\.|RNN|LSTM|GRU|rnn|lstm|gru|[Qq]uant_|CUDAPlace|cuda\.|\.cuda|nccl|multiprocess|num_workers|(CTC|ctc_)"
    r"|paddle\.(text|audio|distribution|Model|DataParallel|callbacks|hub|flops|summary|disable_static)"
    r"|\.backward\(\)|dygraph|polar|empty_like|set_grad_enabled|autograd\.|set_printoptions|flash_attn"
    r"|[Ff]old\(|[Ff]old\(|[Uu]psampl|interpolate|affine_grid|grid_sample|[Pp]ixel_?[SsUu]|[Cc]hannel_?[Ss]huffle|[Ll]ocal_?"
    r"[Rr]esponse|temporal_shift|class_center|gather_tree|Pad2D|Pad3D|zeropad2d"
)
Found = dict[str, Any]


def examples(package: Path) -> Iterator[tuple[str, str]]:
    """(place, text) of each example: `nn/layer/common.py Linear.forward 1`."""
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package)
        if inside.parts[0] in FOLDERS:
            continue
        for owner, text in docstrings(ast.parse(path.read_text(encoding="utf-8"))):
            for number, block in enumerate(blocks(text)):
                yield f"{inside} {owner} {number}", block


def docstrings(node: ast.AST, owner: str = "") -> Iterator[tuple[str, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
            name = f"{owner}.{child.name}".lstrip(".")
            if text := ast.get_docstring(child):
                yield name, text
            yield from docstrings(child, name)


def blocks(text: str) -> list[str]:
    """The code of each block of a docstring."""
    found = []
    for part in re.split(r"(?m)^.*code-block::.*$", text)[1:]:
        with contextlib.suppress(ValueError):
            found.append("".join(e.source for e in doctest.DocTestParser().get_examples(textwrap.dedent(part))))
    return [block for block in found if "paddle" in block]


def adapted(source: str, library: str, written: bool) -> str:
    """The text of an example for a library."""
    source = re.sub(r"random_seed = \d+", "random_seed", source)
    source = source if written else "import paddle\npaddle.enable_static()\n" + source
    if library == "minigraph":
        source = re.sub(r"(?m)^(\s*)import paddle$", r"\1import minigraph as paddle", source)
        source = re.sub(r"(?m)^(\s*)import paddle( as|\.[\w.]+ as)", r"\1import minigraph\2", source)
        source = re.sub(r"(?m)^(\s*)import paddle(\.[\w.]+)$", r"\1import minigraph\2, minigraph as paddle", source)
        source = re.sub(r"(?m)^(\s*)from paddle\b", r"\1from minigraph", source)
    return source


class Watch:
    """Sees the runs of all Executors: keeps what they give, and the parameters after programs that only start."""

    def __init__(self, paddle: Any, seed: int, states: list[dict[str, np.ndarray]]) -> None:
        self.paddle, self.given, self.runs = paddle, states, []
        self.states: list[dict[str, np.ndarray]] = []
        self.fetched: dict[str, str] = {}  # variable: the type of its value
        self.whole = paddle.static.Executor.run
        paddle.static.Executor.run = lambda exe, *args, **kwargs: self.run(exe, *args, **kwargs)
        paddle.seed(seed)
        paddle.seed = lambda number: None  # the seed of the trial stays
        random.seed(0)
        np.random.seed(0)

    def run(self, exe: Any, program: Any = None, feed: Any = None, fetch_list: Any = None, **options: Any) -> Any:
        found = self.whole(exe, program, feed=feed, fetch_list=fetch_list, **options)
        if fetch_list:
            self.runs.append(plain(found))
            for target, value in zip(fetch_list if isinstance(fetch_list, (list, tuple)) else (), found, strict=False):
                self.fetched[getattr(target, "name", str(target))] = str(np.asarray(value).dtype)
        elif not feed:
            self.start(program, options.get("scope") or self.paddle.static.global_scope())
        return found

    def start(self, program: Any, scope: Any) -> None:
        """Keep the values of parameters, or set those that Paddle had."""
        place = len(self.states)
        names = [v.name for v in program.list_vars() if v.persistable] if hasattr(program, "list_vars") else []
        there = {}
        for name in names:
            with contextlib.suppress(ValueError):  # Paddle's feed and fetch are variables that hold no tensor
                if (var := scope.find_var(name)) is not None:
                    there[name] = var.get_tensor()
        with contextlib.suppress(Exception):
            for name, value in (self.given[place] if place < len(self.given) else {}).items():
                if name in there and tuple(there[name].shape()) == value.shape:
                    there[name].set(value, self.paddle.CPUPlace())
        self.states.append({name: np.array(tensor) for name, tensor in there.items() if tensor._is_initialized()}
                           if self.paddle.__name__ == "paddle" else {})  # fmt: skip


def plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    array = np.array(value)
    return array if array.dtype != object else str(value)


def variables(paddle: Any, names: dict[str, Any]) -> dict[str, Any]:
    """Variables by the name that the script gave them."""
    made = {n: v for n, v in names.items() if isinstance(v, paddle.static.Variable) and not n.startswith("_")}
    lists = {f"{n}[{i}]": v for n, vs in names.items() if isinstance(vs, (list, tuple)) and not n.startswith("_")
             for i, v in enumerate(vs) if isinstance(v, paddle.static.Variable)}  # fmt: skip
    return made | lists


def shown(variable: Any, fetched: str | None = None) -> str:
    """`float32 [2, 3]` of a variable; a fetched value knows its type better than what Paddle declares."""
    dtype = fetched or str(variable.dtype).rsplit(".", 1)[-1].lower()
    known = {"fp32": "float32", "fp64": "float64", "fp16": "float16", "bf16": "bfloat16"}
    return f"{known.get(dtype, dtype)} {[-1 if n is None else n for n in variable.shape]}"


def trial(library: str, source: str, seed: int, states: list[Any]) -> Found:
    """Run a text; what came of it."""
    paddle = importlib.import_module(library)
    paddle.enable_static()
    watch = Watch(paddle, seed, states)
    names: dict[str, Any] = {"__name__": "__main__"}
    try:
        exec(compile(source, "<example>", "exec"), names)
        made = variables(paddle, names)
        values: dict[str, Any] = {}
        if not watch.runs and made and library_block(paddle, made):
            runs = paddle.static.Executor(paddle.CPUPlace())
            runs.run(paddle.static.default_startup_program())
            fetched = runs.run(paddle.static.default_main_program(), fetch_list=list(made.values()))
            values = dict(zip(made, plain(fetched), strict=True))
            watch.runs.clear()
    except BaseException as problem:
        text = str(problem).strip()
        line = text.splitlines()[-1 if library == "paddle" else 0] if text else ""
        return {"error": f"{type(problem).__name__}: {line}"}
    types = {name: shown(v, watch.fetched.get(v.name)) for name, v in made.items()}
    return {"runs": watch.runs, "values": values, "states": watch.states, "made": types}


def library_block(paddle: Any, made: dict[str, Any]) -> bool:
    """Whether all variables are values of the default program that needs no feed."""
    block = paddle.static.default_main_program().global_block()
    fed = any(op.type == "feed" for op in block.ops) or any(getattr(v, "is_data", False) for v in block.vars.values())
    return not fed and all(block.has_var(v.name) for v in made.values())


def in_process(*question: Any) -> Found:
    """A trial in a forked process and an empty folder."""
    here, there = multiprocessing.Pipe(duplex=False)

    def child() -> None:
        with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere:
            os.chdir(folder)
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
            with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = trial(*question)
            try:
                there.send(found)
            except Exception as problem:
                there.send({"error": f"harness: {problem}"})

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    there.close()
    try:
        return here.recv() if here.poll(SECONDS) else {"error": "TimeoutError: "}
    except EOFError:
        return {"error": "it ends the process"}
    finally:
        process.kill()
        process.join()


def same(a: Any, b: Any, near: bool = True) -> bool:
    """Whether two values agree; `near=False` compares types and shapes alone."""
    if isinstance(a, list) or isinstance(b, list):
        both = isinstance(a, list) and isinstance(b, list) and len(a) == len(b)
        return both and all(same(x, y, near) for x, y in zip(a, b, strict=True))
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return type(a) is type(b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    size = NEAR.get(a.dtype.name, 0.0)
    return not near or np.allclose(a, b, rtol=size, atol=size, equal_nan=a.dtype.kind == "f")


def differences(own: Found, first: Found, second: Found) -> str:
    """Where minigraph gives something else; empty where it does not."""
    if "error" in own:
        return own["error"]
    if len(own["runs"]) != len(first["runs"]):
        return f"differs: {len(own['runs'])} runs for {len(first['runs'])}"
    for i, (a, b, c) in enumerate(zip(own["runs"], first["runs"], second["runs"], strict=True)):
        if not same(a, b, same(b, c)):
            return f"differs: run {i}: {brief(a)} for {brief(b)}"
    for name, value in first["values"].items():
        if name in own["values"] and not same(own["values"][name], value, same(value, second["values"][name])):
            return f"differs: {name}: {brief(own['values'][name])} for {brief(value)}"
    for name, text in first["made"].items():
        if name not in first["values"] and not fits(own["made"].get(name), text):
            return f"differs: {name} is {own['made'].get(name)} for {text}"
    return ""


def fits(own: str | None, text: str) -> bool:
    """Whether `float32 [2, 3]` is what Paddle says, or more where that says -1."""
    if own is None or own.split()[0] != text.split()[0]:
        return False
    sizes, known = (json.loads(t.split(maxsplit=1)[1]) for t in (own, text))
    return len(sizes) == len(known) and all(b in (-1, a) for a, b in zip(sizes, known, strict=True))


def cause(difference: str) -> str:
    """The kind of a failure: why a name is not here, or what happens instead."""
    if " is not here: " in difference:
        return difference.split(" is not here: ")[1]
    if difference.startswith("differs"):
        return "another result"
    kind = difference.split(":")[0]
    unknown = kind in ("AttributeError", "UnknownName", "ModuleNotFoundError")
    return "an inner name, which Paddle does not list" if unknown else f"refused: {kind}"


def brief(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(brief, value))}]"[:160]
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {list(value.shape)} {value.ravel()[:4].tolist()}"
    return str(value)


def outcome(text: str) -> tuple[str, str] | None:
    """(kind, "" or the difference) of an example; None where Paddle does not run it."""
    written = "enable_static" in text
    first = in_process("paddle", adapted(text, "paddle", written), 1, [])
    if "error" in first or not (first["runs"] or first["values"] or first["made"]):
        return None
    second = in_process("paddle", adapted(text, "paddle", written), 2, first["states"])
    if "error" in second or len(second["runs"]) != len(first["runs"]):
        return None
    own = in_process("minigraph", adapted(text, "minigraph", written), 1, first["states"])
    return "written" if written else "turned", differences(own, first, second)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", default="", help="only examples whose place has these words; shows their text")
    parser.add_argument("--kind", default="", help="written or turned")
    options = parser.parse_args()
    paddle, own = importlib.import_module("paddle"), importlib.import_module("minigraph")
    package = Path(paddle.__file__).parent
    counted, failures, left = Counter[str](), [], Counter[str]()
    for place, text in examples(package):
        if options.show not in place or (options.kind and (options.kind == "written") != ("enable_static" in text)):
            continue
        if OUTSIDE.search(text):
            left["outside"] += 1
            continue
        found = outcome(text)
        if found is None:
            left["not run by Paddle"] += 1
            continue
        kind, difference = found
        counted[kind] += 1
        counted[f"{kind}, same"] += not difference
        if options.show:
            print(f"--- {place}: {difference or 'same'}\n{text}")
        if difference:
            failures.append({"kind": kind, "place": place, "difference": difference[:300]})
            print(f"{kind} {place}: {difference[:200]}", flush=True)
    print({**counted, **left})
    if options.show or options.kind:
        return
    report = {
        "bench": "paddle_programs", "command": "python -m bench.paddle_programs",
        "date": now(), "machine": machine(),
        "versions": {"paddle": paddle.__version__, "minigraph": own.__version__, "numpy": np.__version__},
        "counts": dict(counted), "left out": dict(left),
        "causes": dict(Counter(cause(f["difference"]) for f in failures).most_common()), "failures": failures,
    }  # fmt: skip
    write_report(report)


if __name__ == "__main__":
    main()
