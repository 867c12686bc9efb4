"""recompute_norms: the same values and gradients, and less memory between forward and backward."""

from __future__ import annotations

import numpy as np
import pytest

import minigraph as mg
from minigraph.passes import recompute_norms as passes
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor
from minigraph.static import BuildStrategy, CompiledProgram
from tests.support.residual_blocks import B, S, W, residual_blocks


@pytest.fixture(scope="module")
def chain():
    return residual_blocks()


def run(chain, program):
    return Executor().run(program, chain.feeds, chain.fetches, scope=Scope())


def test_the_same_values_with_other_rewrites(chain):
    right = run(chain, chain.program)
    for flags in ({"verify": "each_pass", "recompute_norms": True}, vars(BuildStrategy.all(recompute_norms=True))):
        program = CompiledProgram(chain.program, BuildStrategy(**flags))
        for a, b in zip(right, run(chain, program), strict=True):
            assert np.abs(a - b).max() <= 1e-11 * max(1, np.abs(a).max())
        assert "recompute_norms                  4 applied" in str(program.explain())


def test_what_norms_give_is_not_kept(chain):
    """A GPU's plan: of four norms in two blocks three are not alive where the last gives its result."""
    planned = []
    for on in (False, True):
        strategy = BuildStrategy(fuse_gemm_epilogue=True, recompute_norms=on)
        report = CompiledProgram(chain.program, strategy).memory_report(
            chain.feeds, chain.fetches, mg.CUDAPlace(0)
        )
        planned.append(report.planned)
    assert planned[0] - planned[1] >= 2 * B * S * W * 8


def test_a_copy_of_another_array_is_seen(chain, monkeypatch):
    """Planted: the copy normalises without its shift."""
    emit = passes.GraphBuilder.emit
    monkeypatch.setattr(
        passes.GraphBuilder, "emit", lambda self, kind, x, scale, _, **attrs: emit(self, kind, x, scale, None, **attrs)
    )
    program = CompiledProgram(chain.program, BuildStrategy(recompute_norms=True))
    pairs = zip(run(chain, chain.program), run(chain, program), strict=True)
    assert any(np.abs(a - b).max() > 1e-3 for a, b in pairs)
