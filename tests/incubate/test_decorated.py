"""GradientMergeOptimizer and RecomputeOptimizer around mixed precision, and inside it.

The oracle is the whole batch in float64: there a decorated optimizer rounds nothing, but still scales the loss.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.errors import AttrError, MinigraphError
from minigraph.incubate.optimizer import GradientMergeOptimizer, RecomputeOptimizer
from minigraph.static.amp import decorate
from tests.support.mixed_training import Training, feeds, same_bits

CLIP = {"grad_clip": mg.nn.ClipGradByGlobalNorm(0.05)}
RULES = {
    "adamw": lambda: mg.optimizer.AdamW(1e-2), "clipped": lambda: mg.optimizer.AdamW(1e-2, **CLIP),
    "decays": lambda: mg.optimizer.Momentum(0.1, weight_decay=0.01),
}  # fmt: skip
K = 4


class Small:
    """Two layers in `dtype`, trained by what `optimizer(loss, hidden)` gives."""

    def __init__(self, optimizer, dtype="float64", fused=False):
        self.main, self.startup, self.scope = static.Program(), static.Program(), static.Scope()
        self.startup.random_seed, self.dtype = 3, dtype
        mg.set_default_dtype(dtype)
        try:
            with static.program_guard(self.main, self.startup), mg.utils.unique_name.guard():
                x, y = static.data("x", [None, 6], dtype), static.data("y", [None, 1], dtype)
                self.hidden = mg.tanh(mg.nn.Linear(6, 8)(x))
                self.loss = mg.mean((mg.nn.Linear(8, 1)(self.hidden) - y) ** 2)
                optimizer(self.hidden).minimize(self.loss)
        finally:
            mg.set_default_dtype("float32")
        self.exe = static.Executor(mg.CPUPlace())
        self.exe.run(self.startup, scope=self.scope)
        self.target = static.CompiledProgram(self.main, static.BuildStrategy.all()) if fused else self.main

    def step(self, batch):
        feed = {name: a.astype(self.dtype) for name, a in zip("xy", batch, strict=True)}
        with np.errstate(all="ignore"):
            return self.exe.run(self.target, feed, [self.loss], scope=self.scope)[0]

    def states(self, *parts):
        """Values that last, whose name has one of `parts`; without any, all but the sums and the counter of runs."""
        names = [v.name for v in self.main.list_vars() if v.persistable]
        wanted = (lambda n: any(p in n for p in parts)) if parts else (lambda n: "radient" not in n.lower())
        return {n: self.scope.read(n) for n in names if wanted(n)}

    def weights(self):
        return [self.scope.read(p.name).astype("float64") for p in self.main.all_parameters()]


def merged(rule, k=K, **facts):
    return lambda hidden: GradientMergeOptimizer(decorate(rule(), **facts), k)


def wholes(count=3):
    rng = np.random.default_rng(4)
    return [(rng.normal(size=(12, 6)), rng.normal(size=(12, 1))) for _ in range(count)]


def parts(batches):
    return [(x[i : i + 3], y[i : i + 3]) for x, y in batches for i in range(0, 12, 3)]


@pytest.mark.parametrize(("rule", "fused"), list(itertools.product(RULES, [False, True])))
def test_parts_of_a_batch_are_the_whole_batch(rule, fused):
    plain = Small(lambda hidden: RULES[rule]())
    scaled = Small(merged(RULES[rule], level="O2", init_loss_scaling=1000.0), fused=fused)
    for batch in wholes():
        plain.step(batch)
    for batch in parts(wholes()):
        scaled.step(batch)
    for exact, found in zip(plain.weights(), scaled.weights(), strict=True):
        np.testing.assert_allclose(found, exact, rtol=1e-10, atol=1e-13)
    assert {n: v.item() for n, v in scaled.states("good_steps", "bad_steps", "loss_scaling").items()} == {
        "num_good_steps_0": 3, "num_bad_steps_0": 0, "loss_scaling_0": 1000.0,
    }  # fmt: skip


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("at", [0, K - 1])
def test_one_part_that_overflows_skips_the_update_of_all_and_leaves_no_trace(rule, at, fused):
    t = Small(merged(RULES[rule], init_loss_scaling=64.0), fused=fused)
    good, other = parts(wholes(1)), parts(wholes(2))[K:]
    for batch in good:
        t.step(batch)
    before = t.states()
    bad = [(x * np.inf, y) if i == at else (x, y) for i, (x, y) in enumerate(other)]
    seen = []
    for batch in bad:
        t.step(batch)
        seen.append(t.states("loss_scaling")["loss_scaling_0"].item())
    assert seen == [64.0] * (K - 1) + [32.0], "the scale stays between two updates"
    after = t.states()
    changed = {n for n in before if before[n].tobytes() != after[n].tobytes()}
    assert changed == {"loss_scaling_0", "num_good_steps_0"}
    for batch in other:
        t.step(batch)
    exact = Small(lambda hidden: RULES[rule]())
    for batch in wholes(2):
        exact.step(batch)
    for a, b in zip(exact.weights(), t.weights(), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize(("level", "dtype"), list(itertools.product(["O1", "O2"], ["float16", "bfloat16"])))
def test_sixteen_bits_err_no_more_than_without_parts(level, dtype):
    facts = {"level": level, "dtype": dtype, "init_loss_scaling": 64.0 if dtype == "float16" else None}
    exact = Small(lambda hidden: mg.optimizer.SGD(0.1))
    whole = Small(lambda hidden: decorate(mg.optimizer.SGD(0.1), **facts), "float32")
    by_parts = Small(merged(lambda: mg.optimizer.SGD(0.1), **facts), "float32", fused=True)
    for t in (whole, by_parts):  # all begin with values that 16 bits hold
        for p, q in zip(exact.main.all_parameters(), t.main.all_parameters(), strict=True):
            value = exact.scope.read(p.name).astype(dtype)
            t.scope.write(q.name, value.astype(q.dtype))
            if t.scope.has(f"{q.name}_fp32_master_0"):
                t.scope.write(f"{q.name}_fp32_master_0", value.astype("float32"))
    for p in exact.main.all_parameters():
        exact.scope.write(p.name, exact.scope.read(p.name).astype(dtype).astype("float64"))
    for batch in wholes(5):
        exact.step(batch)
        whole.step(batch)
    for batch in parts(wholes(5)):
        by_parts.step(batch)

    def error(t):
        pairs = zip(t.weights(), exact.weights(), strict=True)
        return np.sqrt(np.mean(np.concatenate([(a - b).ravel() ** 2 for a, b in pairs])))

    assert 0 < error(by_parts) <= 2 * error(whole)


def around(hidden, **facts):
    """RecomputeOptimizer(decorate(...))"""
    made = RecomputeOptimizer(decorate(mg.optimizer.Adam(1e-2, **CLIP), **facts))
    made._set_checkpoints([hidden])
    return made


def inside(hidden, **facts):
    """decorate(RecomputeOptimizer(...))"""
    again = RecomputeOptimizer(mg.optimizer.Adam(1e-2, **CLIP))
    again._set_checkpoints([hidden])
    return decorate(again, **facts)


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("nested", [around, inside])
def test_values_that_are_computed_again_are_the_same_bits(nested, level):
    facts = {"level": level, "init_loss_scaling": 64.0}
    plain = Small(lambda hidden: decorate(mg.optimizer.Adam(1e-2, **CLIP), **facts), "float32")
    again = Small(lambda hidden: nested(hidden, **facts), "float32")
    assert len(again.main.ops) > len(plain.main.ops)
    for batch in wholes():
        plain.step(batch)
        again.step(batch)
    assert same_bits(plain.states(), again.states())
    both = Small(lambda hidden: GradientMergeOptimizer(nested(hidden, **facts), 2), "float32")
    alone = Small(merged(lambda: mg.optimizer.Adam(1e-2, **CLIP), 2, **facts), "float32")
    for batch in [*wholes(), *wholes()]:
        both.step(batch)
        alone.step(batch)
    assert same_bits(both.states(), alone.states())


def test_a_flag_of_the_user_is_no_step_of_the_scale():
    def flagged(hidden):
        rule = mg.optimizer.SGD(0.1)
        rule._set_auxiliary_var("found_inf", static.data("skip", [1], "bool"))
        return decorate(rule, init_loss_scaling=8.0, incr_every_n_steps=2)

    t = Small(flagged, "float32")
    before = t.states()
    for skip in (True, True, False):
        feed = {"x": np.ones((2, 6), "float32"), "y": np.ones((2, 1), "float32"), "skip": np.array([skip])}
        t.exe.run(t.main, feed, [], scope=t.scope)
        assert same_bits(before, t.states()) == skip
    assert t.states("loss_scaling", "good")["num_good_steps_0"].item() == 1


def test_a_state_that_was_saved_between_two_updates_goes_on_with_the_same_bits(tmp_path):
    def made():
        facts = {"level": "O2", "init_loss_scaling": 2.0**14, "incr_every_n_steps": 2}
        return Training("mlp", facts, merging=3)

    runs = list(feeds("mlp", 12))
    runs[4]["x"] *= 1e5  # the second update is skipped
    whole = made().start()
    for feed in runs[:7]:
        whole.step(feed)
    with static.scope_guard(whole.scope):
        static.save(whole.main, str(tmp_path / "middle"))
    other = made()
    with static.scope_guard(other.scope):
        static.load(other.main, str(tmp_path / "middle"), other.exe)
    assert [whole.step(feed) for feed in runs[7:]] == [other.step(feed) for feed in runs[7:]]
    assert same_bits(whole.states(), other.states())
    assert whole.number("loss_scaling") == 2.0**14, "halved once, doubled once"


@pytest.mark.parametrize(
    ("wrapped", "hint"),
    [
        (lambda rule: GradientMergeOptimizer(rule, 2), r"GradientMergeOptimizer\(decorate\(optimizer\)\)"),
        (lambda rule: RecomputeOptimizer(decorate(rule)), "takes an optimizer of mg.optimizer"),
        (decorate, "takes an optimizer of mg.optimizer"),
    ],
)
def test_what_decorate_does_not_wrap(wrapped, hint):
    with pytest.raises(AttrError, match=hint):
        decorate(wrapped(mg.optimizer.SGD(0.1)))


@pytest.mark.parametrize("nested", [around, inside])
def test_a_refused_checkpoint_takes_the_casts_back(nested):
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        x = static.data("x", [2, 2])
        loss = mg.mean(mg.nn.Linear(2, 2)(x))
        made, texts = nested(x, level="O2"), (str(main), str(startup))
        with pytest.raises(MinigraphError, match="is not computed before the first gradient"):
            made.minimize(loss)
        assert (str(main), str(startup)) == texts
        made._set_checkpoints([loss])
        made.minimize(loss)
