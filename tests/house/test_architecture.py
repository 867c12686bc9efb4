"""The house rules that a reader should be able to rely on, read from the source."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "minigraph"

# Who may import whom: folders, from bottom to top, so there is no cycle. A folder may always import itself and what
# lies in it. A row of a folder inside another one holds for it instead of the outer row.
MAY_IMPORT = {
    "errors": "",
    "types": "errors",
    "paddle_names": "errors",  # of Paddle that are not here
    "opdef": "errors types",
    # kernels know arrays only, operators know kernels
    "kernels": "errors types opdef",
    "kernels.cuda.record": "errors types kernels.cores kernels.chunks",
    "kernels.cuda.device": "errors types kernels.peaks kernels.groups kernels.cuda.record",
    "kernels.cuda.collective": "errors types kernels.groups kernels.one_piece kernels.pieces kernels.cuda.record"
    " kernels.cuda.elementwise",
    "kernels.cuda.elementwise": "errors types kernels.cuda.record",
    "kernels.cuda.tensor_cores": "errors types kernels.cuda.record",
    "kernels.cuda.linalg": "errors types kernels.linalg kernels.cuda.record",
    "kernels.cuda.movement": "errors types kernels.cuda.record kernels.cuda.elementwise",
    "kernels.cuda.optimizer": "errors types kernels.updates kernels.trace kernels.cuda.record kernels.cuda.elementwise",
    "kernels.cuda.matmul": "errors types opdef kernels.cuda.record kernels.cuda.elementwise kernels.cuda.tensor_cores",
    "kernels.cuda.rows": "errors types kernels.chunks kernels.cuda.record kernels.cuda.elementwise kernels.cuda.matmul",
    "kernels.cuda.fused": "errors types opdef kernels.cuda.record kernels.cuda.elementwise kernels.cuda.matmul"
        " kernels.cuda.rows",
    "kernels.cuda.attention": "errors types kernels.cpu kernels.cuda.record kernels.cuda.elementwise"
        " kernels.cuda.movement kernels.cuda.tensor_cores",
    "ops": "errors types opdef kernels",
    "program": "errors types opdef",
    "ops.deferred": "errors types opdef program",  # whose blocks functions build in a run
    # passes know the graph, never a kernel or a run
    "ir": "errors types opdef program",
    "passes": "errors types opdef program ir kernels.updates kernels.trace kernels.chunks",
    # running knows programs and kernels, never a graph or a pass
    "cuda": "errors types kernels program.context",
    "runtime": "errors types opdef kernels program cuda",
    "compiler": "errors types opdef kernels.groups program ir passes cuda runtime paddle_names",
    "onnx": "errors types opdef program runtime compiler",
    # the faces that a Paddle script expects: nothing below imports them
    "regularizer": "errors program",
    "tensor": "errors types program",
    "linalg": "tensor",
    "nn": "errors types program tensor",
    "ops.calls": "program tensor nn",
    "optimizer": "errors types opdef program regularizer tensor nn",
    "static": "errors types opdef program ir cuda runtime compiler tensor nn optimizer",
    "incubate": "errors types program tensor optimizer compiler static",
    "metric": "errors types program tensor static",
    "io": "errors types kernels.groups kernels.workers program runtime",
    "profiler": "errors types kernels.peaks program runtime",
    "distributed": "errors kernels.groups program runtime",
    "reader": "errors io",
    "device": "errors types cuda runtime",
    "base": "errors types cuda device io reader program runtime nn static",
    "utils": "errors paddle_names program tensor static",
    "command": "errors types kernels.cores kernels.cuda.record program ir cuda runtime compiler nn optimizer"
        " static profiler onnx",
    "__main__": "command",
    "": "errors paddle_names types opdef kernels ops program cuda runtime regularizer tensor linalg nn"
        " optimizer onnx static device distributed io metric profiler reader base utils incubate",
}

# Foreign packages and the only places that import them. numpy and the standard library are everywhere.
FOREIGN = {
    "networkx": "ir/adjacency.py",
    "ml_dtypes": "types.py",
    "numba": "kernels/cpu/compiled/",
    "llvmlite": "kernels/cpu/compiled/",  # numba's compiler
    "threadpoolctl": "kernels/cpu/product.py",
    "cupy": "kernels/",
    "nvmath": "kernels/",
    "onnx": "onnx/protobuf.py",
    "mpi4py": "runtime/parallel/mpi.py",
    "cuda": "kernels/cuda/record/bindings.py",  # NVIDIA's cuda.bindings
}
# inside functions: networkx is for who asks for `graph.nx`, a CPU has no GPU packages, numba and onnx are optional
LATE_IMPORTS = (
    "networkx", "onnx", "cupy", "nvmath", "mpi4py", "cuda", "multiprocessing", "socket",
    "minigraph.kernels.cuda.device.runtime",
    "minigraph.kernels.cpu.compiled",
)  # fmt: skip

LONGEST_FILE, LONGEST_CLASS, LONGEST_FUNCTION = 400, 200, 50
MOST_FILES = 20  # of code in one folder
LOOSE = {"__init__.py", "__main__.py", "cuda.py", "regularizer.py", "types.py"}  # in no room
MOST_FOREIGN_MODULES = 80  # that `import minigraph` loads besides its own and numpy; with networkx more than 300
MOST_OWN_MODULES = 520  # that `import minigraph` loads; it took 0.3 s of a CPU beside numpy's with 508
LOADED_LATER = tuple(f"minigraph.{room}" for room in (
    "command", "kernels.cuda.attention", "kernels.cuda.device", "kernels.cuda.linalg", "kernels.cuda.movement",
    "kernels.cuda.rows", "kernels.cuda.tensor_cores",
))  # fmt: skip
FORBIDDEN_MODULES = frozenset({"pickle", "marshal", "shelve", "subprocess", "ctypes", "socket", "multiprocessing"})
CONNECTS = {"runtime/parallel/meeting.py", "runtime/parallel/connections.py"}  # bytes only
ASKS_THE_SYSTEM = {"kernels/cores.py"}  # one function of the C library without arguments
STARTS_PROCESSES = {"command/launch.py"}  # a launcher: mpirun, a list of arguments, no shell
MEETS = {"runtime/parallel/meeting.py"}  # says how a connection sends
MAY_USE = {
    "subprocess": STARTS_PROCESSES, "multiprocessing": CONNECTS, "socket": MEETS, "ctypes": ASKS_THE_SYSTEM
}  # fmt: skip
FORBIDDEN_CALLS = frozenset({"eval", "exec", "compile", "print", "breakpoint", "input", "__import__"})
FORBIDDEN_ATTRIBUTES = {"os": {"environ", "getenv", "putenv", "system", "popen"}}
# Flags of Paddle, how many threads a process may use, which rank it is: words and numbers, read once.
READS_ENVIRONMENT = {"runtime/flags.py", "kernels/cores.py", "distributed/environment.py"}
# Rooms and files of Paddle that scripts import by name: `from paddle.utils import unique_name`.
PADDLES_NAMES = {"utils/__init__.py"}
FORBIDDEN_NAMES = frozenset({"utils", "util", "helpers", "helper", "common", "core", "misc", "tools"})

FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__") for path in FILES}
SOURCES = [*FILES, *sorted(PACKAGE.rglob("*.cu*"))]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(tree(path)))


def short(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def module(path: Path) -> str:
    """`ir.graph` for minigraph/ir/graph.py, "" for minigraph/__init__.py."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports(path: Path) -> list[tuple[str, ast.stmt]]:
    """Absolute names of all modules that a file imports, with their statements."""
    return list(_imports(path))


def _imports(path: Path) -> Iterator[tuple[str, ast.stmt]]:
    package = ["minigraph", *module(path).split(".")] if module(path) else ["minigraph"]
    if path.name != "__init__.py":
        package = package[:-1]
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                yield (inner if inner in MODULES else source), node


def row(name: str, table: dict[str, str]) -> str | None:
    """The row of a table that holds for a module: its own or that of the package around it."""
    parts = name.split(".")
    return next((r for n in range(len(parts), 0, -1) if (r := ".".join(parts[:n])) in table), None)


def within(path: Path, kind: type | tuple[type, ...]) -> set[ast.AST]:
    """All nodes inside nodes of a kind."""
    return {inner for node in nodes(path) if isinstance(node, kind) for inner in ast.walk(node)}


def layering_problems(path: Path) -> list[str]:
    own = row(module(path), MAY_IMPORT)
    if own is None:
        return [f"{short(path)} has no row in MAY_IMPORT: say who it may import"]
    found = []
    for name, node in imports(path):
        if name.split(".")[0] != "minigraph":
            continue
        target = name.removeprefix("minigraph").removeprefix(".")
        below = MAY_IMPORT[own]
        allowed = dict.fromkeys([*below.split(), *([own] if own else [])], "")
        if row(target, allowed) is None:
            target = target or "minigraph itself"
            found.append(f"{short(path)}:{node.lineno} imports {target}, {own} may import only {below}")
    return found


def test_imports_follow_the_layers():
    assert [problem for path in FILES for problem in layering_problems(path)] == []


def test_an_import_that_the_table_does_not_allow_is_found(monkeypatch):
    optimizer, graph = PACKAGE / "optimizer" / "settings.py", PACKAGE / "ir" / "graph.py"
    monkeypatch.setitem(MAY_IMPORT, "optimizer", MAY_IMPORT["optimizer"].replace(" regularizer", ""))
    monkeypatch.setitem(MAY_IMPORT, "ir", "errors types opdef")
    assert "imports regularizer, optimizer may import only" in layering_problems(optimizer)[0]
    assert "imports program, ir may import only errors types opdef" in layering_problems(graph)[0]
    without = {name: below for name, below in MAY_IMPORT.items() if name != "ir"}
    monkeypatch.setattr(sys.modules[__name__], "MAY_IMPORT", without)
    assert layering_problems(graph) == ["ir/graph.py has no row in MAY_IMPORT: say who it may import"]


def test_the_table_is_the_house():
    known = {module(path).split(".")[0] for path in FILES}
    assert {name.split(".")[0] for name in MAY_IMPORT} == known


def test_the_table_reads_from_bottom_to_top():
    """So it has no cycle."""
    seen: dict[str, str] = {}
    for name, below in MAY_IMPORT.items():
        assert all(row(one, seen) is not None for one in below.split()), name
        seen[name] = below


def foreign_problems(path: Path) -> Iterator[str]:
    for name, node in imports(path):
        top, line = name.split(".")[0], f"{short(path)}:{node.lineno}"
        if top in ("minigraph", "numpy") or top in sys.stdlib_module_names:
            if top in FORBIDDEN_MODULES and short(path) not in MAY_USE.get(top, ()):
                yield f"{line} imports {top}"
        elif top not in FOREIGN:
            yield f"{line} imports {top}, which is no dependency"
        elif not short(path).startswith(FOREIGN[top]):
            yield f"{line}: {top} belongs to {FOREIGN[top]}"


def test_foreign_packages_stay_in_their_place():
    assert [problem for path in FILES for problem in foreign_problems(path)] == []


def test_who_connects_processes_moves_bytes():
    """Connections also send objects, which the other end would unpickle."""
    for name in CONNECTS:
        used = {node.attr for node in nodes(PACKAGE / name) if isinstance(node, ast.Attribute)}
        assert used.isdisjoint({"send", "recv", "Pipe"}) and "send_bytes" in used


def test_no_imports_inside_functions():
    late = []
    for path in FILES:
        inside = within(path, (ast.FunctionDef, ast.AsyncFunctionDef))
        late += [
            f"{short(path)}:{node.lineno} imports {name} inside a function"
            for name, node in imports(path) if node in inside and not name.startswith(LATE_IMPORTS)
        ]  # fmt: skip
    assert late == []


def forbidden(code: Iterable[ast.AST]) -> Iterator[str]:
    for node in code:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_CALLS:
            yield f"line {node.lineno}: {node.func.id}()"
        of = node.value.id if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) else ""
        if isinstance(node, ast.Attribute) and node.attr in FORBIDDEN_ATTRIBUTES.get(of, ()):
            yield f"line {node.lineno}: {of}.{node.attr}"
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if alias.name in FORBIDDEN_ATTRIBUTES.get(node.module or "", ()):
                    yield f"line {node.lineno}: {node.module}.{alias.name}"


def test_no_print_no_environment_no_evaluation():
    found = []
    for path in FILES:
        allowed = "os.environ" if short(path) in READS_ENVIRONMENT else None
        found += [f"{short(path)} {line}" for line in forbidden(nodes(path)) if line.partition(": ")[2] != allowed]
    assert found == []


@pytest.mark.parametrize(
    "line",
    ["print(1)", "import os\nos.environ['A']", "from os import environ", "eval('1')", "exec('1')", "os.system('ls')"],
)
def test_the_check_for_forbidden_things_can_fail(line):
    assert len(list(forbidden(ast.walk(ast.parse(line))))) == 1


def test_files_are_short_and_well_named():
    lengths = {short(path): len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_FILE} == {}
    named = {short(path): {*path.relative_to(PACKAGE).parts[:-1], path.stem} for path in SOURCES}
    assert {name for name, words in named.items() if FORBIDDEN_NAMES & words} == PADDLES_NAMES


def too_long(code: Iterable[ast.AST]) -> Iterator[str]:
    for node in code:
        most = LONGEST_CLASS if isinstance(node, ast.ClassDef) else LONGEST_FUNCTION
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = (node.end_lineno or 0) - node.lineno + 1
            if lines > most:
                yield f"line {node.lineno}: {node.name} has {lines} lines"


def test_classes_functions_and_folders_are_short():
    assert [f"{short(path)} {line}" for path in FILES for line in too_long(nodes(path))] == []
    folders = Counter(path.parent for path in SOURCES)
    assert {short(folder): files for folder, files in folders.items() if files > MOST_FILES} == {}
    assert {path.name for path in FILES if path.parent == PACKAGE} == LOOSE


def test_a_class_name_has_one_meaning():
    """In the package and the benches."""
    files = [*FILES, *sorted((PACKAGE.parent / "bench").glob("*.py"))]
    names = Counter(node.name for path in files for node in nodes(path) if isinstance(node, ast.ClassDef))
    assert {name for name, times in names.items() if times > 1} == set()


def test_the_check_for_lengths_can_fail():
    body = "\n".join(["    x = 1"] * LONGEST_FUNCTION)
    assert list(too_long(ast.walk(ast.parse(f"def f():\n{body}")))) == ["line 1: f has 51 lines"]
    assert not list(too_long(ast.walk(ast.parse(f"class F:\n{body}"))))


def test_every_file_of_the_package_is_installed():
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = ["**/*.py", *project["tool"]["setuptools"]["package-data"]["minigraph"]]
    installed = {path for pattern in patterns for path in PACKAGE.glob(pattern)}
    files = {path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert files - installed == set()
    packages = {path.parent for path in FILES} | {PACKAGE}
    assert all((folder / "__init__.py").exists() for folder in packages)


def run_python(code: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240, cwd=PACKAGE.parent
    )
    return result.stdout.strip()


def test_import_works_where_cupy_is_broken():
    code = "import sys; sys.modules.update(cupy=None, nvmath=None); import minigraph as mg; print(mg.cuda.why_not())"
    assert run_python(code) != "None"


def test_import_loads_few_modules():
    """Of other packages only these: no GPU's and no heavy one; networkx comes with `graph.nx`.
    bench/long_life.py has the clock."""
    loaded = run_python("import numpy, sys; old = set(sys.modules); import minigraph; print(*set(sys.modules) - old)")
    tops = [name.split(".")[0] for name in loaded.split()]
    assert "minigraph" in tops
    others = set(tops) - set(sys.stdlib_module_names) - {"minigraph"}
    assert {name.strip("_") for name in others} <= {"ml_dtypes", "threadpoolctl", "numpy"}
    assert len(tops) - tops.count("minigraph") < MOST_FOREIGN_MODULES
    assert tops.count("minigraph") <= MOST_OWN_MODULES
    assert [name for name in loaded.split() if name.startswith(LOADED_LATER)] == []


CLOCKS = re.compile(
    r"\b(perf_counter|process_time|thread_time|monotonic|timeit|clock_gettime)(_ns)?\b|\btime\.time(_ns)?\b"
    r"|from time import .*\btime(_ns)?\b|\bos\.times\(|\bdatetime\.now\(|\.utcnow\("
)
# Files of tests that name a clock: nothing that passes or fails there depends on how fast the machine is.
NAMES_A_CLOCK = {
    "test_architecture.py": "this table",
    "test_optimizer_kernels.py": "a clock that the tests set",
    "test_feeds_and_memory.py": "a clock that the test sets",
    "test_autotune.py": "a clock that the test sets",
    "cuda_host.py": "libraries that were made long ago are removed",
    "fuzz.py": "says how long it took",
}


def clocks(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if CLOCKS.search(line)]


def test_no_test_watches_a_clock():
    """Clocks live in bench/: on a busy machine a test counts work. Nobody else computes where tests/gpu runs."""
    tests = Path(__file__).parents[1]
    found = {
        path.relative_to(tests).as_posix(): clocks(path.read_text(encoding="utf-8"))
        for path in sorted(tests.rglob("*.py")) if "gpu" not in path.relative_to(tests).parts[:1]
    }
    assert {name: lines for name, lines in found.items() if lines and Path(name).name not in NAMES_A_CLOCK} == {}
    assert NAMES_A_CLOCK.keys() == {Path(name).name for name, lines in found.items() if lines}


@pytest.mark.parametrize(
    "line",
    ["assert perf_counter() - start < 1", "from time import monotonic", "'t = time.time()'", "time.process_time_ns()",
     "from time import sleep, time", "time.clock_gettime(0)", "os.times()", "datetime.now() - start"],
)
def test_the_check_for_clocks_can_fail(line):
    assert clocks(line) == [line]


NAMED = re.compile(r"(?:minigraph)?\.(?:kernels|runtime|program|passes|compiler|opdef)\.[a-z_.]+")


def named_modules(path: Path) -> Iterator[tuple[str, int]]:
    """(module, line) for each that is imported by name."""
    for node in nodes(path):
        if isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
            texts = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
            yield from ((name, node.lineno) for name in NAMED.findall(" ".join(texts)))


def test_modules_that_are_named_in_strings_exist():
    """What is imported by name, when a GPU is first used or an operator first runs, is seen by no linter."""
    for path in FILES:
        for name, line in named_modules(path):
            inner = PACKAGE.joinpath(*name.strip(".").removeprefix("minigraph.").split("."))
            assert inner.is_dir() or inner.with_suffix(".py").exists(), f"{short(path)}:{line} names {name}"
