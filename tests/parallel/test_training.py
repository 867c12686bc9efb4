"""What a training is made of, on several ranks: W ranks with batch B / W are one rank with batch B."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph import nn, static
from minigraph.nn import functional as F
from minigraph.program import unique_name

ROWS, WORDS = 8, 11
_rng = np.random.default_rng(2)
FEEDS = [
    {"words": _rng.integers(0, WORDS, (ROWS, 3)), "x": _rng.normal(size=(ROWS, 4)),
     "y": _rng.integers(0, WORDS, (ROWS, 1))}
    for _ in range(4)
]


class Case:
    """A training in a Scope of its own.

    dtype      of parameters and feeds
    decorated  what static.amp.decorate is told
    wrapped    makes an optimizer of another one; `ema` averages parameters
    """

    def __init__(self, dtype: str = "float64", decorated: Any = None, wrapped: Any = None, ema: bool = False,
                 optimizer: Any = None) -> None:
        self.main, self.startup, self.scope = static.Program(), static.Program(), static.Scope()
        self.startup.random_seed = 4
        self.exe, self.dtype, self.ema = static.Executor(mg.CPUPlace()), dtype, None
        mg.set_default_dtype(dtype)
        with static.program_guard(self.main, self.startup), unique_name.guard():
            words, x = static.data("words", [None, 3], "int64"), static.data("x", [None, 4], dtype)
            table = nn.Embedding(WORDS, 6, sparse=True)
            h = mg.concat([mg.reshape(table(words), [-1, 18]), x], axis=1)
            self.hidden = F.relu(nn.Linear(22, 6)(h))
            logits = mg.matmul(nn.LayerNorm(6)(self.hidden), table.weight, transpose_y=True)
            self.loss = F.cross_entropy(logits, static.data("y", [None, 1], "int64"))
            rule = optimizer() if optimizer else mg.optimizer.AdamW(
                0.02, weight_decay=0.1, grad_clip=nn.ClipGradByGlobalNorm(0.5), multi_precision=dtype != "float64"
            )
            if decorated is not None:
                rule = static.amp.decorate(rule, **decorated)
            if wrapped is not None:
                rule = wrapped(rule, self)
            rule.minimize(self.loss)
            if ema:
                self.ema = static.ExponentialMovingAverage(0.9)
                self.ema.update()
        self.exe.run(self.startup, scope=self.scope)

    def trained(self, ranks: int, steps: int = 4, feeds: Any = FEEDS, **flags: Any) -> dict[str, np.ndarray]:
        """All that lasts after so many steps."""
        program: Any = static.CompiledProgram(self.main, static.BuildStrategy(**flags))
        if ranks > 1:
            program = program.with_data_parallel(self.loss.name, places=static.cpu_places(ranks))
        for feed in feeds[:steps]:
            feed = {**feed, "x": feed["x"].astype(self.dtype)}
            (values,) = self.exe.run(
                program, feed, [self.main.all_parameters()[1]], scope=self.scope, return_merged=False,
            ) if ranks > 1 else [[self.exe.run(program, feed, scope=self.scope)]]
            assert all(np.array_equal(values[0], v) for v in values[1:]), "ranks differ"
        return self.main.state_dict(scope=self.scope)


def merged(rule, case):
    return mg.incubate.optimizer.GradientMergeOptimizer(rule, 2)


def recomputed(rule, case):
    rule = mg.incubate.optimizer.RecomputeOptimizer(rule)
    rule._set_checkpoints([case.hidden])
    return rule


SETTINGS = {
    "tied embedding": {},
    "gradients of two runs": {"wrapped": merged},
    "averages": {"ema": True},
    "recompute": {"wrapped": recomputed},
    "clip by norm": {"optimizer": lambda: mg.optimizer.Momentum(0.1, grad_clip=nn.ClipGradByNorm(0.1))},
    "clip by value": {"optimizer": lambda: mg.optimizer.SGD(0.1, grad_clip=nn.ClipGradByValue(0.01))},
    "lamb": {"optimizer": lambda: mg.optimizer.Lamb(0.02)},
}  # fmt: skip


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("name", SETTINGS)
def test_ranks_are_one_rank_in_float64(name, every):
    flags: dict[str, Any] = vars(static.BuildStrategy.all(recompute=True)) if every else {}
    flags = {k: v for k, v in flags.items() if not k.startswith("_")}
    one, several = Case(**SETTINGS[name]).trained(1), Case(**SETTINGS[name]).trained(2, **flags)
    for key, value in one.items():
        np.testing.assert_allclose(several[key], value, rtol=1e-12, atol=1e-12, err_msg=key)


def momentum():
    return mg.optimizer.Momentum(0.05, grad_clip=nn.ClipGradByGlobalNorm(0.5), multi_precision=True)


LOW = {
    f"{level} {dtype}{' merged' if wrapped else ''}": dict(
        decorated={"level": level, "dtype": dtype, "init_loss_scaling": 1024.0}, wrapped=wrapped
    )
    for level, dtype, wrapped in (
        ("O1", "float16", None), ("O2", "float16", None), ("O1", "bfloat16", None), ("O2", "bfloat16", None),
        ("O2", "float16", merged),
    )
}  # fmt: skip


@pytest.mark.parametrize("name", LOW)
def test_ranks_in_16_bits_err_as_one_rank_does(name):
    """The error of 2 ranks with all rewrites against float64 is at most twice that of one rank without any."""
    wrapped = LOW[name]["wrapped"]
    exact = Case(wrapped=wrapped, optimizer=momentum)
    begins = exact.startup, {p.name: exact.scope.read(p.name) for p in exact.main.all_parameters()}
    errors = []
    truth = exact.trained(1)
    for ranks, flags in ((1, {}), (2, {f: v for f, v in vars(static.BuildStrategy.all()).items() if f[0] != "_"})):
        case = Case("float32", optimizer=momentum, **LOW[name])
        for key, value in begins[1].items():
            for own in (key, f"{key}_fp32_master_0"):
                if case.scope.has(own):
                    case.scope.write(own, value.astype(case.scope.arrays[own].dtype))
        found = case.trained(ranks, **flags)
        params = [p.name for p in case.main.all_parameters()]
        errors.append(max(np.abs(found[k].astype("float64") - truth[k]).max() for k in params))
        print(name, ranks, errors[-1], {k for k in found if "scal" in k or "step" in k or "master" in k})
    assert 0 < errors[1] <= 2 * errors[0]


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("all_reduce_dtype", ["auto", "bfloat16"])
def test_a_rank_that_overflows_makes_all_skip_the_step(level, all_reduce_dtype):
    decorated = {"level": level, "dtype": "float16", "init_loss_scaling": 64.0, "decr_every_n_nan_or_inf": 1}
    case = Case("float32", decorated=decorated, optimizer=momentum)
    flags = {"fuse_all_reduce_ops": True, "all_reduce_dtype": all_reduce_dtype}
    before = case.trained(2, 1, **flags)
    bad = {**FEEDS[1], "x": np.where(np.arange(ROWS)[:, None] == ROWS - 1, 1e30, FEEDS[1]["x"])}
    after = case.trained(2, 1, [bad], **flags)
    for key, value in before.items():
        if not key.startswith(("loss_scaling", "num_")):
            np.testing.assert_array_equal(after[key], value, err_msg=key)
    assert after["loss_scaling_0"] == before["loss_scaling_0"] * 0.5
    then = case.trained(2, 1, FEEDS[2:], **flags)
    assert any(not np.array_equal(then[k], v) for k, v in after.items())
