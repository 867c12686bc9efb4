"""Checkpoints of a Program that has its gradients: what lies between two of them is computed again in backward.

    program --to_graph--> Graph --recomputed, verify--> ... --into_program--> the same program

`static.append_backward(loss, checkpoints=[...])` and `incubate.optimizer.RecomputeOptimizer` come here. The flag
`recompute` of BuildStrategy chooses the places itself; passes/recompute.py is what both do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minigraph.errors import ProgramError, raise_unknown, require, shortened
from minigraph.errors.kinds import ORDER, UNKNOWN_NAME
from minigraph.ir.convert import into_program, to_graph
from minigraph.ir.verify import verify
from minigraph.passes.engine.log import PassReport
from minigraph.passes.recompute import forward_of, recomputed
from minigraph.program import Program, Variable
from minigraph.program.variable import check_is_of


def recompute_between(program: Program, checkpoints: Any) -> PassReport:
    """Let backward of `program` keep the checkpoints and compute again what lies between them; its report.

    checkpoints  Variables that forward computes, or their names. What comes behind the last one is kept, too.
    The user's Variables stay what they are, and can be fetched. Where anything is refused, nothing changes.
    """
    names = checkpoint_names(program, checkpoints)
    graph = to_graph(program)
    operators = dict(zip(graph.ops, program.ops, strict=True))
    places = {v.name: at for at, op in enumerate(forward_of(graph)) for v in op.output_vars}
    for name in names:
        if name not in places:
            raise ORDER(
                f"checkpoint {program.vars[name]} is not computed before the first gradient",
                site=program.vars[name].site, hint="feeds and parameters are kept in any case; leave it out",
            )  # fmt: skip
    report = PassReport("recompute")
    recomputed(graph, report, sorted({places[name] for name in names}))
    for refusal in report.refused:
        raise ProgramError(
            f"what lies before a checkpoint cannot be computed again: {refusal.reason}", site=refusal.site,
            hint="set other checkpoints",
        )  # fmt: skip
    verify(graph, "recompute")
    into_program(graph, program, operators)
    return report


def checkpoint_names(program: Program, checkpoints: Any) -> Sequence[str]:
    """The names of checkpoints, which must be a list of Variables of `program`, or of their names."""
    is_list = isinstance(checkpoints, (list, tuple))
    require(is_list, f"checkpoints is a list of variables, not {shortened(repr(checkpoints))}", ProgramError)
    names = []
    for each in checkpoints:
        if isinstance(each, Variable):
            check_is_of(each, program, "checkpoint", ProgramError)
        names.append(each.name if isinstance(each, Variable) else each)
        if names[-1] not in program.vars:
            raise_unknown(f"checkpoint: variable of program {program.name}", names[-1], program.vars, UNKNOWN_NAME)
    return names
