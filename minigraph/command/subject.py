"""What a command looks at: a program with what it is fed, from a saved file or from a script that is stopped."""

from __future__ import annotations

import runpy
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minigraph.compiler.compiler import CompiledProgram
from minigraph.compiler.strategy import PASSES, BuildStrategy
from minigraph.compiler.validate import made_up_values
from minigraph.errors import MinigraphError, nearest
from minigraph.ir.text import parse
from minigraph.onnx import load as load_onnx
from minigraph.program import Program, default_main_program
from minigraph.program.scope import Scope, global_scope
from minigraph.runtime.executor import Executor
from minigraph.runtime.targets import read_targets
from minigraph.static.objects import load
from minigraph.types import FLOATS, CPUPlace, CUDAPlace

BATCH = 32  # in the place of a first size that is not known; other ones that are not get SIZE
SIZE = 8


class NoSubject(Exception):
    """The command line names nothing that can be looked at."""


class ScriptFailed(Exception):
    """A script raised `error` before its first step; the traceback of that begins in the script."""

    def __init__(self, error: Exception, script: Path) -> None:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != str(script):
            trace = trace.tb_next
        self.error = error.with_traceback(trace)


@dataclass
class Subject:
    """A program as it would run.

    program  before the rewrites;  fetches: names
    """

    program: Program
    strategy: BuildStrategy
    feed: Mapping[str, Any]
    fetches: tuple[str, ...]
    scope: Scope
    place: Any

    def compiled(self, **flags: Any) -> CompiledProgram:
        """The program with its rewrites; `flags` in the place of the strategy's."""
        made = CompiledProgram(self.program, BuildStrategy(**{**vars(self.strategy), **flags}))
        made.program_for(self.fetches, place=self.place)
        return made

    def runner(self, program: Any) -> Callable[[], Any]:
        """A function that runs it once, as a user would."""
        executor = Executor(self.place)
        return lambda: executor.run(program, dict(self.feed), list(self.fetches), scope=self.scope)


class _Stopped(BaseException):
    """Thrown through a script at its first step; no `except Exception` of the script stops it."""


def subject(options: Namespace) -> Subject:
    """What the command line names; NoSubject where that is nothing."""
    path = Path(options.source)
    if not path.is_file():
        raise NoSubject(f"{options.source} is a folder" if path.is_dir() else f"there is no file {options.source}")
    found = _of_script(path, options) if path.suffix == ".py" else _of_file(path, options)
    if options.passes is not None:
        found.strategy = _strategy(options.passes)
    if options.fetch is not None:
        found.fetches = tuple(options.fetch.split(","))
        for name in found.fetches:
            if name not in found.program.vars:
                hint = nearest(name, found.program.vars)
                raise NoSubject(f"there is no variable {name}{f'; {hint}' if hint else ''}")
    if options.place is not None:
        found.place = {"cpu": CPUPlace(), "gpu": CUDAPlace(0)}[options.place]
    return found


def _strategy(passes: str) -> BuildStrategy:
    flags = {step.flag for step in PASSES}
    wanted = [] if passes in ("all", "none") else passes.split(",")
    for flag in wanted:
        if flag not in flags:
            raise NoSubject(f"there is no pass {flag}; there are {', '.join(sorted(flags))}")
    return BuildStrategy.all() if passes == "all" else BuildStrategy(**dict.fromkeys(wanted, True))


# scripts


def _of_script(path: Path, options: Namespace) -> Subject:
    """Run a script until its first step. What it prints goes to stderr, since stdout is for the answer."""
    steps: list[Subject] = []
    before = sys.argv, sys.path[:]
    sys.argv, sys.path[:0] = [str(path), *options.args], [str(path.parent)]
    try:
        with _executors_tell(steps), redirect_stdout(sys.stderr):
            runpy.run_path(str(path), run_name="__main__")
    except _Stopped:
        pass
    except SystemExit:
        if not steps:
            raise
    except MinigraphError:
        raise
    except Exception as problem:
        raise ScriptFailed(problem, path) from None
    finally:
        sys.argv, sys.path[:] = before
    if steps and options.shape:
        raise NoSubject(f"--shape is for what nobody feeds; {path} feeds its program")
    if steps:
        return steps[-1]
    built = default_main_program()
    if not built.ops:
        raise NoSubject(f"{path} ran to its end, fed no program and built none as the default main program")
    return _of_program(built, _made_up(built), options)


@contextmanager
def _executors_tell(steps: list[Subject]) -> Iterator[None]:
    """Inside the block a run of a compiled program stops the script before it begins, as the second one of another."""
    original, prepare = Executor.run, Executor.prepare

    def run(
        self: Executor, program: Any = None, feed: Any = None, fetch_list: Any = None, *rest: Any, **more: Any
    ) -> Any:
        if isinstance(program, CompiledProgram) or feed:
            again = any(step.program is program for step in steps)
            scope = more.get("scope") or global_scope()
            steps.append(_step(program, feed or {}, fetch_list, scope, self.place))
            if again or isinstance(program, CompiledProgram):
                raise _Stopped
        return original(self, program, feed, fetch_list, *rest, **more)

    Executor.run = run
    Executor.prepare = lambda *_, **__: None  # no step follows that needs it
    try:
        yield
    finally:
        Executor.run, Executor.prepare = original, prepare


def _step(source: Any, feed: Any, fetch_list: Any, scope: Scope, place: Any) -> Subject:
    is_compiled = isinstance(source, CompiledProgram)
    program = source.before if is_compiled else source
    names, _ = read_targets([] if fetch_list is None else fetch_list, program)
    strategy = source.strategy if is_compiled else BuildStrategy.all()
    return Subject(program, strategy, feed, tuple(names), scope, place)


# saved programs


def _of_file(path: Path, options: Namespace) -> Subject:
    scope = Scope()
    program = _of_onnx(path, scope) if path.suffix == ".onnx" else _read(path)
    return _of_program(program, scope if path.suffix == ".onnx" else _made_up(program), options)


def _of_program(program: Program, scope: Scope, options: Namespace) -> Subject:
    """A program out of a file: it is fed made-up numbers, and its last values are fetched."""
    rng = np.random.default_rng(0)
    shapes = _shapes(options.shape, program)
    feed = {
        v.name: _fed(rng, shapes.get(v.name, _filled(v.shape)), v.dtype) for v in program.list_vars() if v.is_data
    }
    read = {v.name for op in program.ops for v in op.input_vars}
    ends = [v.name for op in program.ops for v in op.output_vars if v.name not in read and not v.persistable]
    fetches = tuple(program.fetched) or tuple(dict.fromkeys(ends))
    return Subject(program, BuildStrategy.all(), feed, fetches, scope, CPUPlace())


def _of_onnx(path: Path, scope: Scope) -> Program:
    """The program in an ONNX file, with its weights."""
    try:
        return load_onnx(path, scope)
    except MinigraphError as problem:
        raise NoSubject(problem.fact + (f"; {problem.hint}" if problem.hint else "")) from None


def _made_up(program: Program) -> Scope:
    """Made-up weights."""
    scope = Scope()
    for name, value in made_up_values(program).items():
        if program.vars[name].persistable:
            scope.write(name, value.astype(program.vars[name].dtype))
    return scope


def _read(path: Path) -> Program:
    """The program in a file: text, or what mg.save wrote."""
    content = path.read_bytes()
    try:
        made = load(path) if content[8:9] == b"{" else parse(content.decode(errors="replace"), path.name)
    except MinigraphError as problem:
        raise NoSubject(f"{path} holds no program: {problem.fact}") from None
    if not isinstance(made, Program):
        raise NoSubject(f"{path} holds no program, but {type(made).__name__}")
    return made


def _shapes(given: list[str], program: Program) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for one in given:
        name, _, sizes = one.partition("=")
        declared = program.vars.get(name)
        if declared is None or not declared.is_data or not all(size.isdigit() for size in sizes.split(",")):
            raise NoSubject(f"--shape {one}: give a data variable and its sizes, such as x=32,64")
        shapes[name] = tuple(map(int, sizes.split(",")))
    return shapes


def _filled(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple((BATCH if axis == 0 else SIZE) if size < 0 else size for axis, size in enumerate(shape))


def _fed(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Normal numbers; 0 and 1 for indices, which fit every table."""
    return (rng.normal(size=shape) if dtype in FLOATS else rng.integers(0, 2, shape)).astype(dtype)
