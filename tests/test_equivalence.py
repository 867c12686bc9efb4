"""Random programs compute the same with the passes off and on, and the comparison sees wrong rewrites."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fuzz import REASONS, Different, Outcome, check, failure, passed, shrink
from random_programs import random_program

from minigraph.ir.graph import Graph
from minigraph.ops.gemm_epilogue import fused_gemm_epilogue
from minigraph.passes import rule as engine
from minigraph.passes.cache import ActivationCache
from minigraph.passes.fuse_gemm_epilogue import Linear, LinearGelu, LinearRelu, ReluGradLinearGrad
from minigraph.passes.rule import GraphBuilder

PROGRAMS, CHUNK = 2000, 100
WITHIN = 300  # programs in which a planted defect must be seen


@pytest.mark.parametrize("first", range(0, PROGRAMS, CHUNK))
def test_passes_change_no_result(first):
    fired = Outcome()
    for seed in range(first, first + CHUNK):
        try:
            outcome = check(random_program(seed))
        except Different as problem:
            pytest.fail(f"seed {seed}: {problem}; `python tests/fuzz.py 1 --seed {seed}` shows the program")
        fired.applied.update(set(outcome.applied))
    for rule, share in [("Linear", 50), ("LinearRelu", 40), ("LinearGelu", 40),
                        ("ReluGradLinearGrad", 12), ("GeluGradLinearGrad", 12)]:  # fmt: skip
        assert fired.applied[rule] >= share, f"{rule} fired in {fired.applied[rule]} of {CHUNK} programs"


def test_every_refusal_occurs():
    """Of the engine and of the rule; a reason that REASONS does not know is a new one: add it."""
    total = Outcome()
    for seed in range(PROGRAMS):
        total.add(passed(random_program(seed))[1])
    assert {reason: total.refused[reason] for reason in REASONS if not total.refused[reason]} == {}
    assert total.refused.keys() == REASONS.keys()


# planted defects: each is a rewrite rule or engine that somebody could have written


def _inner_without(monkeypatch: pytest.MonkeyPatch, fact: str) -> None:
    """The engine's check of inner values, deaf to one refusal."""
    original = engine.require

    def require(condition: object, reason: str) -> None:
        original(condition or fact in reason, reason)

    monkeypatch.setattr(engine, "require", require)


def fetched_values_are_not_checked(patch):
    _inner_without(patch, "is fetched, ")


def other_readers_are_not_checked(patch):
    _inner_without(patch, "is also read by")


def _check_without(patch: pytest.MonkeyPatch, fact: str) -> None:
    original = Linear.check.__globals__["require"]

    def require(condition: object, reason: str) -> None:
        original(condition or fact in reason, reason)

    patch.setitem(Linear.check.__globals__, "require", require)


def axis_is_ignored(patch):
    _check_without(patch, "added along axis")


def residual_is_a_bias(patch):
    """Like Paddle's: any second operand will do; the kernel broadcasts it."""

    def check(self, X, Y, Bias, *, trans_x, **_):
        engine.require(X.type.ndim >= 2 and X.type.is_float, "X")
        engine.require(Y.type.ndim == 2 and not (trans_x and X.type.ndim > 2), "Y")

    patch.setattr(Linear, "check", check)
    infer = fused_gemm_epilogue.infer_function

    def flat(X, Y, Bias, **attrs):
        columns = Y.shape[0 if attrs["trans_y"] else 1]
        return infer(X, Y, Bias.with_shape((columns,)), **attrs)

    patch.setattr(fused_gemm_epilogue, "infer_function", flat)


def _rewrite(patch: pytest.MonkeyPatch, rules: tuple[type, ...], change: Callable[..., None]) -> None:
    """Let `change(bound arguments)` spoil what the rules' rewrite emits."""
    for each in rules:
        original = each.rewrite

        def rewrite(self, g, *args, _original=original, **bound):
            change(bound)
            return _original(self, g, *args, **bound)

        patch.setattr(each, "rewrite", rewrite)


def trans_y_is_swapped_where_both_fit(patch):
    def change(bound):
        y = bound["Y"].type.shape
        bound["trans_y"] ^= y[0] == y[1]

    _rewrite(patch, (Linear,), change)


def trans_x_is_forgotten_where_both_fit(patch):
    def change(bound):
        x = bound["X"].type.shape
        bound["trans_x"] &= x[0] != x[-1]

    _rewrite(patch, (Linear,), change)


def erf_becomes_tanh(patch):
    def change(bound):
        bound["approximate"] = True

    _rewrite(patch, (LinearGelu,), change)


def gelu_slope_takes_the_other_form(patch):
    def change(bound):
        if "approximate" in bound:
            bound["approximate"] ^= True

    _rewrite(patch, (ReluGradLinearGrad,), change)


def bias_of_another_layer(patch):
    latest: dict[int, Any] = {}

    def change(bound):
        bias = bound["Bias"]
        other = latest.get(bias.type.shape[0])
        latest[bias.type.shape[0]] = bias
        if other is not None and other.graph is bias.graph and other.producer is None:
            bound["Bias"] = other

    _rewrite(patch, (Linear,), change)


def reserve_space_of_another_layer(patch):
    reserve = ActivationCache.reserve
    known: list[Any] = []

    def wrong(self, activation_out):
        right = reserve(self, activation_out)
        known.append(right)
        return next(r for r in known if r.graph is self.graph and r.type == right.type)

    patch.setattr(ActivationCache, "reserve", wrong)


def activation_is_dropped(patch):
    patch.setattr(LinearRelu, "activation", "none")


def reserve_space_that_nobody_reads(patch):
    emit = GraphBuilder.emit

    def greedy(self, op_type, *args, **kwargs):
        if kwargs.get("activation") == "gelu":
            kwargs["needs"] = ["ReserveSpace"]
        return emit(self, op_type, *args, **kwargs)

    patch.setattr(GraphBuilder, "emit", greedy)


def _gradient(patch: pytest.MonkeyPatch, change: Callable[..., Any]) -> None:
    original = fused_gemm_epilogue.grad_function
    patch.setattr(fused_gemm_epilogue, "grad_function", change(original))
    original_parameters = list(fused_gemm_epilogue.grad_parameters)
    patch.setitem(fused_gemm_epilogue.__dict__, "grad_parameters", tuple(original_parameters))


def bias_gradient_is_dropped(patch):
    def change(original):
        def grad(g, *kept, **attrs):
            dx, dy, dbias = original(g, *kept, **attrs)
            return dx, dy, g.fill_any_like(dbias, value=0.0) if dbias is not None else None

        return grad

    _gradient(patch, change)


def relu_gradient_is_dropped(patch):
    def change(original):
        def grad(g, X, Y, Bias, Out, ReserveSpace, Out_grad, *, activation, **attrs):
            activation = "none" if activation == "relu" else activation
            return original(g, X, Y, Bias, Out, ReserveSpace, Out_grad, activation=activation, **attrs)

        return grad

    _gradient(patch, change)


def needed_gradient_of_x_is_forgotten(patch):
    def change(original):
        def grad(g, *kept, **attrs):
            dx, dy, dbias = original(g, *kept, **attrs)
            return (None, dy, dbias) if dy is not None else (dx, dy, dbias)

        return grad

    _gradient(patch, change)
    patch.setattr(engine._Rewrite, "_check_results", lambda self, new, old: None)
    _inner_without(patch, "gives no gradient of")
    original = engine._Rewrite._differentiate

    def lenient(self, g, emitted, results, incoming, outgoing):
        for v in [v for v in outgoing if v in {x for op in emitted for x in op.inputs["X"]}]:
            if len(outgoing) > 1:
                del outgoing[v]
        return original(self, g, emitted, results, incoming, outgoing)

    patch.setattr(engine._Rewrite, "_differentiate", lenient)


def gradient_of_an_inner_value_is_taken_for_that_of_the_result(patch):
    _inner_without(patch, "is the gradient of an inner value")


def second_gradient_is_ignored(patch):
    _inner_without(patch, "gradients flow into")


def updates_in_place_are_ignored(patch):
    patch.setattr(Graph, "order_problem", lambda self, rank, reads: None)


PLANTED = [
    fetched_values_are_not_checked, other_readers_are_not_checked, axis_is_ignored, residual_is_a_bias,
    trans_y_is_swapped_where_both_fit, trans_x_is_forgotten_where_both_fit, erf_becomes_tanh,
    gelu_slope_takes_the_other_form, bias_of_another_layer, reserve_space_of_another_layer, activation_is_dropped,
    reserve_space_that_nobody_reads, bias_gradient_is_dropped, relu_gradient_is_dropped,
    needed_gradient_of_x_is_forgotten, gradient_of_an_inner_value_is_taken_for_that_of_the_result,
    second_gradient_is_ignored, updates_in_place_are_ignored,
]  # fmt: skip


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_planted_defect_is_seen(plant, monkeypatch):
    plant(monkeypatch)
    assert next(_failures(), None) is not None, f"{WITHIN} programs did not show it"


def test_a_failing_program_is_shrunk(monkeypatch):
    activation_is_dropped(monkeypatch)
    seed = next(s for s in range(WITHIN) if failure(s) and random_program(s).layers > 3)
    case = shrink(seed)
    with pytest.raises(Different):
        check(case)
    assert len(case.program.ops) < len(random_program(seed).program.ops)
    assert sum("relu" in word for word in case.description) == 1


def test_programs_depend_on_the_seed_only():
    first, again, other = (random_program(seed) for seed in (5, 5, 6))
    assert str(first.program) == str(again.program) != str(other.program)
    assert first.fetches == again.fetches and first.description == again.description
    assert all((again.feeds[name] == array).all() for name, array in first.feeds.items())


def _failures() -> Iterator[str]:
    for seed in itertools.islice(itertools.count(), WITHIN):
        try:
            check(random_program(seed))
        except Different as problem:
            yield f"seed {seed}: {problem}"
