"""Updates with all that may stand around them, in random combinations: every level gives the bits of the for-loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph import nn, static
from minigraph import optimizer as opt
from minigraph.optimizer.states import UpdateTemplate, UpdateTemplates
from minigraph.regularizer import L1Decay, L2Decay
from minigraph.types import as_dtype
from tests.support.grades import graded

LEVELS = ("foreach_optimizer_ops", "fuse_all_optimizer_ops")
OPTIMIZERS = ("SGD", "Momentum", "Adam", "AdamW", "Adagrad", "Adadelta", "RMSProp", "Adamax", "Lamb", "Lion")
SHAPES = ((3, 5), (7,), (1,), (), (0,), (2, 1), (65, 9))
PROGRAMS, STEPS = 48, 4


class Net:
    """A sum over parameters times their feeds; `minimize` trains it."""

    def __init__(self, shapes: Any, dtypes: Any, attrs: Any = None) -> None:
        self.main, self.startup = static.Program(), static.Program()
        self.main.random_seed = self.startup.random_seed = 5
        rng, terms = np.random.default_rng(len(shapes)), []
        self.feed: dict[str, np.ndarray] = {}
        with static.program_guard(self.main, self.startup):
            for i, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True)):
                facts = attrs[i] if attrs else {}
                attr = mg.ParamAttr(name=f"p{i}", initializer=nn.initializer.Normal(0, 1), **facts)
                p, x = static.create_parameter(list(shape), dtype, attr=attr), static.data(f"x{i}", shape, dtype)
                self.feed[x.name] = np.asarray(rng.normal(size=shape), as_dtype(dtype))
                terms.append(mg.cast(mg.sum(p * x), "float64"))
            self.loss = sum(terms[1:], terms[0])
        self.params = self.main.all_parameters()

    def minimize(self, optimizer: opt.Optimizer, scale: float | None = None, found: bool | None = None) -> None:
        """found: also where it is False the updates have the flag."""
        with static.program_guard(self.main, self.startup):
            for key, name, value in (("grad_scale", "float32", scale), ("found_inf", "bool", found)):
                if value is not None:
                    optimizer._set_auxiliary_var(key, static.data(key, [1], name))
                    self.feed[key] = np.array([value], name)
            optimizer.minimize(self.loss)

    def trained(self, level: str | None = None, steps: int = STEPS, **values: Any) -> dict[str, np.ndarray]:
        """What the Scope holds after some steps; `values` are put there before."""
        strategy = static.BuildStrategy(verify="each_pass", **({level: True} if level else {}))
        program, exe, scope = static.CompiledProgram(self.main, strategy), static.Executor(), static.Scope()
        exe.run(self.startup, scope=scope)
        for name, value in values.items():
            scope.write(name, value)
        for step in range(steps):
            skips = {"found_inf": np.array([step == 1])} if steps == STEPS and "found_inf" in self.feed else {}
            exe.run(program, {**self.feed, **skips}, [], scope=scope)
        return {name: scope.read(name) for name in scope.list_names()}


def check_levels(net: Net, close: float = 0.0, **how: Any) -> None:
    expected = net.trained(**how)
    for level in LEVELS:
        found = net.trained(level, **how)
        for name, value in expected.items():
            apart = np.abs(value.astype(float) - found[name].astype(float)) / np.maximum(1, np.abs(value.astype(float)))
            assert np.max(apart, initial=0.0) <= close, f"{level}: {name} differs by {np.max(apart):.3g}"


def random_net(rng: np.random.Generator) -> tuple[Net, bool]:
    """A trained net, and whether 16-bit gradients decay, which lists and fused updates add up in float32."""

    def maybe(chance: float) -> bool:
        return bool(rng.random() < chance)

    def one_of(*given: Any) -> Any:
        return given[rng.integers(len(given))]

    shapes = [one_of(*SHAPES) for _ in range(rng.integers(1, 8))]
    wanted = one_of("float32", "float64", "float16", "bfloat16")
    dtypes = [wanted if maybe(0.8) else "float32" for _ in shapes]
    attrs: list[dict[str, Any]] = [
        {"learning_rate": one_of(1.0, 1.0, 0.5), "need_clip": maybe(0.85), "trainable": i == 0 or maybe(0.9),
         "regularizer": one_of(None, None, L2Decay(0.01), L1Decay(0.01))} for i, _ in enumerate(shapes)
    ]  # fmt: skip
    net, name = Net(shapes, dtypes, attrs), one_of(*OPTIMIZERS)
    settings: dict[str, Any] = {
        "multi_precision": maybe(0.5),
        "grad_clip": one_of(None, nn.ClipGradByGlobalNorm(0.5), nn.ClipGradByNorm(0.3), nn.ClipGradByValue(0.2)),
    }
    if name not in ("Lamb", "Lion", "AdamW"):
        settings["weight_decay"] = one_of(None, 0.01, L1Decay(0.01))
    if name == "AdamW":
        settings["apply_decay_param_fun"] = one_of(None, lambda name: name in ("p0", "p3"))
        settings["lr_ratio"] = one_of(None, lambda p: 0.5 if p.name == "p1" else 1.0)
    if name in ("Adam", "AdamW"):
        settings["amsgrad"] = maybe(0.4)
    trained = [p for p in net.params if p.trainable]
    if maybe(0.4) and len(trained) > 1:
        own = one_of({"learning_rate": 0.5}, {"grad_clip": nn.ClipGradByGlobalNorm(0.1)}, {})
        settings["parameters"] = [{"params": trained[:1]}, {"params": trained[1:], **own}]
    optimizer = getattr(opt, name)(learning_rate=0.1, **settings)
    net.minimize(optimizer, scale=0.25 if maybe(0.4) else None, found=False if maybe(0.4) else None)
    decays = settings.get("weight_decay") is not None or any(a["regularizer"] for a in attrs)
    return net, decays and "16" in wanted


def test_copied_updates_are_those_that_are_built_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    copied = list[UpdateTemplate]()
    own = UpdateTemplate.append
    monkeypatch.setattr(UpdateTemplate, "append", lambda self, *given: copied.append(self) or own(self, *given))

    def texts() -> list[str]:
        nets = []
        for seed in range(2 * PROGRAMS):
            with mg.base.unique_name.guard():
                nets.append(random_net(np.random.default_rng([seed, 2]))[0])
        with mg.base.unique_name.guard():  # of one shape, but for their attributes
            nets.append(Net([(7,)] * 6, ["float32"] * 6))
            ratios = {"p1": 0.5, "p4": -0.0, "p5": 0.0}
            decays = {"lr_ratio": lambda p: ratios.get(p.name, 1.0), "apply_decay_param_fun": lambda name: name != "p2"}
            nets[-1].minimize(opt.AdamW(0.1, **decays))
            nets.append(Net([(7,)] * 4, ["bfloat16"] * 4))
            nets[-1].minimize(opt.Adam(0.1, multi_precision=True))
        return [p.to_string().partition("\n")[2] for net in nets for p in (net.main, net.startup)]  # not their names

    found = texts()
    assert len(copied) > 20
    monkeypatch.setattr(UpdateTemplates, "of", lambda self, *what: None)
    assert found == texts()


@pytest.mark.parametrize("first", graded(range(0, PROGRAMS, 16), now=lambda first: first == 0))
def test_every_level_has_the_bits_of_the_for_loop(first):
    for seed in range(first, first + 16):
        net, rounds = random_net(np.random.default_rng(seed))
        try:
            check_levels(net, 1e-2 if rounds else 0.0)
        except AssertionError as problem:
            pytest.fail(f"seed {seed}: {problem}")


@pytest.mark.parametrize("name", ["SGD", "AdamW", "Lamb"])
def test_numbers_of_float64_meet_parameters_of_one_element(name):
    """A list's partner of the same shape may be of another type."""
    net = Net([(1,), (3, 5), (1,)], ["float32"] * 3)
    net.minimize(getattr(opt, name)(learning_rate=0.1))
    check_levels(net, steps=20)


@pytest.mark.parametrize("clip", [None, nn.ClipGradByGlobalNorm(1e3)])
def test_a_gradient_is_scaled_before_it_is_clipped_and_decays(clip):
    net = Net([(3, 5), (1,), ()], ["float32"] * 3)
    net.minimize(opt.SGD(0.5, weight_decay=0.125, grad_clip=clip), scale=2.0**-12)
    for i in range(3):
        net.feed[f"x{i}"] *= 2.0**12
    start = net.trained(steps=0)
    for level in (None, *LEVELS):
        found = net.trained(level, steps=1)
        for i in range(3):
            p, g = start[f"p{i}"].astype(float), net.feed[f"x{i}"].astype(float) * 2.0**-12
            np.testing.assert_allclose(found[f"p{i}"], p - 0.5 * (g + 0.125 * p), rtol=1e-6, atol=1e-7)


def test_decay_does_not_join_an_update_that_scales_its_gradient():
    """Whoever emits operators may add decay to the gradient first; the update scales the sum."""
    net = Net([(3, 5), (7,)], ["float32"] * 2)
    with static.program_guard(net.main, net.startup):
        scale = static.data("scale", [1])
        net.feed["scale"] = np.array([0.25], "float32")
        optimizer = opt.SGD(0.5)
        optimizer._set_auxiliary_var("grad_scale", scale)
        pairs = optimizer.backward(net.loss)
        optimizer.apply_gradients([(p, L2Decay(0.5)(p, g, g.block)) for p, g in pairs])
    start = net.trained(steps=0)
    for level in (None, *LEVELS):
        found = net.trained(level, steps=1)
        for i in range(2):
            p, g = start[f"p{i}"].astype(float), net.feed[f"x{i}"].astype(float)
            np.testing.assert_allclose(found[f"p{i}"], p - 0.5 * 0.25 * (g + 0.5 * p), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("level", [None, *LEVELS])
def test_a_step_that_found_inf_keeps_a_parameter_that_differs_from_its_copy(level):
    """Such as weights that were loaded without their float32 copies."""
    net = Net([(3, 5), (7,)], ["bfloat16"] * 2)
    net.minimize(opt.Momentum(0.1, multi_precision=True), found=True)
    loaded = np.full((3, 5), 3.0, as_dtype("bfloat16"))
    found = net.trained(level, steps=1, p0=loaded.copy())
    np.testing.assert_array_equal(found["p0"], loaded)
