"""The pass memory_efficient_attention: random spellings compute the same, refusals occur, wrong rewrites are seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph.compiler.validate import distance
from minigraph.ir.graph import Graph
from minigraph.passes.attention import mask_by_position, masks
from minigraph.passes.attention import memory_efficient_attention as rewriting
from minigraph.passes.attention import scores as attention_scores
from minigraph.passes.engine import replacement as engine
from minigraph.program.scope import Scope
from minigraph.program.text.dump import dump
from minigraph.runtime.executor import Executor
from minigraph.static import BuildStrategy, CompiledProgram
from tests.fuzz import Different, choices, passed, run
from tests.support.attention_programs import attention_program
from tests.support.grades import graded
from tests.support.random_programs import Case

FLAG = "memory_efficient_attention"
PROGRAMS, CHUNK, WITHIN = 1200, 100, 250
SHOWN = {  # where to look first for a planted defect: it saves time, no more
    "division_is_multiplication": 11, "causal_by_one": 69, "diagonal_is_ignored": 23, "bottom_right_is_forgotten": 123,
    "window_is_forgotten": 99, "finite_fill_becomes_infinite": 34, "any_number_hides": 52, "downscale_is_upscale": 42,
    "late_bias_is_early": 75, "capping_is_overlooked": 32, "comparisons_swap_sides": 97,
    "what_is_multiplied_by_0_is_hidden": 79, "slices_stay_where_they_are": 119, "negated_conditions_are_not": 226,
    "heads_come_before_batches": 223,
}  # fmt: skip
TOLERANCE = 1e-10
REASONS = {
    "fetched": 5, "other reader": 5, "shape reader": 1, "go through tanh": 5, "has mode downscale": 5,
    "scores are multiplied by": 1, "fill in different numbers": 1, "was filled in, so masked": 1,
    "as large as the scores": 1, "keys of its shape": 5,
}  # fmt: skip


@lru_cache(250)
def _known(seed: int) -> Case:
    """A program for many tests: planted defects lie in the pass, so what it computes without that is the same."""
    return attention_program(seed)


def check(seed: int, flags: Sequence[str] = (FLAG,)) -> Any:
    """Compare all results with passes off and on; the program after them, their outcome, what the program is like."""
    case = _known(seed)
    after, outcome = passed(case, tuple(flags))
    if dump(after) == case.text:
        return after, outcome, case.description
    if case.results is None:
        case.results = run(case, case.program)
    off, on = case.results, run(case, after)
    peak = max((float(np.max(np.abs(a[np.isfinite(a)]), initial=0.0)) for a in off.values()), default=0.0)
    for name, array in off.items():
        difference = distance(array, on[name], floor=max(1e-3 * peak, 1e-30))
        if difference > TOLERANCE:
            raise Different(f"seed {seed} ({', '.join(case.description)}): {name} differs by {difference:.3g}")
    return after, outcome, case.description


@pytest.mark.parametrize("first", graded(range(0, PROGRAMS, CHUNK), now=lambda first: first == 0))
def test_random_spellings_compute_the_same(first):
    fused = Counter()
    for seed in range(first, first + CHUNK):
        after, outcome, words = check(seed)
        fused["applied"] += bool(outcome.applied)
        fused["joined"] += bool(outcome.applied) and "joined" in words
        fused.update(name for op in after.ops if op.type == FLAG for name, value in op.attrs.items() if value)
        fused.update(slot for op in after.ops if op.type == FLAG for slot in op.inputs)
    assert fused["applied"] >= 35, fused
    for feature in ("causal", "Bias", "Mask", "dropout", "scale", "joined"):
        assert fused[feature] >= 4, f"{feature}: {fused}"


@pytest.mark.parametrize("first", graded((0, 40), now=lambda first: first == 0))
def test_other_passes_go_with_it(first):
    """All flags that can be on together, and another order of them."""
    for seed in range(first, first + 40):
        check(seed, choices(seed)[0])
        check(seed, [*(f for f in choices(seed)[0] if f != FLAG), FLAG])


def test_every_refusal_occurs():
    refused, left = Counter(), dict(REASONS)
    for seed in range(PROGRAMS):
        refused.update(passed(_known(seed), (FLAG,))[1].refused)
        left = {r: least for r, least in left.items() if sum(n for text, n in refused.items() if r in text) < least}
        if not left:
            break
    assert not left, refused


# planted defects


def scale_is_dropped(patch):
    patch.setattr(attention_scores, "factor_of", _factor(lambda c: 1.0))


def division_is_multiplication(patch):
    patch.setattr(attention_scores, "factor_of", _factor(lambda c: 1 / c, only="elementwise_div"))


def _factor(change, only=None):
    original = attention_scores.factor_of

    def factor(op):
        found = original(op)
        return (change(found[0]), found[1]) if found and (only is None or op.type == only) else found

    return factor


def causal_by_one(patch):
    original = rewriting.attributes_of

    def attributes(bounds, sizes):
        return original((bounds[0], bounds[1] + 1), sizes)

    patch.setattr(rewriting, "attributes_of", attributes)


def diagonal_is_ignored(patch):
    original = rewriting.attributes_of

    def attributes(bounds, sizes):
        return original((bounds[0], 0 if np.isfinite(bounds[1]) else bounds[1]), sizes)

    patch.setattr(rewriting, "attributes_of", attributes)


def bottom_right_is_forgotten(patch):
    original = rewriting.attributes_of

    def attributes(bounds, sizes):
        found = original(bounds, sizes)
        return found and {k: v for k, v in found.items() if k != "bottom_right"}

    patch.setattr(rewriting, "attributes_of", attributes)


def window_is_forgotten(patch):
    original = rewriting.attributes_of

    def attributes(bounds, sizes):
        found = original(bounds, sizes)
        return found and {k: v for k, v in found.items() if k != "window"}

    patch.setattr(rewriting, "attributes_of", attributes)


def negation_is_forgotten(patch):
    original = attention_scores.Modifier.__init__

    def init(self, *args, negated=False, **kwargs):
        original(self, *args, negated=False, **kwargs)

    patch.setattr(attention_scores.Modifier, "__init__", init)


def finite_fill_becomes_infinite(patch):
    original = rewriting.mask_of
    patch.setattr(rewriting, "mask_of", lambda g, arrays: (original(g, arrays)[0], None))


def any_number_hides(patch):
    patch.setattr(mask_by_position, "HIDES", -1.0)


def subtracted_bias_is_added(patch):
    original = rewriting.bias_of

    def bias(g, addends):
        for m in addends:
            m.factor = abs(m.factor)
        return original(g, addends)

    patch.setattr(rewriting, "bias_of", bias)


def dropout_draws_other_numbers(patch):
    original = rewriting.WrittenOut.rewrite

    def rewrite(self, g, **bound):
        result = original(self, g, **bound)
        for op in g.emitted:
            op.number += op.type == "random_key"
        return result

    patch.setattr(rewriting.WrittenOut, "rewrite", rewrite)


def heads_and_positions_are_mixed_up(patch):
    patch.setattr(rewriting, "layout_of", lambda found: "bshd" if len(found.q.perm) == 4 else "bhsd")
    patch.setattr(rewriting, "arranged", lambda g, operand, layout: operand.source)


def downscale_is_upscale(patch):
    patch.setattr(rewriting, "refuse_unless", _deaf_to(rewriting.refuse_unless, "has mode"))


def fetches_are_ignored(patch):
    patch.setattr(engine, "refuse_unless", _deaf_to(engine.refuse_unless, "is fetched, "))


def late_bias_is_early(patch):
    patch.setattr(rewriting, "refuse_unless", _deaf_to(rewriting.refuse_unless, "was filled in"))


def capping_is_overlooked(patch):
    original = attention_scores.factor_of
    patch.setattr(attention_scores, "factor_of", lambda op: (1.0, "X") if op.type == "tanh" else original(op))


def _deaf_to(original, fact):
    def refuse_unless(condition, reason, *about):
        original(condition or fact in (reason.format(*about) if about else reason), reason, *about)

    return refuse_unless


def comparisons_swap_sides(patch):
    original = masks._of_indices
    patch.setattr(masks, "_of_indices", lambda op, x, y: original(op, y, x))


def slices_stay_where_they_are(patch):
    patch.setattr(masks, "_sliced", lambda op, x: x)


def negated_conditions_are_not(patch):
    original = attention_scores._conditions
    patch.setattr(attention_scores, "_conditions", lambda *args: [(x, False) for x, _ in original(*args)])


def what_is_multiplied_by_0_is_hidden(patch):
    patch.setattr(rewriting, "check_times", lambda found, exact: None)


def heads_come_before_batches(patch):
    original = rewriting.arranged

    def arranged(g, operand, layout, split):
        return original(g, operand, layout, split and (split[1], split[0]))

    patch.setattr(rewriting, "arranged", arranged)


def order_is_ignored(patch):
    patch.setattr(Graph, "order_problem", lambda self, rank, reads: None)
    patch.setattr(engine.Replacement, "_place", lambda self: self.old[0].rank)


PLANTED = [
    scale_is_dropped, division_is_multiplication, causal_by_one, diagonal_is_ignored, bottom_right_is_forgotten,
    window_is_forgotten, negation_is_forgotten, finite_fill_becomes_infinite, any_number_hides,
    subtracted_bias_is_added, dropout_draws_other_numbers, heads_and_positions_are_mixed_up, downscale_is_upscale,
    fetches_are_ignored, late_bias_is_early, capping_is_overlooked, comparisons_swap_sides,
    what_is_multiplied_by_0_is_hidden, slices_stay_where_they_are, negated_conditions_are_not,
    heads_come_before_batches, order_is_ignored,
]  # fmt: skip


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_planted_defect_is_seen(plant, monkeypatch):
    plant(monkeypatch)
    for i in range(WITHIN):
        try:
            check((SHOWN.get(plant.__name__, 0) + i) % WITHIN)
        except Exception:  # whatever breaks is a finding
            return
    pytest.fail(f"{WITHIN} programs did not show it")


# what a user sees


def layer(mask: Any = None) -> tuple[Any, Any, Any]:
    """(main, startup, loss) of a layer of attention written out by hand, in float32."""
    main, startup = mg.static.Program(), mg.static.Program()
    with mg.static.program_guard(main, startup):
        x = mg.static.data("x", [None, 6, 16])
        q, k, v = (mg.reshape(mg.nn.Linear(16, 16)(x), [0, 0, 2, 8]) for _ in "qkv")
        q, k, v = (mg.transpose(h, [0, 2, 1, 3]) for h in (q, k, v))
        scores = mg.matmul(q, k, transpose_y=True) / 8**0.5
        scores = mg.where(mg.tril(mg.ones([6, 6])) > 0, scores, -1e9)
        p = mg.nn.functional.dropout(mg.nn.functional.softmax(scores), 0.2)
        out = mg.reshape(mg.transpose(mg.matmul(p, v), [0, 2, 1, 3]), [0, 0, 16])
        loss = mg.mean(mg.nn.Linear(16, 1)(out))
        mg.optimizer.SGD(0.1).minimize(loss)
    main.random_seed = startup.random_seed = 3
    return main, startup, loss


@pytest.mark.parametrize("flag", [FLAG, "fuse_dot_product_attention"])
def test_training_goes_the_same_way(flag):
    main, startup, loss = layer()
    compiled = CompiledProgram(main, build_strategy=BuildStrategy(**{flag: True}, verify="each_pass"))
    rng, runs = np.random.default_rng(1), []
    batches = [rng.normal(size=(4, 6, 16)).astype(np.float32) for _ in range(5)]
    for program in (main, compiled):
        exe, scope = Executor(), Scope()
        exe.run(startup, scope=scope)
        runs.append([exe.run(program, {"x": b}, [loss], scope=scope)[0] for b in batches])
    np.testing.assert_allclose(runs[0], runs[1], rtol=2e-5, atol=1e-6)
    types = [op.type for op in compiled.after.ops]
    assert types.count(FLAG) == types.count(f"{FLAG}_grad") == 1 and "softmax" not in types and "tril_triu" not in types
    (op,) = (op for op in compiled.after.ops if op.type == FLAG)
    assert op.attrs["causal"] and op.attrs["layout"] == "bshd" and op.attrs["scale"] is None
    assert "1 applied, 0 refused" in compiled.explain()


def test_validation_takes_zeros_for_the_nan_of_a_query_that_sees_nothing():
    main = mg.static.Program()
    with mg.static.program_guard(main, mg.static.Program()):
        q, k, v = (mg.static.data(n, [2, 3, 5, 4]) for n in "qkv")
        seen = mg.static.data("seen", [5, 5], "bool")
        scores = mg.where(seen, mg.matmul(q, k, transpose_y=True), float("-inf"))
        out = mg.matmul(mg.nn.functional.softmax(scores), v)
    rng = np.random.default_rng(0)
    feed = {n: rng.normal(size=(2, 3, 5, 4)).astype(np.float32) for n in "qkv"}
    feed["seen"] = np.arange(5)[:, None] > np.arange(5)  # query 0 sees nothing
    compiled = CompiledProgram(main, build_strategy=BuildStrategy(memory_efficient_attention=True, verify="each_pass"))
    plain, fused = (Executor().run(p, feed, [out], scope=Scope())[0] for p in (main, compiled))
    assert np.isnan(plain[:, :, 0]).all() and not fused[:, :, 0].any()
    np.testing.assert_allclose(fused[:, :, 1:], plain[:, :, 1:], rtol=1e-5, atol=1e-6)


def test_validation_passes_where_layers_follow_each_other():
    """Made-up weights keep what they multiply as large as it is: scores of a deep layer leave more than rounding."""
    main = mg.static.Program()
    with mg.static.program_guard(main, mg.static.Program()):
        x = mg.static.data("x", [2, 6, 32])
        seen = mg.reshape(mg.tril(mg.ones([6, 6])) > 0, [1, 1, 6, 6])
        for _ in range(3):
            heads = (mg.transpose(mg.reshape(mg.nn.Linear(32, 32)(x), [0, 0, 4, 8]), [0, 2, 1, 3]) for _ in "qkv")
            q, k, v = heads
            scores = mg.where(seen, mg.matmul(q, k, transpose_y=True) * 8**-0.5, -1e9)
            out = mg.matmul(mg.nn.functional.softmax(scores), v)
            x = x + mg.reshape(mg.transpose(out, [0, 2, 1, 3]), [0, 0, 32])
        loss = mg.sum(x * x)
        grads = [g.name for _, g in mg.static.append_backward(loss)]
    compiled = CompiledProgram(main, build_strategy=BuildStrategy(memory_efficient_attention=True, verify="each_pass"))
    compiled.program_for([loss.name, *grads])
    assert [op.type for op in compiled.after.ops].count(FLAG) == 3


@pytest.mark.parametrize("fill", [-1e4, -1e9, float(np.finfo(np.float32).min)])
def test_queries_whose_keys_an_added_number_hides_all(fill):
    """Their gradients, too: LogSumExp rounds away how many keys share the number."""
    main = mg.static.Program()
    with mg.static.program_guard(main, mg.static.Program()):
        q, k, v, c = (mg.static.data(n, [2, 3, 5, 4], "float64") for n in "qkvc")
        m = mg.static.data("m", [2, 1, 5, 5], "float64")
        for x in (q, k, v, m):
            x.stop_gradient = False
        scores = mg.matmul(q, k, transpose_y=True) * 0.5 + (1 - m) * fill
        out = mg.matmul(mg.nn.functional.softmax(scores), v)
        names = [out.name, *(g.name for g in mg.static.gradients(mg.sum(out * c), [q, k, v, m]))]
    rng = np.random.default_rng(0)
    feed = {n: rng.normal(size=(2, 3, 5, 4)) for n in "qkvc"}
    feed["m"] = (rng.random((2, 1, 5, 5)) < 0.5).astype(float)
    feed["m"][0, :, 1:3] = 0  # padding: these queries see nothing
    compiled = CompiledProgram(main, build_strategy=BuildStrategy(memory_efficient_attention=True))
    plain, fused = (Executor().run(p, feed, names, scope=Scope()) for p in (main, compiled))
    assert FLAG in [op.type for op in compiled.after.ops]
    for name, a, b in zip(names, plain, fused, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-12 * np.abs(a).max(), err_msg=name)


def test_inference_keeps_no_sums():
    main, _, loss = layer()
    test = main.clone(for_test=True)
    compiled = CompiledProgram(test, build_strategy=BuildStrategy(memory_efficient_attention=True))
    compiled.program_for([loss.name])
    (op,) = (op for op in compiled.after.ops if op.type == FLAG)
    assert op.outputs.keys() == {"Out"} and "Key" not in op.inputs


def test_a_program_without_attention_names_the_nearest_miss():
    main, startup = mg.static.Program(), mg.static.Program()
    with mg.static.program_guard(main, startup):
        mg.nn.Linear(4, 4)(mg.static.data("x", [None, 4]))
    explained = CompiledProgram(main, build_strategy=BuildStrategy(memory_efficient_attention=True)).explain()
    assert "0 applied; nearest miss: x is not computed by a softmax" in explained


def rows(x):
    return mg.unsqueeze(x, 1)


def columns(x):
    return mg.unsqueeze(x, 0)


def triangle(value, dtype):
    return mg.tril(mg.full([4, 4], value, dtype))


MASKS = {
    "unsigned places": lambda: (lambda i: rows(i) - columns(i) >= mg.zeros([1], "uint8"))(mg.arange(4, dtype="uint8")),
    "places cut off": lambda: rows(mg.arange(0.5, 4.5, 1, dtype="int64")) > columns(mg.arange(4)),
    "places cast": lambda: rows(mg.cast(mg.cast(mg.arange(4), "float64") + 0.7, "int64")) > columns(mg.arange(4)),
    "product wraps": lambda: triangle(2**30, "int32") * mg.full([1], 4, "int32") > 0,
    "abs wraps": lambda: mg.abs(triangle(-(2**31), "int32")) > 0,
    "underflow": lambda: mg.cast(triangle(1e-30, "float32") * 1e-30, "bool"),
    "overflow": lambda: (lambda x: mg.not_equal(x, x * 10.0))(triangle(1e30, "float32") * 1e30),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_are_read_with_their_types(name):
    main, found = mg.static.Program(), []
    with mg.static.program_guard(main, mg.static.Program()):
        x = mg.static.data("x", [None, 4, 3], "float64")
        scores = mg.where(MASKS[name](), mg.matmul(x, x, transpose_y=True), -1e9)
        out = mg.matmul(mg.nn.functional.softmax(scores), x)
    for program in (main, CompiledProgram(main, build_strategy=BuildStrategy(memory_efficient_attention=True))):
        feed = {"x": np.arange(12.0).reshape(1, 4, 3) / 10}
        found += Executor().run(program, feed=feed, fetch_list=[out], scope=Scope())
    np.testing.assert_allclose(found[1], found[0], rtol=1e-10)


@pytest.mark.parametrize("learned", ["queries", "keys and values", "values"])
def test_what_is_learned_may_stand_beside_a_batch_of_unknown_size(learned):
    """As in a Perceiver: the operator wants one batch of all three, products spread what has a batch of 1."""
    main, startup, found = mg.static.Program(), mg.static.Program(), []
    with mg.static.program_guard(main, startup):
        x = mg.static.data("x", [None, 6, 4], "float64")
        own = mg.static.create_parameter([1, 6, 4], "float64")
        q, k, v = {"queries": (own, x, x), "keys and values": (x, own, own), "values": (x, x, own)}[learned]
        out = mg.matmul(mg.nn.functional.softmax(mg.matmul(q, k, transpose_y=True) * 0.5), v)
    compiled, scope = CompiledProgram(main, build_strategy=BuildStrategy(memory_efficient_attention=True)), Scope()
    Executor().run(startup, scope=scope)
    for program in (main, compiled):
        feed = {"x": np.random.default_rng(0).normal(size=(2, 6, 4))}
        found += Executor().run(program, feed=feed, fetch_list=[out], scope=scope)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-12)
    assert "may have batches of different sizes" in compiled.explain()
