"""Random programs compute the same with the passes off and on, and the comparison sees wrong rewrites."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from minigraph.ir.graph import Graph, OpNode
from minigraph.ops.matmul.gemm_epilogue import fused_gemm_epilogue
from minigraph.passes import common_subexpression_elimination as common
from minigraph.passes import constant_folding as constants
from minigraph.passes import dead_code_elimination as dead_code
from minigraph.passes import fuse_matmul_transpose as products
from minigraph.passes import remove_redundant_cast as casts
from minigraph.passes import remove_redundant_transpose as transposes
from minigraph.passes.engine import drafting, redirect
from minigraph.passes.engine import replacement as engine
from minigraph.passes.engine.drafting import Drafting
from minigraph.passes.engine.rule import GraphBuilder
from minigraph.passes.fuse_activation_grad import ActivationCache, ReluGradMatmulGrad
from minigraph.passes.fuse_gemm_epilogue import (
    ActivationGrad,
    LinearBias,
    LinearEpilogue,
    LinearGelu,
    LinearRelu,
)
from minigraph.passes.fuse_matmul_transpose import TransposedX
from tests.fuzz import FLAGS, REASONS, SELDOM, Different, Flags, Outcome, check, failure, shrink
from tests.support.random_programs import known_program, random_program

GEMM: Flags = ("fuse_gemm_epilogue",)
PROGRAMS = 500  # `make fuzz` goes on from there
WITHIN = 300  # programs in which a planted defect must be seen
SHOWN = {  # where to look first: it saves time, no more
    "axis_is_ignored": 130, "residual_is_a_bias": 130, "trans_x_is_forgotten_where_both_fit": 14,
    "second_gradient_is_ignored": 164, "constants_lose_minus_zero": 177, "constants_are_all_alike": 168,
    "versions_are_not_told_apart": 153, "attributes_are_not_compared": 22, "every_operator_is_commutative": 161,
    "fetched_repetitions_are_removed": 50, "every_type_holds_every_value": 38, "casts_keep_the_type_between": 38,
    "updates_between_a_pair_are_ignored": 46, "transposes_are_set_not_toggled": 140, "any_axes_may_move": 69,
    "relu_is_forgotten_below_a_product": 144, "mask_of_what_is_not_positive": 144,
}  # fmt: skip
SHARES = {  # of PROGRAMS each rule must change at least so many
    "LinearBias": 250, "LinearRelu": 175, "LinearGelu": 150, "ReluGradLinearGrad": 60, "GeluGradLinearGrad": 60,
    "DeadCode": 75, "Constant": 150, "CommonSubexpression": 40, "Transposes": 25, "Casts": 10, "TransposedY": 10,
    "ReluGradMatmulGrad": 5, "GradAccumulation": 50, "LinearCrossEntropy": 10, "Group": 250, "JoinNorms": 20,
    "FuseUpdates": 150, "ForeachUpdates": 75, "NormAgain": 10,
}  # fmt: skip


def checked(seeds: Iterable[int]) -> Outcome:
    fired = Outcome()
    for seed in seeds:
        try:
            outcome = check(known_program(seed))
        except Different as problem:
            pytest.fail(f"seed {seed}: {problem}; `python -m tests.fuzz 1 --seed {seed}` shows the program")
        fired.applied.update(set(outcome.applied))
        fired.refused += outcome.refused
    assert fired.refused.keys() <= (REASONS | SELDOM).keys(), "new reasons: add them"
    return fired


def test_passes_change_no_result():
    """Some programs, and those that show the defects planted below; of second_gradient_is_ignored it is 320 here.

    Of norms computed again 34.
    """
    assert checked(sorted({*range(30), *SHOWN.values(), 34, 320})).applied.keys() >= SHARES.keys()


@pytest.mark.sweep
def test_passes_change_no_result_of_many_programs():
    fired = checked(range(PROGRAMS))
    for rule, share in SHARES.items():
        assert fired.applied[rule] >= share, f"{rule} fired in {fired.applied[rule]} of {PROGRAMS} programs"
    assert fired.refused.keys() >= REASONS.keys(), "a refusal does not occur"


# planted defects: each is a rewrite rule or engine that somebody could have written


def _inner_without(monkeypatch: pytest.MonkeyPatch, fact: str) -> None:
    """The engine's check of inner values, deaf to one refusal."""
    original = engine.refuse_unless

    def refuse_unless(condition: object, reason: str, *about: object) -> None:
        original(condition or fact in (reason.format(*about) if about else reason), reason, *about)

    for module in (engine, drafting):
        monkeypatch.setattr(module, "refuse_unless", refuse_unless)


def fetched_values_are_not_checked(patch):
    _inner_without(patch, "is fetched, ")


def other_readers_are_not_checked(patch):
    _inner_without(patch, "is also read by")


def _check_without(patch: pytest.MonkeyPatch, fact: str) -> None:
    original = LinearBias.check.__globals__["refuse_unless"]

    def refuse_unless(condition: object, reason: str, *about: object) -> None:
        original(condition or fact in (reason.format(*about) if about else reason), reason, *about)

    patch.setitem(LinearBias.check.__globals__, "refuse_unless", refuse_unless)


def axis_is_ignored(patch):
    _check_without(patch, "added along axis")


def residual_is_a_bias(patch):
    """Like Paddle's: any second operand will do; the kernel broadcasts it."""

    def check(self, X, Y, Bias, *, trans_x, **_):
        engine.refuse_unless(X.type.ndim >= 2 and X.type.is_float, "X")
        engine.refuse_unless(Y.type.ndim == 2 and not (trans_x and X.type.ndim > 2), "Y")

    patch.setattr(LinearEpilogue, "check", check)
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

    _rewrite(patch, (LinearEpilogue,), change)


def trans_x_is_forgotten_where_both_fit(patch):
    def change(bound):
        x = bound["X"].type.shape
        bound["trans_x"] &= x[0] != x[-1]

    _rewrite(patch, (LinearEpilogue,), change)


def erf_becomes_tanh(patch):
    def change(bound):
        bound["approximate"] = True

    _rewrite(patch, (LinearGelu,), change)


def gelu_slope_takes_the_other_form(patch):
    def change(bound):
        if "approximate" in bound:
            bound["approximate"] ^= True

    _rewrite(patch, (ActivationGrad,), change)


def bias_of_another_layer(patch):
    latest: dict[int, Any] = {}

    def change(bound):
        bias = bound["Bias"]
        other = latest.get(bias.type.shape[0])
        latest[bias.type.shape[0]] = bias
        if other is not None and other.graph is bias.graph and other.producer is None:
            bound["Bias"] = other

    _rewrite(patch, (LinearEpilogue,), change)


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
        def grad(g, *kept, activation, **attrs):
            return original(g, *kept, activation="none" if activation == "relu" else activation, **attrs)

        return grad

    _gradient(patch, change)


def needed_gradient_of_x_is_forgotten(patch):
    def change(original):
        def grad(g, *kept, **attrs):
            dx, dy, dbias = original(g, *kept, **attrs)
            return (None, dy, dbias) if dy is not None else (dx, dy, dbias)

        return grad

    _gradient(patch, change)
    patch.setattr(Drafting, "_check_results", lambda self, new, old: None)
    _inner_without(patch, "gives no gradient of")
    original = Drafting._differentiate

    def lenient(self, g, emitted, incoming):
        outgoing = self.outgoing
        for v in [v for v in outgoing if v in {x for op in emitted for x in op.inputs["X"]}]:
            if len(outgoing) > 1:
                del outgoing[v]
        self.values[self.own :] = [*self.replaced.kept, *outgoing.values()]
        return original(self, g, emitted, incoming)

    patch.setattr(Drafting, "_differentiate", lenient)


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
    assert _is_seen(plant.__name__, GEMM), f"{WITHIN} programs did not show it"


def test_a_failing_program_is_shrunk(monkeypatch):
    activation_is_dropped(monkeypatch)
    seed = next(s for s in range(WITHIN) if failure(s, [GEMM]) and random_program(s).layers > 3)
    case = shrink(seed, [GEMM])
    with pytest.raises(Different):
        check(case, [GEMM])
    assert len(case.program.ops) < len(random_program(seed).program.ops)
    assert sum("relu" in word for word in case.description) == 1


# and in the small rewrites: (flag, a defect of its file)


def dead_code_removes_states(patch):
    patch.setattr(dead_code, "is_unread", lambda op: not any(v.consumers or v.next_version for v in op.output_vars))


def dead_code_forgets_updates(patch):
    patch.setattr(dead_code, "is_unread", lambda op: not any(v.pinned or v.consumers for v in op.output_vars))


def constants_lose_minus_zero(patch):
    written = constants._written_down
    patch.setattr(constants, "_written_down", lambda value: written(value + 0))


def constants_are_all_alike(patch):
    patch.setattr(constants, "_is_uniform", lambda value: value.size > 0)


def constants_are_float32(patch):
    written = constants._written_down

    def rounded(value):
        return written(value.astype("float32").astype(value.dtype))

    patch.setattr(constants, "_written_down", rounded)


def every_operator_is_constant(patch):
    patch.setattr(
        constants, "_is_constant", lambda op, known: all(v in known or v.type.is_static for v in op.input_vars)
    )


def _deaf(patch: pytest.MonkeyPatch, module: Any, fact: str) -> None:
    """The `refuse_unless` of a module, deaf to one refusal."""
    original = module.refuse_unless

    def refuse_unless(condition: object, reason: str, *about: object) -> None:
        original(condition or fact in (reason.format(*about) if about else reason), reason, *about)

    patch.setattr(module, "refuse_unless", refuse_unless)


def _changed_key(patch: pytest.MonkeyPatch, change: Callable[[OpNode], Any]) -> None:
    patch.setattr(common, "_key", change)


def versions_are_not_told_apart(patch):
    key = common._key

    def by_name(op):
        inputs = tuple((slot, tuple(v.name for v in vs)) for slot, vs in op.inputs.items())
        return inputs, *[part for i, part in enumerate(key(op)) if i != 1]

    patch.setattr(common, "_similar", lambda op: (op.type, frozenset(v.name for v in op.input_vars)))
    _changed_key(patch, by_name)


def attributes_are_not_compared(patch):
    key = common._key
    _changed_key(patch, lambda op: key(op)[:3])


def every_operator_is_commutative(patch):
    key = common._key

    def sorted_inputs(op):
        found = key(op)
        inputs = sorted(tuple((v.name, v.version) for v in vs) for _, *vs in found[1])
        return found[0], tuple(inputs), found[2], found[3]

    _changed_key(patch, sorted_inputs)


def random_operators_are_merged(patch):
    patch.setattr(common, "LEFT_ALONE", set())


def fetched_repetitions_are_removed(patch):
    patch.setattr(common, "require_temporary", lambda v: None)
    patch.setattr(redirect, "require_temporary", lambda v: None)


def the_first_may_change(patch):
    _deaf(patch, common, "changes later")
    patch.setattr(Graph, "order_problem", lambda self, rank, reads: None)


def every_type_holds_every_value(patch):
    patch.setattr(casts, "holds", lambda wide, narrow: True)


def casts_keep_the_type_between(patch):
    patch.setattr(casts, "_combine", lambda first, second: dict(first.attrs))


def transposes_in_the_other_order(patch):
    def combine(first, second):
        q = transposes._perm(second.attrs)
        return {"perm": tuple(q[axis] for axis in transposes._perm(first.attrs))}

    patch.setattr(transposes, "_combine", combine)


def transposes_forget_the_first(patch):
    patch.setattr(transposes, "_combine", lambda first, second: dict(second.attrs))


def every_pair_of_transposes_is_nothing(patch):
    patch.setattr(transposes, "_is_identity", lambda first, attrs: True)


def updates_between_a_pair_are_ignored(patch):
    patch.setattr(redirect, "require_readable", lambda graph, v, readers: None)


def transposes_are_set_not_toggled(patch):
    def rewrite(self, g, X, Y, *, trans_y, **_):
        return g.matmul(X, Y, trans_x=True, trans_y=trans_y)

    patch.setattr(TransposedX, "rewrite", rewrite)


def any_axes_may_move(patch):
    patch.setattr(products, "_require_matrices_transposed", lambda perm: None)


def relu_is_forgotten_below_a_product(patch):
    def rewrite(self, g, Out_grad, X, Y, *, trans_x, trans_y):
        needs = [slot for slot, v in zip(("X_grad", "Y_grad"), g.replaced, strict=True) if v is not None]
        return g.matmul_grad(X, Y, Out_grad, trans_x=trans_x, trans_y=trans_y, needs=needs)

    patch.setattr(ReluGradMatmulGrad, "rewrite", rewrite)


def mask_of_what_is_not_positive(patch):
    original = ReluGradMatmulGrad.rewrite

    def rewrite(self, g, Out_grad, X, Y, **product):
        DX, DY = original(self, g, Out_grad, X, Y, **product)
        whole, _ = g.matmul_grad(X, Y, Out_grad, **product, needs=["X_grad"])
        return g.elementwise_sub(whole, DX), DY

    patch.setattr(ReluGradMatmulGrad, "rewrite", rewrite)


SMALL = [
    ("dead_code_elimination", dead_code_removes_states), ("dead_code_elimination", dead_code_forgets_updates),
    ("constant_folding", constants_lose_minus_zero), ("constant_folding", constants_are_all_alike),
    ("constant_folding", constants_are_float32),
    ("constant_folding", every_operator_is_constant),
    ("common_subexpression_elimination", versions_are_not_told_apart),
    ("common_subexpression_elimination", attributes_are_not_compared),
    ("common_subexpression_elimination", every_operator_is_commutative),
    ("common_subexpression_elimination", random_operators_are_merged),
    ("common_subexpression_elimination", fetched_repetitions_are_removed),
    ("common_subexpression_elimination", the_first_may_change),
    ("remove_redundant_cast", every_type_holds_every_value), ("remove_redundant_cast", casts_keep_the_type_between),
    ("remove_redundant_transpose", transposes_in_the_other_order),
    ("remove_redundant_transpose", transposes_forget_the_first),
    ("remove_redundant_transpose", every_pair_of_transposes_is_nothing),
    ("remove_redundant_transpose", updates_between_a_pair_are_ignored),
    ("fuse_matmul_transpose", transposes_are_set_not_toggled), ("fuse_matmul_transpose", any_axes_may_move),
    ("fuse_activation_grad", relu_is_forgotten_below_a_product), ("fuse_activation_grad", mask_of_what_is_not_positive),
]  # fmt: skip


@pytest.mark.parametrize(("flag", "plant"), SMALL, ids=lambda x: getattr(x, "__name__", ""))
def test_planted_defect_of_a_small_rewrite_is_seen(flag, plant, monkeypatch):
    plant(monkeypatch)
    assert _is_seen(plant.__name__, (flag,), FLAGS), f"{WITHIN} programs did not show it"


def test_programs_depend_on_the_seed_only():
    first, again, other = (random_program(seed) for seed in (5, 5, 6))
    assert str(first.program) == str(again.program) != str(other.program)
    assert first.fetches == again.fetches and first.description == again.description
    assert all((again.feeds[name] == array).all() for name, array in first.feeds.items())


def _is_seen(plant: str, *choices: Flags) -> bool:
    """Whether one of WITHIN programs shows a defect with one of these flags, from the one in SHOWN on."""
    for i in range(WITHIN):
        case = known_program((SHOWN.get(plant, 0) + i) % WITHIN)
        for flags in choices:
            try:
                check(case, [flags])
            except Different:
                return True
    return False
