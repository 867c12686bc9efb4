"""Optimizers against loops written from their formulas and against Paddle; names, order and errors."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import minigraph.optimizer as opt
from minigraph import regularizer
from minigraph.errors import AttrError, KernelError, MinigraphError, ProgramError
from minigraph.nn import clip
from minigraph.optimizer import lr
from minigraph.program import Program, program_guard, unique_name
from minigraph.program.builder import Builder
from minigraph.program.scope import Scope, scope_guard
from minigraph.regularizer import L1Decay, L2Decay
from minigraph.runtime.executor import Executor

RNG = np.random.default_rng(5)
X, Y = RNG.normal(size=(8, 3)), RNG.normal(size=(8, 2))
START = {"w": RNG.normal(size=(3, 2)), "b": RNG.normal(size=(2,)), "s": np.array(0.7)}
STEPS = 20


def build(optimizer=None, dtype="float64", start=START, **attrs):
    """mean((s * (x @ w + b) - y)^2) and its update; attrs = {parameter: facts}. Without s where start has none."""
    net = SimpleNamespace(main=Program("main"), startup=Program("startup"), params={}, dtype=dtype)
    with program_guard(net.main, net.startup):
        g, g0 = Builder(net.main.global_block()), Builder(net.startup.global_block())
        x, y = (net.main.global_block().create_var(n, (8, k), dtype, is_data=True, stop_gradient=True)
                for n, k in (("x", 3), ("y", 2)))  # fmt: skip
        for name, value in start.items():
            net.params[name] = net.main.global_block().create_parameter(
                name, value.shape, dtype, **attrs.get(name, {})
            )
            own = net.startup.global_block().create_parameter(name, value.shape, dtype)
            g0.assign_value(shape=value.shape, dtype=dtype, values=value.ravel().tolist(), out={"Out": own})
        out = g.elementwise_add(g.matmul(x, net.params["w"]), net.params["b"])
        if "s" in start:
            out = g.elementwise_mul(out, net.params["s"])
        difference = g.elementwise_sub(out, y)
        net.loss = g.reduce_mean(g.elementwise_mul(difference, difference))
        if optimizer is not None:
            net.ops, net.params_grads = optimizer.minimize(net.loss)
    return net


def train(net, steps=STEPS, scheduler=None, x=X, y=Y):
    """Losses of each step and the parameters after the last."""
    exe, scope = Executor(), Scope()
    exe.run(net.startup, scope=scope)
    losses = []
    for _ in range(steps):
        feed = {"x": x.astype(net.dtype), "y": y.astype(net.dtype)}
        losses.append(exe.run(net.main, feed, [net.loss], scope=scope)[0])
        if scheduler is not None:
            scheduler.step()
    return np.array(losses), {name: scope.read(name) for name in net.params}


def gradients(p):
    out = X @ p["w"] + p["b"]
    d = 2 * (p["s"] * out - Y) / Y.size
    return {"w": p["s"] * X.T @ d, "b": p["s"] * d.sum(0), "s": (d * out).sum()}


def loop(update, prepare=lambda grads, params: grads, steps=STEPS):
    """`steps` updates in float64; update(t, name, p, g, state) returns the new parameter, t counts from 1."""
    params, state = {n: v.copy() for n, v in START.items()}, {n: {} for n in START}
    for t in range(1, steps + 1):
        grads = prepare(gradients(params), params)
        params = {n: update(t, n, params[n], grads[n], state[n]) for n in params}
    return params


def sgd(rate):
    return lambda t, name, p, g, s: p - (rate(t, name) if callable(rate) else rate) * g


def momentum(rate, mu, nesterov=False):
    def update(t, name, p, g, s):
        s["v"] = mu * s.get("v", 0) + g
        return p - rate * (g + mu * s["v"] if nesterov else s["v"])

    return update


def adam(rate, beta1=0.9, beta2=0.999, epsilon=1e-8, decay=0.0):
    """decay, rate: numbers or functions of the parameter's name."""

    def of(value, name):
        return value(name) if callable(value) else value

    def update(t, name, p, g, s):
        s["m"] = beta1 * s.get("m", 0) + (1 - beta1) * g
        s["v"] = beta2 * s.get("v", 0) + (1 - beta2) * g * g
        m, v = s["m"] / (1 - beta1**t), s["v"] / (1 - beta2**t)
        return p * (1 - of(rate, name) * of(decay, name)) - of(rate, name) * m / (np.sqrt(v) + epsilon)

    return update


def amsgrad(rate):
    def update(t, name, p, g, s):
        s["m"] = 0.9 * s.get("m", 0) + 0.1 * g
        s["v"] = 0.9 * s.get("v", 0) + 0.1 * g * g
        s["most"] = np.maximum(s.get("most", 0), s["v"])
        return p - rate * s["m"] / (1 - 0.9**t) / (np.sqrt(s["most"] / (1 - 0.9**t)) + 1e-8)

    return update


def adagrad(rate, start=0.0):
    def update(t, name, p, g, s):
        s["s"] = s.get("s", start) + g * g
        return p - rate * g / (np.sqrt(s["s"]) + 1e-6)

    return update


def adadelta(rate, rho):
    def update(t, name, p, g, s):
        s["a"] = rho * s.get("a", 0) + (1 - rho) * g * g
        u = g * np.sqrt((s.get("d", 0) + 1e-3) / (s["a"] + 1e-3))
        s["d"] = rho * s.get("d", 0) + (1 - rho) * u * u
        return p - rate * u

    return update


def rmsprop(rate, rho, mu=0.0, centered=False):
    def update(t, name, p, g, s):
        s["s"] = rho * s.get("s", 0) + (1 - rho) * g * g
        s["c"] = rho * s.get("c", 0) + (1 - rho) * g * centered
        s["v"] = mu * s.get("v", 0) + rate * g / np.sqrt(s["s"] - s["c"] ** 2 + 1e-6)
        return p - s["v"]

    return update


def adamax(rate):
    def update(t, name, p, g, s):
        s["m"] = 0.9 * s.get("m", 0) + 0.1 * g
        s["n"] = np.maximum(abs(g), 0.999 * s.get("n", 0) + 1e-8)
        return p - rate / (1 - 0.9**t) * s["m"] / s["n"]

    return update


def lion(rate, decay=0.0):
    def update(t, name, p, g, s):
        sign = np.sign(0.9 * s.get("m", 0) + 0.1 * g)
        s["m"] = 0.99 * s.get("m", 0) + 0.01 * g
        return p * (1 - rate * decay) - rate * sign

    return update


def lamb(rate, decay, adapt=True):
    """decay: a number or a function of the parameter's name."""

    def update(t, name, p, g, s):
        c = decay(name) if callable(decay) else decay
        s["m"] = 0.9 * s.get("m", 0) + 0.1 * g
        s["v"] = 0.999 * s.get("v", 0) + 0.001 * g * g
        r = s["m"] / (1 - 0.9**t) / (np.sqrt(s["v"] / (1 - 0.999**t)) + 1e-6) + c * p
        ratio = np.linalg.norm(p) / np.linalg.norm(r) if adapt and (c > 0 or adapt == "always") else 1.0
        return p - rate * ratio * r

    return update


def l2(c, names=("w", "b", "s")):
    return lambda grads, params: {n: g + c * params[n] * (n in names) for n, g in grads.items()}


def l1(c, names=("w", "b", "s")):
    return lambda grads, params: {n: g + c * np.sign(params[n]) * (n in names) for n, g in grads.items()}


def global_norm(limit, names=("w", "b", "s")):
    def prepare(grads, params):
        norm = np.sqrt(sum(np.sum(grads[n] ** 2) for n in names))
        assert norm > 0
        return {n: g * (limit / max(norm, limit)) if n in names else g for n, g in grads.items()}

    return prepare


def norm(limit):
    return lambda grads, params: {
        n: g * (limit / max(np.sqrt(np.sum(g**2)), limit)) for n, g in grads.items()
    }


def value(low, high):
    return lambda grads, params: {n: np.minimum(np.maximum(g, low), high) for n, g in grads.items()}


def then(first, second):
    return lambda grads, params: second(first(grads, params), params)


# name: (optimizer, facts of parameters, update of the loop, what the loop does to gradients first)
CASES = {
    "sgd": (lambda: opt.SGD(0.1), {}, sgd(0.1)),
    "sgd, L2 as a number": (lambda: opt.SGD(0.1, weight_decay=0.05), {}, sgd(0.1), l2(0.05)),
    "sgd, L2": (lambda: opt.SGD(0.1, weight_decay=L2Decay(0.05)), {}, sgd(0.1), l2(0.05)),
    "sgd, L1": (lambda: opt.SGD(0.1, weight_decay=L1Decay(0.05)), {}, sgd(0.1), l1(0.05)),
    "sgd, own regularizer": (
        lambda: opt.SGD(0.1, weight_decay=0.05), {"w": {"regularizer": L1Decay(0.2)}},
        sgd(0.1), then(l2(0.05, ("b", "s")), l1(0.2, ("w",))),
    ),
    "sgd, rate factor": (
        lambda: opt.SGD(0.1), {"w": {"learning_rate": 0.25}}, sgd(lambda t, n: 0.025 if n == "w" else 0.1)
    ),
    "sgd, global norm": (
        lambda: opt.SGD(0.1, grad_clip=clip.ClipGradByGlobalNorm(0.5)), {}, sgd(0.1), global_norm(0.5)
    ),
    "sgd, norm": (lambda: opt.SGD(0.1, grad_clip=clip.ClipGradByNorm(0.3)), {}, sgd(0.1), norm(0.3)),
    "sgd, value": (lambda: opt.SGD(0.1, grad_clip=clip.ClipGradByValue(0.2)), {}, sgd(0.1), value(-0.2, 0.2)),
    "sgd, two values": (
        lambda: opt.SGD(0.1, grad_clip=clip.ClipGradByValue(0.2, -0.1)), {}, sgd(0.1), value(-0.1, 0.2)
    ),
    "sgd, not clipped": (
        lambda: opt.SGD(0.1, grad_clip=clip.ClipGradByGlobalNorm(0.5)), {"w": {"need_clip": False}},
        sgd(0.1), global_norm(0.5, ("b", "s")),
    ),
    "sgd, clip before decay": (
        lambda: opt.SGD(0.1, grad_clip=clip.ClipGradByGlobalNorm(0.5), weight_decay=0.05), {},
        sgd(0.1), then(global_norm(0.5), l2(0.05)),
    ),
    "sgd, scheduler": (lambda: opt.SGD(lr.StepDecay(0.2, 4, 0.5)), {}, sgd(lambda t, n: 0.2 * 0.5 ** ((t - 1) // 4))),
    "sgd, scheduler and factor": (
        lambda: opt.SGD(lr.ExponentialDecay(0.2, 0.9)), {"b": {"learning_rate": 0.5}},
        sgd(lambda t, n: 0.2 * 0.9 ** (t - 1) * (0.5 if n == "b" else 1)),
    ),
    "momentum": (lambda: opt.Momentum(0.05, 0.8), {}, momentum(0.05, 0.8)),
    "momentum, nesterov": (lambda: opt.Momentum(0.05, 0.8, use_nesterov=True), {}, momentum(0.05, 0.8, True)),
    "momentum, L2": (lambda: opt.Momentum(0.05, weight_decay=0.05), {}, momentum(0.05, 0.9), l2(0.05)),
    "momentum, rescaled": (
        lambda: opt.Momentum(0.05, weight_decay=L1Decay(0.05), rescale_grad=0.5), {},
        momentum(0.05, 0.9), then(l1(0.05), lambda grads, params: {n: g / 2 for n, g in grads.items()}),
    ),
    "momentum, nesterov, clip": (
        lambda: opt.Momentum(0.05, use_nesterov=True, grad_clip=clip.ClipGradByNorm(0.3)), {},
        momentum(0.05, 0.9, True), norm(0.3),
    ),
    "adam": (lambda: opt.Adam(0.05), {}, adam(0.05)),
    "adam, betas": (
        lambda: opt.Adam(0.05, beta1=0.7, beta2=0.95, epsilon=1e-2), {}, adam(0.05, 0.7, 0.95, 1e-2)
    ),
    "adam, beta1 = beta2 = 0": (lambda: opt.Adam(0.05, 0.0, 0.0), {}, adam(0.05, 0.0, 0.0)),
    "adam, coupled decay": (lambda: opt.Adam(0.05, weight_decay=0.05), {}, adam(0.05), l2(0.05)),
    "adam, L1": (lambda: opt.Adam(0.05, weight_decay=L1Decay(0.05)), {}, adam(0.05), l1(0.05)),
    "adam, clip": (
        lambda: opt.Adam(0.05, grad_clip=clip.ClipGradByGlobalNorm(0.5)), {}, adam(0.05), global_norm(0.5)
    ),
    "adamw": (lambda: opt.AdamW(0.05, weight_decay=0.1), {}, adam(0.05, decay=0.1)),
    "adamw, some decay": (
        lambda: opt.AdamW(0.05, weight_decay=0.1, apply_decay_param_fun=lambda name: name == "w"), {},
        adam(0.05, decay=lambda n: 0.1 * (n == "w")),
    ),
    "adamw, own regularizer": (
        lambda: opt.AdamW(0.05, weight_decay=0.1), {"w": {"regularizer": L2Decay(0.2)}},
        adam(0.05, decay=0.1), l2(0.2, ("w",)),
    ),
    "adamw, rate factor": (
        lambda: opt.AdamW(0.05, weight_decay=0.1), {"b": {"learning_rate": 0.5}},
        adam(lambda n: 0.025 if n == "b" else 0.05, decay=0.1),
    ),
    "adamw, lr_ratio": (
        lambda: opt.AdamW(0.05, weight_decay=0.1, lr_ratio=lambda p: 0.5 if p.name == "b" else 1.0), {},
        adam(lambda n: 0.025 if n == "b" else 0.05, decay=0.1),
    ),
    "adamw, clip": (
        lambda: opt.AdamW(0.05, weight_decay=0.1, grad_clip=clip.ClipGradByValue(0.2)), {},
        adam(0.05, decay=0.1), value(-0.2, 0.2),
    ),
    "adam, amsgrad": (lambda: opt.Adam(0.3, beta2=0.9, amsgrad=True), {}, amsgrad(0.3)),
    "adagrad": (lambda: opt.Adagrad(0.1), {}, adagrad(0.1)),
    "adagrad, started": (lambda: opt.Adagrad(0.1, initial_accumulator_value=0.5), {}, adagrad(0.1, 0.5)),
    "adagrad, L2": (lambda: opt.Adagrad(0.1, weight_decay=0.05), {}, adagrad(0.1), l2(0.05)),
    "adadelta": (lambda: opt.Adadelta(0.5, 1e-3, 0.9), {}, adadelta(0.5, 0.9)),
    "rmsprop": (lambda: opt.RMSProp(0.02, 0.9), {}, rmsprop(0.02, 0.9)),
    "rmsprop, centered": (
        lambda: opt.RMSProp(0.02, 0.9, momentum=0.5, centered=True), {}, rmsprop(0.02, 0.9, 0.5, True)
    ),
    "adamax": (lambda: opt.Adamax(0.05), {}, adamax(0.05)),
    "lion": (lambda: opt.Lion(0.01), {}, lion(0.01)),
    "lion, decay": (lambda: opt.Lion(0.01, weight_decay=0.5), {}, lion(0.01, 0.5)),
    "lamb": (lambda: opt.Lamb(0.05, 0.1), {}, lamb(0.05, 0.1)),
    "lamb, no decay": (lambda: opt.Lamb(0.05, 0.0), {}, lamb(0.05, 0.0)),
    "lamb, always": (lambda: opt.Lamb(0.05, 0.0, always_adapt=True), {}, lamb(0.05, 0.0, "always")),
    "lamb, excluded": (
        lambda: opt.Lamb(0.05, 0.1, exclude_from_weight_decay_fn=lambda p: p.name == "b"), {},
        lamb(0.05, lambda n: 0.1 * (n != "b")),
    ),
    "sgd, groups": (
        lambda: opt.SGD(0.1, [{"params": ["w"], "learning_rate": 0.5, "weight_decay": 0.05}, {"params": ["b", "s"]}]),
        {}, sgd(lambda t, n: 0.05 if n == "w" else 0.1), l2(0.05, ("w",)),
    ),
    "sgd, groups clipped apart": (
        lambda: opt.SGD(0.1, [{"params": ["w"], "grad_clip": clip.ClipGradByGlobalNorm(0.3)}, {"params": ["b", "s"]}],
                        grad_clip=clip.ClipGradByGlobalNorm(0.5)), {},
        sgd(0.1), then(global_norm(0.3, ("w",)), global_norm(0.5, ("b", "s"))),
    ),
    "adamw, groups": (
        lambda: opt.AdamW(0.05, parameters=[{"params": ["w"], "weight_decay": 0.2}, {"params": ["b", "s"]}],
                          weight_decay=0.1), {},
        adam(0.05, decay=lambda n: 0.2 if n == "w" else 0.1),
    ),
    "momentum, groups": (
        lambda: opt.Momentum(0.05, 0.8, [
            {"params": ["w"], "momentum": 0.5, "use_nesterov": True}, {"params": ["b", "s"]}]), {},
        lambda t, n, p, g, s: momentum(0.05, *((0.5, True) if n == "w" else (0.8, False)))(t, n, p, g, s),
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_twenty_steps_follow_the_formulas(name, dtype):
    make, facts, update, *prepare = CASES[name]
    optimizer = make()
    net = build(optimizer, dtype, **facts)
    scheduler = optimizer.learning_rate if isinstance(optimizer.learning_rate, lr.LRScheduler) else None
    _, found = train(net, scheduler=scheduler)
    expected = loop(update, *prepare)
    tolerance = 1e-12 if dtype == "float64" else 1e-5
    for n in START:
        assert found[n].dtype == dtype
        np.testing.assert_allclose(found[n], expected[n], rtol=tolerance, atol=tolerance, err_msg=n)
        assert abs(found[n] - START[n]).max() > 1e-2


def test_every_case_differs_from_its_plain_optimizer():
    """An option that does nothing would not be seen by comparing a loop that does nothing either."""
    names = ("sgd", "momentum", "adam", "adagrad", "adadelta", "rmsprop", "adamax", "lion", "lamb")
    plain = {name: loop(CASES[name][2]) for name in names}
    for name, (_, _, update, *prepare) in CASES.items():
        if name not in plain:
            base = plain["adam" if name.startswith("adamw") else name.split(",")[0]]
            found = loop(update, *prepare)
            assert max(abs(found[n] - base[n]).max() for n in START) > 1e-6, name


# Paddle

PADDLE = json.loads((Path(__file__).parent / "fixtures" / "paddle_optimizers.json").read_text())


def decoded(name, value):
    if name == "apply_decay_param_fun":
        return lambda parameter: parameter in value
    if not isinstance(value, dict):
        return value
    ((cls, arguments),) = value.items()
    made = next(getattr(m, cls) for m in (regularizer, clip, lr) if hasattr(m, cls))
    if isinstance(arguments, dict):
        return made(**{k: decoded(k, v) for k, v in arguments.items()})
    return made(arguments)


@pytest.mark.parametrize("name", PADDLE["cases"])
def test_twenty_steps_equal_paddle(name):
    """To the last digits, but for float32 and for Paddle's rounding of Adam's betas to float32."""
    case = PADDLE["cases"][name]
    optimizer = getattr(opt, case["optimizer"])(**{k: decoded(k, v) for k, v in case["arguments"].items()})
    start = {"w": np.array(PADDLE["w"]), "b": np.array(PADDLE["b"])}
    facts = {k: decoded(k, v) for k, v in case["w_attr"].items()}
    net = build(optimizer, case["dtype"], start, w=facts)
    scheduler = optimizer.learning_rate if isinstance(optimizer.learning_rate, lr.LRScheduler) else None
    losses, params = train(net, 20, scheduler, np.array(PADDLE["x"]), np.array(PADDLE["y"]))
    tolerance = 1e-5 if case["dtype"] == "float32" else 2e-6 if "rounded" in name else 1e-11
    np.testing.assert_allclose(losses, case["losses"], rtol=tolerance)
    for n in start:
        np.testing.assert_allclose(params[n], case[n], rtol=tolerance, atol=tolerance)


# names and structure


def test_names_slots_and_order_are_those_of_paddle():
    with unique_name.guard():
        net = build(opt.Adam(0.1))
    assert [p.name for p, _ in net.params_grads] == ["w", "b", "s"]
    assert [g.name for _, g in net.params_grads] == ["w@GRAD", "b@GRAD", "s@GRAD"]
    assert [op.type for op in net.ops] == ["adam"] * 3
    assert [op.input("Param")[0] for op in net.ops] == ["b", "s", "w"]
    assert all(op.role == "optimize" for op in net.ops)
    first = net.ops[0]
    assert {slot: first.input(slot) for slot in first.input_names} == {
        "Param": ["b"], "Grad": ["b@GRAD"], "LearningRate": ["learning_rate_0"], "Moment1": ["b_moment1_0"],
        "Moment2": ["b_moment2_0"], "Beta1Pow": ["b_beta1_pow_acc_0"], "Beta2Pow": ["b_beta2_pow_acc_0"],
    }  # fmt: skip
    for slot in ("Param", "Moment1", "Moment2", "Beta1Pow", "Beta2Pow"):
        assert first.output(f"{slot}Out") == first.input(slot)
    states = [op.output("Out")[0] for op in net.startup.ops if op.type == "fill_constant"]
    assert states[:5] == ["learning_rate_0", "b_moment1_0", "b_moment2_0", "b_beta1_pow_acc_0", "b_beta2_pow_acc_0"]
    assert len(states) == 1 + 3 * 4
    for name in states:
        assert net.main.vars[name].persistable
        assert net.startup.vars[name].persistable
        assert net.main.vars[name].stop_gradient


def test_velocity_and_optimizer_names():
    with unique_name.guard():
        net = build(opt.Momentum(0.1, name="fast"))
    assert net.ops[0].input("Velocity") == ["b_fast_velocity_0"]


def test_clip_then_decay_then_update():
    net = build(opt.SGD(0.1, grad_clip=clip.ClipGradByGlobalNorm(1.0), weight_decay=0.1))
    types = [op.type for op in net.main.ops if op.role == "optimize"]
    assert types == [
        "squared_l2_norm", "squared_l2_norm", "squared_l2_norm", "sum", "fill_constant", "sqrt", "elementwise_max",
        "elementwise_div", "elementwise_mul", "elementwise_mul", "elementwise_mul",
        "scale", "sum", "scale", "sum", "scale", "sum", "sgd", "sgd", "sgd",
    ]  # fmt: skip


def test_one_scaled_rate_for_each_factor():
    facts = {"learning_rate": 0.5}
    net = build(opt.SGD(0.1), w=facts, b=facts)
    assert sum(op.type == "scale" for op in net.main.ops if op.role == "optimize") == 1


def test_test_clone_has_no_updates():
    net = build(opt.AdamW(0.1))
    assert not any("optimizer" in op.opdef.traits for op in net.main.clone(for_test=True).ops)


def test_parameters_and_frozen_parameters():
    net = build(opt.SGD(0.1, parameters=["w", "b"]), b={"trainable": False})
    assert [op.input("Param") for op in net.ops] == [["w"]]
    net = build()
    with program_guard(net.main, net.startup):
        ops, _ = opt.SGD(0.1, parameters=["w"]).minimize(net.loss, parameters=[net.params["s"]])
    assert [op.input("Param") for op in ops] == [["s"]]
    net = build()
    with program_guard(net.main, net.startup):
        ops, _ = opt.SGD(0.1).minimize(net.loss, no_grad_set={"s", net.params["b"]})
    assert [op.input("Param") for op in ops] == [["w"]]


def test_backward_and_apply_gradients_make_minimize():
    net, optimizer = build(), opt.Adam(0.05)
    with program_guard(net.main, net.startup):
        params_grads = optimizer.backward(net.loss)
        optimizer.apply_gradients([*params_grads, (net.params["w"], None)])
    _, found = train(net)
    _, expected = train(build(opt.Adam(0.05)))
    for n in START:
        np.testing.assert_array_equal(found[n], expected[n])


def test_two_optimizers_share_one_backward_and_keep_their_own_states():
    net, one, two = build(), opt.Momentum(0.1), opt.Adam(0.05)
    with unique_name.guard(), program_guard(net.main, net.startup):
        pairs = one.backward(net.loss)
        first = one.apply_gradients([pair for pair in pairs if pair[0].name == "w"])
        second = two.apply_gradients([pair for pair in pairs if pair[0].name != "w"])
    assert [op.input("LearningRate") for op in first + second] == [["learning_rate_0"], *[["learning_rate_1"]] * 2]
    _, found = train(net)
    by_sgd, by_adam = momentum(0.1, 0.9), adam(0.05)
    expected = loop(lambda t, n, *rest: (by_sgd if n == "w" else by_adam)(t, n, *rest))
    for n in START:
        np.testing.assert_allclose(found[n], expected[n], rtol=1e-12, atol=1e-12)


def test_states_have_free_names():
    with unique_name.guard():
        net = build(opt.Momentum(0.1))
        net.main.global_block().create_var("w_velocity_1")
        with program_guard(net.main, net.startup):
            ops = opt.Momentum(0.1).apply_gradients(net.params_grads)
    assert [op.input("Velocity") for op in ops] == [["b_velocity_1"], ["s_velocity_1"], ["w_velocity_2"]]


def test_startup_program_argument():
    net, other = build(), Program()
    opt.SGD(0.1).minimize(net.loss, startup_program=other)
    assert [op.output("Out")[0].split("_0")[0] for op in other.ops] == [other.ops[0].output("Out")[0].split("_0")[0]]
    assert other.ops[0].output("Out")[0].startswith("learning_rate_")


# the learning rate


def test_rate_type_follows_the_parameters():
    assert build(opt.SGD(0.1), "float64").ops[0].inputs["LearningRate"][0].dtype == "float64"
    assert build(opt.SGD(0.1), "float32").ops[0].inputs["LearningRate"][0].dtype == "float32"


def test_set_lr_before_and_after_startup():
    optimizer = opt.SGD(0.1)
    net = build(optimizer)
    name = net.ops[0].input("LearningRate")[0]
    exe = Executor()
    with scope_guard(Scope()) as _:
        exe.run(net.startup)
        optimizer.set_lr(0.25)
        assert optimizer.get_lr() == 0.25
        rate, = exe.run(net.main, {"x": X, "y": Y}, [name])
        assert rate == 0.25
        exe.run(net.startup)  # the plan that it made before must not come back
        rate, = exe.run(net.main, {"x": X, "y": Y}, [name])
        assert rate == 0.25
    optimizer = opt.SGD(0.1)
    optimizer.set_lr(0.5)
    net = build(optimizer)
    assert net.startup.ops[-1].attr("value") == 0.5


def test_scheduler_sets_the_rate_before_each_run():
    scheduler = lr.ExponentialDecay(0.5, 0.5)
    optimizer = opt.SGD(scheduler)
    net = build(optimizer)
    exe, scope = Executor(), Scope()
    exe.run(net.startup, scope=scope)
    rates = []
    for _ in range(3):
        rates.append(exe.run(net.main, {"x": X, "y": Y}, net.ops[0].input("LearningRate"), scope=scope)[0].item())
        scheduler.step()
    assert rates == [0.5, 0.25, 0.125]
    assert optimizer.get_lr() == 0.0625
    with pytest.raises(ProgramError, match="follows an LRScheduler"):
        optimizer.set_lr(0.1)


# errors


@pytest.mark.parametrize(("make", "named"), [
    (lambda: opt.SGD(-0.1), "learning_rate must be a number >= 0 and finite, is -0.1"),
    (lambda: opt.SGD(float("nan")), "learning_rate .* is nan"),
    (lambda: opt.SGD(float("inf")), "learning_rate .* is inf"),
    (lambda: opt.SGD("0.1"), "learning_rate .* is '0.1'"),
    (lambda: opt.SGD(True), "learning_rate .* is True"),
    (lambda: opt.SGD(None), "learning_rate .* is None"),
    (lambda: opt.SGD(0.1, weight_decay=-1), "weight_decay .* is -1"),
    (lambda: opt.AdamW(0.1, weight_decay=-1), "weight_decay .* is -1"),
    (lambda: opt.AdamW(0.1, apply_decay_param_fun=["w"]), "apply_decay_param_fun must be a function"),
    (lambda: opt.AdamW(0.1, lr_ratio=0.5), "lr_ratio must be a function"),
    (lambda: opt.Momentum(0.1, 1.0), r"momentum must be a number in \[0, 1\), is 1.0"),
    (lambda: opt.Momentum(0.1, use_nesterov=2), "use_nesterov must be a bool"),
    (lambda: opt.Adam(0.1, beta1=1.0), r"beta1 must be a number in \[0, 1\), is 1.0"),
    (lambda: opt.Adam(0.1, beta2=-0.1), "beta2 .* is -0.1"),
    (lambda: opt.Adam(0.1, epsilon=0), "epsilon must be > 0, is 0"),
    (lambda: opt.SGD(0.1, grad_clip=1.0), "grad_clip must be a ClipGradBy"),
    (lambda: opt.SGD(0.1, parameters=[{"params": "w"}]), "params must be a list of Parameters or names"),
    (lambda: opt.SGD(0.1, parameters=[{"parameters": ["w"]}]), "a group of parameters has the key 'params'"),
    (lambda: opt.SGD(0.1, parameters=[{"params": ["w"], "beta1": 0.5}]), "group setting 'beta1' does not exist"),
    (lambda: opt.Adam(0.1, parameters=[{"params": ["w"], "beta1": 1.5}]), r"beta1 must be a number in \[0, 1\)"),
    (lambda: opt.SGD(0.1, parameters=[{"params": ["w"], "learning_rate": -1}]), "learning_rate .* is -1"),
    (lambda: opt.SGD(0.1, parameters=["w", "b", "w"]), "parameter w is listed twice"),
    (lambda: opt.SGD(0.1, parameters=[{"params": ["w"]}, {"params": ["w"]}]), "parameter w is listed twice"),
    (lambda: opt.RMSProp(0.1, rho=1.0), r"rho must be a number in \[0, 1\)"),
    (lambda: opt.RMSProp(0.1, centered=2), "centered must be a bool"),
    (lambda: opt.Adagrad(0.1, epsilon=0.0), "epsilon must be > 0"),
    (lambda: opt.Adagrad(0.1, initial_accumulator_value=-1), "initial_accumulator_value .* is -1"),
    (lambda: opt.Lamb(0.1, lamb_weight_decay=-1), "lamb_weight_decay .* is -1"),
    (lambda: opt.Lamb(0.1, exclude_from_weight_decay_fn=3), "exclude_from_weight_decay_fn must be a function"),
    (lambda: opt.Lion(0.1, weight_decay=float("nan")), "weight_decay .* is nan"),
    (lambda: opt.Adam(0.1, amsgrad=2), "amsgrad must be a bool"),
    (lambda: opt.SGD(0.1, parameters="w"), "parameters must be a list of Parameters or names"),
    (lambda: L2Decay(-0.1), "coeff must be a number >= 0, is -0.1"),
    (lambda: L1Decay("a"), "coeff must be a number >= 0, is 'a'"),
])  # fmt: skip
def test_bad_hyperparameters_are_named(make, named):
    with pytest.raises(AttrError, match=named):
        make()


def test_minimize_twice_is_refused_and_changes_nothing():
    optimizer = opt.SGD(0.1)
    net = build(optimizer)
    before = str(net.main)
    with pytest.raises(ProgramError, match="this SGD updates program main already"):
        optimizer.minimize(net.loss, net.startup)
    assert str(net.main) == before
    build(optimizer)  # another program is another matter


class Forgetful(opt.Optimizer):
    """A rule that computes and does not write."""

    def append_update(self, g, param, grad, lr):
        return param - grad * lr


class Narrow(opt.Optimizer):
    """A rule whose state has a data type for a type."""

    def append_update(self, g, param, grad, lr):
        self.state(param, "moment", type="float32")


class Unwritten(opt.Optimizer):
    """A rule without append_update."""


@pytest.mark.parametrize(("rule", "fact"), [
    (Forgetful, "append_update of Forgetful writes no parameter and no state"),
    (Unwritten, "Unwritten has no append_update"),
    (Narrow, "type of [bsw]_moment must be a TensorType, is 'float32'"),
])  # fmt: skip
def test_a_rule_of_a_user_that_cannot_update_is_refused(rule, fact):
    net = build()
    before = str(net.main)
    with pytest.raises(MinigraphError, match=fact) as caught:
        rule(0.1).minimize(net.loss, net.startup)
    assert "test_optimizer.py" in str(caught.value) and str(net.main) == before


def test_an_argument_that_a_rule_of_a_user_does_not_have_is_named():
    fact = "Forgetful: argument 'weight_decy' does not exist[^?]*did you mean 'weight_decay'"
    with pytest.raises(AttrError, match=fact):
        Forgetful(0.1, weight_decy=0.1)


def test_a_parameter_of_another_program_is_refused():
    net, other = build(), build()
    before = str(net.main)
    with pytest.raises(ProgramError, match="parameter w belongs to program main, the loss to main"):
        opt.SGD(0.1, parameters=[other.params["w"]]).minimize(net.loss, net.startup)
    grad = opt.SGD(0.1).backward(net.loss)[0][1]
    with pytest.raises(ProgramError, match="parameters w and w belong to two programs"):
        opt.SGD(0.1).apply_gradients([(net.params["w"], grad), (other.params["w"], grad)])
    with pytest.raises(AttrError, match=r"parameters must be a list of Parameters or names, holds {'params'"):
        opt.SGD(0.1, parameters=[{"params": ["w"]}, "b"])
    assert len(str(net.main)) > len(before)  # the gradients, and no update
    assert not any(op.type == "sgd" for op in net.main.ops)


def test_float32_copies_start_as_the_parameters_and_keep_small_steps():
    """Steps that float16 would round away add up in the copies."""
    with unique_name.guard():
        net = build(opt.SGD(1e-5, multi_precision=True), "float16", w={"trainable": True})
    exe, scope = Executor(), Scope()
    exe.run(net.startup, scope=scope)
    np.testing.assert_array_equal(scope.read("w_fp32_master_0"), scope.read("w").astype(np.float32))
    for _ in range(200):
        exe.run(net.main, {"x": X.astype("float16"), "y": Y.astype("float16")}, [], scope=scope)
    copy = scope.read("w_fp32_master_0")
    np.testing.assert_array_equal(scope.read("w"), copy.astype(np.float16))
    rough = train(build(opt.SGD(1e-5), "float16"), 200)[1]["w"]
    np.testing.assert_array_equal(rough[abs(rough) > 0.5], START["w"].astype(np.float16)[abs(rough) > 0.5])
    assert (copy != START["w"].astype(np.float16).astype(np.float32)).all()
    lonely = build(None, "float16")
    with pytest.raises(ProgramError, match="the startup program does not initialise"):
        opt.SGD(0.1, multi_precision=True).minimize(lonely.loss, Program("empty"))


def test_auxiliary_variables():
    net = build()
    with program_guard(net.main, net.startup):
        optimizer = opt.Adam(0.1)
        with pytest.raises(AttrError, match="there is no auxiliary variable 'found'"):
            optimizer._set_auxiliary_var("found", net.loss)
        scale = Builder(net.main.global_block()).fill_constant(shape=(1,), value=0.5, dtype="float64")
        optimizer._set_auxiliary_var("grad_scale", scale)
        optimizer.minimize(net.loss)
    _, found = train(net)
    expected = loop(adam(0.1), lambda grads, params: {n: g / 2 for n, g in grads.items()})
    for n in START:
        np.testing.assert_allclose(found[n], expected[n], rtol=1e-12, atol=1e-12)


def test_loss_without_parameters_is_refused():
    with pytest.raises(ProgramError, match="depends on no trainable parameter"):
        build(opt.SGD(0.1), w={"trainable": False}, b={"trainable": False}, s={"trainable": False})
    net = build()
    with pytest.raises(ProgramError, match="no gradient to apply"):
        opt.SGD(0.1).apply_gradients([(net.params["w"], None)])
    with pytest.raises(ProgramError, match="loss must be a variable"):
        opt.SGD(0.1).minimize(3.0)


def test_a_parameter_with_two_gradients_is_refused():
    net = build()
    with program_guard(net.main, net.startup):
        pairs = opt.SGD(0.1).backward(net.loss)
        with pytest.raises(ProgramError, match="parameter w has two gradients"):
            opt.SGD(0.1).apply_gradients([*pairs, pairs[0]])


def test_low_precision_parameters_have_float32_states_and_no_master_weights():
    net = build(opt.Adam(0.05), "float16")
    assert net.ops[0].inputs["Moment1"][0].dtype == "float32"
    _, found = train(net)
    _, expected = train(build(opt.Adam(0.05)))
    for n in START:
        np.testing.assert_allclose(found[n], expected[n], atol=0.02)
    net = build(opt.Adam(0.05, multi_precision=True), "float32")  # no copies where they would be the same
    assert not any("master" in name for name in net.main.vars)


@pytest.mark.parametrize(("slot", "shape", "dtype", "fact"), [
    ("Grad", (3,), "float64", r"Param is f64\[4\], Grad is f64\[3\]"),
    ("Grad", (4,), "float32", "Param is float64, Grad is float32"),
    ("LearningRate", (2,), "float64", r"LearningRate must have one element, is f64\[2\]"),
    ("LearningRate", (1,), "int64", "LearningRate must be a float"),
    ("Moment1", (1,), "float64", r"Moment1 must be f64\[4\], is f64\[1\]"),
    ("Moment2", (4,), "float32", "Moment2 must be float64, is float32"),
    ("Beta1Pow", (4,), "float64", "Beta1Pow must have one element"),
    ("Beta2Pow", (1,), "float32", "Beta2Pow must be float64, is float32"),
])  # fmt: skip
def test_update_operators_refuse_what_does_not_fit(slot, shape, dtype, fact):
    types = {
        "Param": ((4,), "float64"), "Grad": ((4,), "float64"), "LearningRate": ((1,), "float64"),
        "Moment1": ((4,), "float64"), "Moment2": ((4,), "float64"), "Beta1Pow": ((1,), "float64"),
        "Beta2Pow": ((1,), "float64"),
    } | {slot: (shape, dtype)}  # fmt: skip
    block = Program().global_block()
    with pytest.raises(MinigraphError, match=fact):
        Builder(block).adam(**{n: block.create_var(n, s, d, persistable=True) for n, (s, d) in types.items()})


def test_a_read_only_state_is_an_error_that_names_the_operator():
    net = build(opt.SGD(0.1))
    exe, scope = Executor(), Scope()
    exe.run(net.startup, scope=scope)
    scope.arrays["w"].flags.writeable = False
    with pytest.raises(KernelError, match="sgd"):
        exe.run(net.main, {"x": X, "y": Y}, [], scope=scope)


@pytest.mark.parametrize("make", [lambda: opt.SGD(0.1), lambda: opt.Momentum(0.1), lambda: opt.AdamW(0.1)])
def test_parameters_and_states_are_updated_in_place(make):
    net = build(make())
    exe, scope = Executor(), Scope()
    exe.run(net.startup, scope=scope)
    arrays, values = dict(scope.arrays), {n: a.copy() for n, a in scope.arrays.items()}
    for _ in range(3):
        exe.run(net.main, {"x": X, "y": Y}, [net.loss], scope=scope)
    for name, array in arrays.items():
        assert scope.arrays[name] is array, name
        assert "learning_rate" in name or not np.array_equal(array, values[name]), name


class Named(opt.SGD):
    """Its updates stand in a name scope for each parameter."""

    def append_update(self, g, param, grad, lr):
        with g.block.program.in_scope(f"{param.name}/"):
            super().append_update(g, param, grad, lr)


def twins(optimizer):
    """The updates of two parameters of one type."""
    main, startup = Program(), Program()
    with program_guard(main, startup), unique_name.guard():
        g = Builder(main.global_block())
        params = [main.global_block().create_parameter(n, (2,), "float32") for n in "ab"]
        optimizer.minimize(g.reduce_sum(g.elementwise_mul(*params)))
    return [op for op in main.ops if "optimizer" in op.opdef.traits]


def test_updates_keep_what_tells_them_apart():
    """Those that can be told apart by their variables only are checked once; name scopes and attributes are theirs."""
    assert [op.scope_name for op in twins(Named(0.1))] == ["a/", "b/"]
    decays = twins(opt.AdamW(0.1, apply_decay_param_fun=lambda name: name == "b"))
    assert [op.attrs["with_decay"] for op in decays] == [False, True]


def test_an_update_like_another_has_variables_and_attributes_of_its_own():
    one, other = twins(opt.Momentum(0.1))
    assert {v.name for v in one.input_vars} & {v.name for v in other.input_vars} == {"learning_rate_0"}
    assert [v.name for v in other.output_vars] == ["b", "b_velocity_0"]
    one.attrs["mu"] = 0.5
    assert other.attrs["mu"] == 0.9
    assert one.number != other.number and one.role == other.role == "optimize"
