"""Test clones of programs in which backward computes forward values again."""

import math

import numpy as np
import pytest

import minigraph as mg
from minigraph import static


def _scaled_net(recompute: bool) -> tuple[static.Program, static.Program, static.Variable]:
    main, startup = static.Program(), static.Program()
    main.random_seed = startup.random_seed = 3
    with static.program_guard(main, startup):
        h = static.data("x", [4, 6, 8])
        h = kept = static.nn.layer_norm(mg.nn.functional.dropout(h, 0.3), begin_norm_axis=2)
        out = static.nn.fc(static.nn.fc(h, 8, num_flatten_dims=2, activation="gelu"), 1, num_flatten_dims=2)
        loss = mg.mean(mg.square(out))
        optimizer = mg.optimizer.Momentum(0.01, 0.9)
        if recompute:
            optimizer = mg.incubate.optimizer.RecomputeOptimizer(optimizer)
            optimizer._set_checkpoints([kept, out])
        static.amp.decorate(optimizer, level="O1", dtype="float16").minimize(loss)
    return main, startup, loss


@pytest.mark.parametrize("flags", [{}, {"recompute": True}, {"recompute_norms": True, "fuse_elementwise": True}, "all"])
@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
def test_what_backward_computes_again_is_not_for_a_test(recompute: bool, flags: "dict[str, bool] | str") -> None:
    main, startup, loss = _scaled_net(recompute)
    strategy = static.BuildStrategy.all() if isinstance(flags, str) else static.BuildStrategy(**flags)
    test = static.CompiledProgram(main, strategy).program_for([loss.name]).clone(for_test=True)
    assert not [n for op in test.ops for n in op.output_arg_names if "@GRAD" in n]
    exe, scope = static.Executor(), static.Scope()
    exe.run(startup, scope=scope)
    names = ["layer_norm_0.w_0", "layer_norm_0.b_0", "fc_0.w_0", "fc_0.b_0", "fc_1.w_0", "fc_1.b_0"]
    feed = {"x": np.random.default_rng(0).normal(size=(4, 6, 8)).astype("float32")}
    (found,) = exe.run(test, feed, [loss.name], scope=scope)
    np.testing.assert_allclose(found, _expected(feed["x"], [scope.read(n) for n in names]), rtol=1e-2)


def _expected(x: np.ndarray, parameters: "list[np.ndarray]") -> np.ndarray:
    scale, shift, w0, b0, w1, b1 = (np.asarray(p, "float64") for p in parameters)
    h = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * scale + shift
    z = h.astype("float64") @ w0 + b0
    gelu = z * 0.5 * (1 + np.vectorize(math.erf)(z / np.sqrt(2)))
    return np.mean((gelu @ w1 + b1) ** 2)
