"""What users call: `program.to_onnx(path)`, `compiled.to_onnx(path)`, `minigraph.onnx.load(path)`."""

from __future__ import annotations

from typing import Any

from minigraph.compiler.compiler import CompiledProgram
from minigraph.errors import MinigraphError, ProgramError, require
from minigraph.program import Program
from minigraph.program.scope import Scope, global_scope
from minigraph.runtime.checkpoint.paths import shown
from minigraph.runtime.targets import read_targets

from . import protobuf
from .export import exported
from .load import program_of
from .reading import read


def to_onnx(
    self: Program | CompiledProgram, path: Any, fetch_list: Any = None, *, scope: Scope | None = None,
    external_data: bool | None = None,
) -> None:  # fmt: skip
    """Write the inference form of what computes `fetch_list` to an ONNX file, with its weights.

    fetch_list     Variables or names, the model's outputs; else what a loaded program fetches, or all that
                   nobody reads. Data variables that these need are its inputs; free sizes stay free
    scope          has the weights; the global one for None
    external_data  weights lie in `path`.data; None: only where the file would pass 2 GB
    Errors: ProgramError with the operator and its line where ONNX has no counterpart; UninitializedError; PlaceError
    where the package onnx is missing.
    """
    protobuf.package()
    program = self.before if isinstance(self, CompiledProgram) else self
    names = read_targets([] if fetch_list is None else fetch_list, program)[0] or _results(program)
    rewritten = self.program_for(names) if isinstance(self, CompiledProgram) else self
    model = exported(rewritten, names, scope if scope is not None else global_scope())
    protobuf.write(model, path, external_data)


def _results(program: Program) -> tuple[str, ...]:
    """What a program is for, as far as it says so."""
    if program.fetched:
        return program.fetched
    test = program.clone(for_test=True)
    read = {name for op in test.ops for name in op.input_arg_names}
    ends = [v.name for op in test.ops for v in op.output_vars if v.name not in read and not v.persistable]
    require(ends, f"program {program.name} computes nothing that could be an output", ProgramError, "give a fetch_list")
    return tuple(dict.fromkeys(ends))


def load(path: Any, scope: Scope | None = None) -> Program:
    """The Program in an ONNX file, of those operators that `to_onnx` writes; its weights go into a scope.

    scope   the global one for None
    The model's inputs are data variables, its outputs `program.fetched`. Nothing in the file is run, and weights are
    read from its folder alone.
    Errors: ProgramError that names the first node that is not known, or the tensor that is damaged; PlaceError where
    the package onnx is missing.
    """
    protobuf.package()
    try:
        return program_of(read(path), scope if scope is not None else global_scope())
    except MinigraphError as problem:
        problem.fact = f"{shown(str(path))}: {problem.fact}"
        raise


Program.to_onnx = to_onnx
CompiledProgram.to_onnx = to_onnx
