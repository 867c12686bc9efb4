"""KernelList: what one run gives to the GPU, call by call. Needs no GPU.

    kernels = compiled.kernels({"x": [256, 784], "y": [256, 1]}, fetch_list=[loss])
    print(kernels)               one line each: name, grid, bytes, operator, the user's line
    print(kernels[3].source)     CUDA C++;  kernels[3].ptx() what NVRTC makes of it
    kernels.to_dot()             a drawing for Graphviz;  kernels.of("fused_adamw") those of one operator
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from minigraph.errors import KernelError, ProgramError, require, require_path
from minigraph.kernels.cuda.record.compile import compile_all, ptx_of, ship
from minigraph.opdef import get_op
from minigraph.program import Operator, Program
from minigraph.program.text.dot_text import quoted
from minigraph.types import TensorType

from .checkpoint.paths import shown
from .control.ahead import ahead

TILES = frozenset({  # what sources call the sizes of their tiles and how these are gone through
    "BM", "BN", "HEAD", "STEP", "STAGES", "SPLIT", "SLICES", "SLOTS", "GROUP", "GROUPS", "WARPS_M", "WARPS_N", "ROWS",
    "CHUNK", "WIDTH", "LANES", "UNROLL", "PACKS",
})  # fmt: skip
DEFINED = re.compile(r"^#define ([A-Z_]+) (\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Kernel:
    """One call of a run.

    name      the function in `source`; "product ..." is cuBLASLt's, copy, fill and hostcall have no kernel either
    grid, block   blocks, and threads of one, (x, y, z); None for what is no launch of ours
    nbytes    of the arrays that it is given, each counted once: what it reads and writes at the most
    op        the operator it belongs to; None for what ends a run
    members   types of the operators that it computes: of a fused one all that went into it
    source    CUDA C++ as NVRTC gets it, "" where there is none
    arch      the GPU for which it was planned, "sm_90a"
    part      the piece or block whose plan it is of; "" where a program is not cut by branches and loops
    others    sources of kernels that the call launches besides
    """

    name: str
    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    nbytes: int
    op: Operator | None
    members: tuple[str, ...]
    source: str
    arch: str
    part: str = ""
    others: tuple[str, ...] = ()

    def ptx(self) -> str:
        """PTX that NVRTC makes of `source`; a KernelError where there is none."""
        require(bool(self.source), f"{self.name} has no source of ours", KernelError)
        return ptx_of(self.source, self.arch)

    @property
    def tiles(self) -> dict[str, int]:
        """Sizes of tiles, stages and parts that `source` was made for, by its own names; none of a library's."""
        return {name: int(size) for name, size in DEFINED.findall(self.source) if name in TILES}

    def label(self) -> str:
        """`update of adamw linear_0.w_0`: the call, its operator and the first output of that."""
        if self.op is None:
            return f"{self.name} at the end of the run"
        return f"{self.name} of {self.op.type} {next(iter(self.op.output_arg_names), '')}".rstrip()

    def __str__(self) -> str:
        grid = "x".join(map(str, self.grid)) if self.grid else "-"
        what = self.op.type if self.op is not None else "end of the run"
        inside = f" ({', '.join(self.members)})" if len(self.members) > 1 else ""
        site = (self.op.site if self.op is not None else None) or ""
        return f"{self.name:<36} {grid:>12} {self.nbytes / 1e6:>10.3f} MB  {what}{inside}    {site}".rstrip()


class KernelList(tuple[Kernel, ...]):
    """The calls of a run in order; its text is a table."""

    __slots__ = ()

    def __str__(self) -> str:
        nbytes = sum(k.nbytes for k in self) / 1e6
        lines = []
        for part, calls in itertools.groupby(self, lambda kernel: kernel.part):
            lines += [*([f"{part}:"] if part else []), *map(str, calls)]
        return "\n".join([*lines, f"{len(self)} calls, {nbytes:.3f} MB of arrays"])

    def of(self, *types: str) -> KernelList:
        """The calls of operators of these types, each of which must exist."""
        for type in types:
            require(isinstance(type, str), f"the type of an operator is a str, not {type!r}", ProgramError)
            get_op(type)
        return KernelList(k for k in self if k.op is not None and k.op.type in types)

    def compile(self, folder: str | Path | None = None) -> int:
        """Compile all kernels of ours, several at a time; how many there are.

        They stay on this machine's disk, where runs look for them. In `folder` they can be taken elsewhere: runs look
        into a package of the name minigraph_kernels, too. A KernelError says why nothing could be written.
        """
        if folder is not None:
            require_path(folder, "folder")
        found = dict.fromkeys((k.arch, source) for k in self for source in (k.source, *k.others) if source)
        for arch in dict.fromkeys(arch for arch, _ in found):
            sources = [source for at, source in found if at == arch]
            try:
                compile_all(sources, arch) if folder is None else ship(sources, arch, Path(folder))
            except (OSError, ValueError) as why:  # the latter of a name that no file can have
                raise KernelError(f"no kernels could be written to {shown(str(folder))}: {why}") from why
        return len(found)

    def to_dot(self) -> str:
        """A drawing in DOT: a box for each call, in order, and an ellipse for each parameter that an operator updates.

        A parameter leads to the last call of its operator.
        """
        lines = ["digraph calls {", '  node [fontname="Helvetica", fontsize=10, style=filled, fillcolor=white];',
                 '  edge [color="#666666"];']  # fmt: skip
        for i, kernel in enumerate(self):
            grid = "x".join(map(str, kernel.grid)) if kernel.grid else "no launch of ours"
            label = quoted(kernel.name, f"grid {grid}" if kernel.grid else grid, f"{kernel.nbytes / 1e6:.3f} MB")
            lines.append(f'  call{i} [shape=box, fillcolor="#e8f3e8", label={label}];')
            if i:
                lines.append(f"  call{i - 1} -> call{i} [weight=9];")
        last = {k.op: i for i, k in enumerate(self) if k.op is not None}
        for op, number in last.items():
            for v in op.inputs.get("Param", ()):
                node = quoted(f"parameter {v.name}")
                lines.append(f'  {node} [shape=ellipse, fillcolor="#dddddd", label={quoted(v.name, str(v.type))}];')
                lines.append(f"  {node} -> call{number};")
        return "\n".join([*lines, "}", ""])


def kernels_of(
    backend: Any, program: Program, feeds: Mapping[str, TensorType], fetches: Sequence[str], options: Any, gpu: str = ""
) -> KernelList:
    """The calls of all plans of a program at a backend; those whose sizes a run decides are left out."""
    return KernelList(
        replace(kernel, part=part.title)
        for part in ahead(program, feeds, fetches) if not part.unknown
        for kernel in backend.kernels(part.program, part.feeds, part.fetches, options, gpu)
    )  # fmt: skip
