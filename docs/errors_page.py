"""The page of error codes: `python docs/errors_page.py` writes docs/errors.md.

Codes with their causes stand in minigraph/errors/kinds.py. The programs that raise them stand in docs/error_programs:
each begins with its code, `# MG-SHAPE-001`, and has before it what it needs of the top of its file. Each is run alone,
in new default programs, an empty scope and an empty folder.
"""

from __future__ import annotations

import ast
import contextlib
import io
import linecache
import os
import re
import tempfile
import textwrap
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import minigraph as mg
from minigraph import static
from minigraph.errors.kinds import KINDS, RETIRED, Kind

PAGE = Path(__file__).with_name("errors.md")
PROGRAMS = Path(__file__).with_name("error_programs")
FILE = "train.py"  # in the errors of the page
CODE = re.compile(r"^# (MG-[A-Z]+-[0-9]{3})\n", re.MULTILINE)
HERE = re.compile(r"(?<=cannot be used: ).*|(?<=\()Unable to allocate.*(?=\))")  # what a machine lacks
FAMILIES = {
    "SHAPE": "Shapes", "DTYPE": "Data types", "ATTR": "Arguments", "PROGRAM": "Programs", "FILE": "Files",
    "FEED": "Feeds", "FETCH": "Fetches", "SCOPE": "Values of parameters", "PLACE": "Places", "KERNEL": "Kernels",
    "MEMORY": "Memory", "NAN": "NaN and infinity", "VERIFY": "Passes", "INSTALL": "Installation",
    "PADDLE": "Names of Paddle", "READER": "Readers",
}  # fmt: skip
HEAD = """\
# Errors by code

Every error has a code, the call, the one fact that fails, your line, and a hint where one helps:

```text
{example}
```

`error.code` has the code. It belongs to a kind of fact, stays the same between versions, and is
never given to another kind. `error.fact` and `error.hint` are the parts of the text. All are
`minigraph.MinigraphError`; the class of each is in `minigraph.errors`, and also one of Python's:
a `ShapeError` is a `ValueError`.

**Tracebacks.** Python shows an error of minigraph that nobody catches up to your line, without the
calls inside minigraph; so do threads and notebooks. `MINIGRAPH_TRACEBACK=full` in the environment
shows all. The error itself always has its whole traceback: pdb, pytest, `logging.exception` and
`traceback.print_exc()` show every call, and other errors are shown as ever. To print one short
that you caught:

```python
import traceback

import minigraph as mg
from minigraph.errors.tracebacks import shortened

try:
    mg.static.data("x", [2, 3], "float31")
except mg.MinigraphError as error:
    with shortened(error):
        traceback.print_exception(error)
```

This page is made from the code: `python docs/errors_page.py`.
"""


def programs() -> dict[str, str]:
    """{code: its program, with what it needs of the top of its file}"""
    found = {}
    for path in sorted(PROGRAMS.glob("*.py")):
        top, *rest = CODE.split(path.read_text(encoding="utf-8"))
        for code, program in zip(rest[::2], rest[1::2], strict=True):
            if code in found:
                raise ValueError(f"{code} has two programs")
            found[code] = with_needed(top, program.strip())
    return found


def with_needed(top: str, program: str) -> str:
    """A program behind those imports and assignments of `top` that it uses."""
    used, imports, others = _names(ast.parse(program), ast.Load), [], []
    for node in reversed(ast.parse(top).body[1:]):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            node.names = [alias for alias in node.names if (alias.asname or alias.name) in used]
            imports += [ast.unparse(node)] * bool(node.names)
        elif _names(node, ast.Store) & used:
            used |= _names(node, ast.Load)
            others.append(ast.unparse(node))
    return "\n".join([*reversed(imports), "", *reversed(others), program]).lstrip() + "\n"


def _names(tree: ast.AST, context: type[ast.expr_context]) -> set[str]:
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, context)}


def raised(program: str) -> tuple[mg.MinigraphError, str]:
    """The error of a program, and what it says."""
    linecache.cache[FILE] = (len(program), None, program.splitlines(keepends=True), FILE)
    flags = mg.get_flags(["FLAGS_check_nan_inf"])
    try:
        with _alone(), contextlib.redirect_stdout(io.StringIO()):
            exec(compile(program, FILE, "exec"), {"__name__": "__main__"})
    except mg.MinigraphError as error:
        return error, HERE.sub("...", f"{type(error).__name__}: {error}")
    finally:
        del linecache.cache[FILE]
        mg.set_flags(flags)
    raise AssertionError(f"this program raises nothing:\n{program}")


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """New programs, a scope and a folder, in which nothing else is."""
    new, scope, before = (static.Program("main"), static.Program("startup")), static.Scope(), os.getcwd()
    guards = static.program_guard(*new), static.scope_guard(scope), mg.base.unique_name.guard()
    with tempfile.TemporaryDirectory() as folder, guards[0], guards[1], guards[2]:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def section(kind: Kind, program: str) -> str:
    parts = [
        f"### {kind.code}: {kind.what}", _prose(f"**Cause.** {kind.cause}"), _prose(f"**What to do.** {kind.mend}"),
        f"```python raises\n{program}```", f"```text\n{raised(program)[1]}\n```",
    ]  # fmt: skip
    return "\n\n".join(parts)


def _prose(text: str) -> str:
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def page() -> str:
    """The whole page; each program is run for it."""
    known = programs()
    parts = [HEAD.format(example=raised(known["MG-SHAPE-005"])[1])]
    for family, kinds in groupby(KINDS.values(), key=lambda kind: kind.code.split("-")[1]):
        parts.append(f"## {FAMILIES[family]}\n")
        parts += [section(kind, known[kind.code]) + "\n" for kind in kinds]
    if RETIRED:
        rows = [f"| {code} | {what} |" for code, what in RETIRED.items()]
        parts.append("\n".join(["## Codes of earlier versions\n", "| code | said |", "|---|---|", *rows, ""]))
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
