"""recompute_norms: the same values and gradients, less memory between forward and backward, and no kernel more."""

from __future__ import annotations

import numpy as np
import pytest

import minigraph as mg
from minigraph.ir.convert import to_graph
from minigraph.passes import recompute_norms as passes
from minigraph.passes.engine.log import PassReport
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor
from minigraph.static import BuildStrategy, CompiledProgram
from tests.passes.test_fixtures import CASES, parse
from tests.support.mixed_training import Training
from tests.support.residual_blocks import B, S, W, residual_blocks

ALONE = {"verify": "each_pass", "recompute_norms": True}
LAYERS = {"verify": "each_pass", "recompute_norms": True, "fuse_gemm_epilogue": True, "fuse_parallel_linears": True}


@pytest.fixture(scope="module", params=[True, False], ids=["norms before layers", "norms behind additions"])
def chain(request):
    return residual_blocks(before=request.param)


def run(chain, program):
    return Executor().run(program, chain.feeds, chain.fetches, scope=Scope())


@pytest.mark.parametrize("flags", [ALONE, LAYERS, vars(BuildStrategy.all())], ids=["alone", "layers", "all"])
def test_the_same_values_with_other_rewrites(chain, flags):
    """Of five norms, or four behind additions, the last one's result is fetched."""
    program = CompiledProgram(chain.program, BuildStrategy(**flags))
    for a, b in zip(run(chain, chain.program), run(chain, program), strict=True):
        assert np.abs(a - b).max() <= 1e-11 * max(1, np.abs(a).max())
    norms = sum(op.type == "layer_norm" for op in chain.program.global_block().ops)
    assert f"recompute_norms                  {norms - 1} applied, 1 refused" in str(program.explain())


def test_what_norms_give_is_not_kept(chain):
    """A GPU's plan: two arrays of a norm less at its peak, one where norms stand behind additions."""
    arrays = sum(op.type == "layer_norm" for op in chain.program.global_block().ops) - 3
    planned, kernels = [], []
    for on in (False, True):
        strategy = BuildStrategy.all(recompute_norms=on)
        compiled = CompiledProgram(chain.program, strategy)
        place = mg.CUDAPlace(0)
        planned.append(compiled.memory_report(chain.feeds, chain.fetches, place).planned)
        kernels.append(compiled.kernels(chain.feeds, chain.fetches, place))
    assert planned[0] - planned[1] >= arrays * B * S * W * 8
    assert len(kernels[0]) == len(kernels[1])
    assert all({"layer_norm_grad", "layer_norm_again"} <= {*k.members} for k in kernels[1].of("layer_norm_again"))


def test_below_recompute_norms_are_part_of_what_is_computed_again(chain):
    program = CompiledProgram(chain.program, BuildStrategy(recompute=True, recompute_norms=True))
    run(chain, program)
    assert "computes layer_norm layer_norm_0.tmp_0 again anyway" in str(program.explain())


def test_a_refusal_leaves_no_variable_behind():
    """The shift is updated between forward and backward: the norm again would read another one."""
    (case,) = (c for c in CASES if c.flag == "recompute_norms" and "its shift" in c.title)
    program = parse(case.before, case.title)
    graph, report = to_graph(program, program.fetched), PassReport("recompute_norms")
    before = set(graph.vars)
    assert passes.recompute_norms(graph, report) == 0
    assert "is updated in place before" in str(report.refused[0].reason)
    assert set(graph.vars) == before


def test_in_mixed_precision_a_cast_is_computed_again_too():
    """At O1 layers read the cast of a norm's result, which alone was kept."""
    t = Training("attention", {"level": "O1", "dtype": "bfloat16"}).compile()
    ops = t.target.program_for([t.loss.name]).ops
    bodies = [line for op in ops if op.type == "fused_elementwise" for line in op.attrs["body"]]
    assert any("layer_norm_again" in line for line in bodies)


def test_a_copy_of_another_array_is_seen(chain, monkeypatch):
    """Planted: the copy normalises without its shift."""
    given = passes._given
    monkeypatch.setattr(passes, "_given", lambda op: {s: v for s, v in given(op).items() if s != "Bias"})
    program = CompiledProgram(chain.program, BuildStrategy(recompute_norms=True))
    pairs = zip(run(chain, chain.program), run(chain, program), strict=True)
    assert any(np.abs(a - b).max() > 1e-3 for a, b in pairs)
