"""fuse_linear_cross_entropy and fuse_grad_accumulation: each place where they say no, planted defects, training.

What they rewrite stands in tests/fixtures and is tried on random programs in test_equivalence.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph.ir.convert import to_graph
from minigraph.ir.verify import verify
from minigraph.passes.accumulation import fuse_grad_accumulation as accumulation
from minigraph.passes.engine import ahead
from minigraph.passes.engine.log import PassReport
from minigraph.passes.last_layer import fuse_linear_cross_entropy as head
from minigraph.passes.last_layer import linear_head
from minigraph.program import Program, unique_name
from minigraph.program.backward import append_backward, gradients
from minigraph.program.builder import Builder
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor
from tests.fuzz import choices, failure
from tests.support import random_programs
from tests.support.grades import graded

WITHIN = 500  # programs in which a planted defect must be seen
SHOWN = {  # where to look first: it saves time, no more
    "argmax_before_the_bias": 25, "softcap_is_not_compared": 7, "ignored_label_is_forgotten": 7,
    "rows_are_not_moved": 113, "value_of_the_loss_is_taken_for_known": 2, "factors_are_swapped": 181,
    "fetched_parts_are_not_checked": 1,
}  # fmt: skip
HEAD = ("fuse_linear_cross_entropy",)
ACCUMULATION = ("fuse_grad_accumulation",)


class Net:
    """`net.<operator>(...)` on a program with an input x [4, 3], a weight w [3, 5] and labels y [4]."""

    def __init__(self) -> None:
        self.program = Program("net")
        self.block = self.program.global_block()
        self.g = Builder(self.block)
        self.x, self.w, self.y = self.data("x", 4, 3), self.param("w", 3, 5), self.data("y", 4, dtype="int64")

    def data(self, name: str, *shape: int, dtype: str = "float64") -> Any:
        return self.block.create_var(name, shape, dtype, is_data=True, stop_gradient=True)

    def param(self, name: str, *shape: int) -> Any:
        return self.block.create_parameter(name, shape, mg.types.float64)

    def state(self, name: str, *shape: int) -> Any:
        return self.block.create_var(name, shape, "float64", persistable=True, stop_gradient=True)

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        return getattr(self.g, op_type)

    def loss(self, z: Any, label: Any = None, **attrs: Any) -> Any:
        return self.softmax_with_cross_entropy(z, self.y if label is None else label, **attrs)[1]

    def report(self, apply: Callable[..., int], fetched: list[Any]) -> PassReport:
        graph, report = to_graph(self.program, [v.name for v in fetched]), PassReport(apply.__name__)
        apply(graph, report)
        verify(graph, apply.__name__)
        return report


def scores(n: Net) -> Any:
    return n.matmul(n.x, n.w)


# what is no last layer: (program, why not)


def classes_on_another_axis(n):
    return n.loss(n.matmul(n.x, n.w), n.data("t", 5, dtype="int64"), axis=0)


def soft_labels_that_are_no_one_hot(n):
    return n.loss(scores(n), n.data("t", 4, 5), soft_label=True)


def weights_that_do_not_sum_to_one(n):
    target = n.scale(n.one_hot(n.y, depth=5, dtype="float64"), scale=0.9, bias=0.1)
    return n.loss(scores(n), target, soft_label=True)


def no_product(n):
    return n.loss(n.exp(scores(n)))


def transposed_x(n):
    return n.loss(n.matmul(n.data("t", 3, 4), n.w, trans_x=True))


def wider_product(n):
    low = [n.cast(v, dtype="float16") for v in (n.x, n.w)]
    return n.loss(n.matmul(*low, out_dtype="float32"))


def classes_are_reshaped(n):
    return n.loss(n.reshape(n.matmul(n.data("t", 2, 3), n.param("v", 3, 10)), shape=(4, 5)))


def classes_are_sliced(n):
    return n.loss(n.slice(scores(n), axes=(1,), starts=(0,), ends=(4,)))


def cast_to_fewer_bits(n):
    return n.loss(n.cast(scores(n), dtype="float32"))


def cast_before_the_bias(n):
    low = [n.cast(v, dtype="float16") for v in (n.x, n.w)]
    wide = n.cast(n.matmul(*low), dtype="float32")
    return n.loss(n.elementwise_add(wide, n.cast(n.param("b", 5), dtype="float32")))


def scale_without_tanh(n):
    return n.loss(n.scale(scores(n), scale=2.0))


def tanh_of_a_sum(n):
    return n.loss(n.scale(n.tanh(n.elementwise_add(scores(n), n.param("b", 5))), scale=2.0))


def divided_by_a_variable(n):
    return n.loss(n.scale(n.tanh(n.elementwise_div(scores(n), n.data("c", 1))), scale=2.0))


def softcap_of_two_numbers(n):
    return n.loss(n.scale(n.tanh(n.scale(scores(n), scale=0.25)), scale=2.0))


def softcap_before_the_bias(n):
    capped = n.scale(n.tanh(n.scale(scores(n), scale=0.5)), scale=2.0)
    return n.loss(n.elementwise_add(capped, n.param("b", 5)))


def residual_instead_of_a_bias(n):
    return n.loss(n.elementwise_add(scores(n), n.data("r", 4, 5)))


def two_biases(n):
    return n.loss(n.elementwise_add(n.elementwise_add(scores(n), n.param("b", 5)), n.param("c", 5)))


def log_probabilities(n):
    return n.log_softmax(scores(n))


def one_hot(n):
    return n.one_hot(n.y, depth=5, dtype="float64")


def log_probabilities_summed_over_rows(n):
    return n.reduce_sum(n.elementwise_mul(one_hot(n), log_probabilities(n)), axis=(0,))


def log_probabilities_of_other_weights(n):
    return n.reduce_sum(n.elementwise_mul(n.data("t", 4, 5), log_probabilities(n)), axis=(1,))


def log_probabilities_of_one_label_for_all(n):
    label = n.one_hot(n.data("l", 1, dtype="int64"), depth=5, dtype="float64")
    return n.reduce_sum(n.elementwise_mul(log_probabilities(n), label), axis=(1,))


def log_probabilities_of_negative_smoothing(n):
    target = n.scale(one_hot(n), scale=1.5, bias=-0.1)
    return n.reduce_sum(n.elementwise_mul(target, log_probabilities(n)), axis=(1,))


def log_probabilities_over_rows(n):
    return n.reduce_sum(n.elementwise_mul(one_hot(n), n.log_softmax(scores(n), axis=0)), axis=(1,))


def shifted(n, z, top, keepdim=True, axis=(1,)):
    """z minus its log-sum-exp, perhaps of something else."""
    total = n.reduce_sum(n.exp(n.elementwise_sub(z, top)), axis=axis, keepdim=keepdim)
    lse = n.elementwise_add(n.log(total), top)
    return n.reduce_sum(n.elementwise_mul(one_hot(n), n.elementwise_sub(z, lse)), axis=(1,))


def shifted_by_another_maximum(n):
    return shifted(n, scores(n), n.reduce_max(n.data("t", 4, 5), axis=(1,), keepdim=True))


def shifted_by_the_maximum_of_rows(n):
    z = scores(n)
    return shifted(n, z, n.reduce_max(z, axis=(0,), keepdim=True), axis=(0,))


def shifted_by_a_maximum_of_other_axes(n):
    z = scores(n)
    top = n.reduce_max(z, axis=(1,), keepdim=True)
    total = n.reduce_sum(n.exp(n.elementwise_sub(z, top)), axis=(1,))
    lse = n.elementwise_add(n.log(total), top)
    return n.reduce_sum(n.elementwise_mul(n.data("t", 4, 4), n.elementwise_sub(n.data("s", 4, 4), lse)), axis=(1,))


def less_than_another_log_sum_exp(n):
    lse = n.log(n.reduce_sum(n.exp(n.data("t", 4, 5)), axis=(1,), keepdim=True))
    return n.reduce_sum(n.elementwise_mul(one_hot(n), n.elementwise_sub(scores(n), lse)), axis=(1,))


MISSES = {
    log_probabilities_summed_over_rows: "does not sum over the classes",
    log_probabilities_of_other_weights: "t is no one_hot of class numbers",
    log_probabilities_of_one_label_for_all: "spreads",
    log_probabilities_of_negative_smoothing: "1.5 * one_hot + -0.1, which is no smoothed label",
    log_probabilities_over_rows: "are not on its last axis",
    shifted_by_another_maximum: "is not the maximum of",
    shifted_by_a_maximum_of_other_axes: "is spread over other axes than the classes",
    shifted_by_the_maximum_of_rows: "does not sum over the classes",
    less_than_another_log_sum_exp: "does not subtract the log-sum-exp of",
    classes_on_another_axis: "the classes of", soft_labels_that_are_no_one_hot: "t is no one_hot of class numbers",
    weights_that_do_not_sum_to_one: "is a one_hot whose weights do not sum to 1, but to 1.4",
    no_product: "is no step from a linear layer to its cross entropy", transposed_x: "has trans_x=True",
    wider_product: "has out_dtype=float32", classes_are_reshaped: "does not keep the classes on the last axis",
    classes_are_sliced: "does not keep all classes", cast_to_fewer_bits: "makes float32 of float64",
    cast_before_the_bias: "which is not rounded", scale_without_tanh: "is no softcap",
    tanh_of_a_sum: "is no division by a constant", divided_by_a_variable: "divides by c, which is no constant",
    softcap_of_two_numbers: "multiplies tanh by 2.0, but", softcap_before_the_bias: "is a softcap before another step",
    residual_instead_of_a_bias: "is no bias of 5 classes", two_biases: "adds a second bias",
}  # fmt: skip


@pytest.mark.parametrize("build", MISSES, ids=lambda build: build.__name__)
def test_what_is_no_last_layer(build):
    n = Net()
    report = n.report(head.fuse_linear_cross_entropy, [build(n)])
    assert not report.applied
    assert report.miss is not None
    assert MISSES[build] in report.miss.reason


# what is one and is left alone: (program, why)


def with_gradients(n: Net, target: Any, *wanted: Any) -> list[Any]:
    return [target, *[v for v in gradients([target], list(wanted or [n.w])) if v is not None]]


def weights_of_other_length(n):
    target = n.one_hot(n.y, depth=5, dtype="float64")
    return [n.reduce_sum(n.elementwise_mul(target, n.data("c", 1)), axis=(1,))]


def weights_summed_over_rows(n):
    target = n.one_hot(n.y, depth=5, dtype="float64")
    return [n.reduce_sum(n.elementwise_mul(target, n.data("c", 5)), axis=(0,))]


def gradient_that_waits_for_the_loss(n):
    return with_gradients(n, n.reduce_sum(n.exp(n.loss(scores(n)))))


def gradient_through_a_mask_that_is_drawn(n):
    return with_gradients(n, n.reduce_sum(n.dropout(n.loss(scores(n)), p=0.5)[0]))


def gradient_through_a_state_that_changes(n):
    s = n.state("s", 4, 1)
    loss = n.loss(scores(n))
    n.increment(s, step=1.0, out={"Out": s})
    return with_gradients(n, n.reduce_sum(n.elementwise_mul(loss, s)))


def gradient_after_many_operators(n):
    loss, factor = n.loss(scores(n)), n.data("t", 4, 1)
    for _ in range(ahead.LIMIT):
        factor = n.tanh(factor)
    return with_gradients(n, n.reduce_sum(n.elementwise_mul(loss, factor)))


def fused_twice_differentiated(n):
    rows, *_ = n.fused_linear_cross_entropy(n.x, n.w, n.y)
    first, second = (gradients([n.reduce_sum(n.scale(rows, scale=s))], [n.w])[0] for s in (1.0, 2.0))
    return [first, second]


def scores_as_small_as_the_input(n):
    return [n.loss(n.matmul(n.x, n.param("v", 3, 3)))]


def tied_scores_smaller_than_the_input(n):
    return [n.loss(n.matmul(n.x, n.param("v", 2, 3), trans_y=True))]


def log_sum_exp(n, z):
    return n.log(n.reduce_sum(n.exp(z), axis=(1,), keepdim=True))


def cube_of_the_log_sum_exp(n):
    z = scores(n)
    return [n.loss(z), n.pow(log_sum_exp(n, z), factor=3.0)]


def log_sum_exp_times_another(n):
    z = scores(n)
    return [n.loss(z), n.elementwise_mul(log_sum_exp(n, z), n.data("t", 4, 1))]


def log_sum_exp_of_the_rows(n):
    z = scores(n)
    return [n.loss(z), n.square(n.log(n.reduce_sum(n.exp(z), axis=(0,))))]


def log_sum_exp_before_the_softcap(n):
    z = scores(n)
    return [n.loss(n.scale(n.tanh(n.scale(z, scale=0.5)), scale=2.0)), n.square(log_sum_exp(n, z))]


def fetched_log_sum_exp(n):
    z = scores(n)
    lse = log_sum_exp(n, z)
    return [n.loss(z), n.square(lse), lse]


def log_sum_exp_less_a_maximum(n, z, first_stops, second_stops):
    tops = [n.reduce_max(z, axis=(1,), keepdim=True) for _ in range(2)]
    for top, stops in zip(tops, (first_stops, second_stops), strict=True):
        top.stop_gradient = stops
    total = n.reduce_sum(n.exp(n.elementwise_sub(z, tops[0])), axis=(1,), keepdim=True)
    return n.elementwise_add(n.log(total), tops[1])


def gradient_of_one_maximum_only(n):
    z = scores(n)
    square = n.square(log_sum_exp_less_a_maximum(n, z, True, False))
    return with_gradients(n, n.reduce_sum(n.elementwise_add(n.loss(z), square)))


def gradient_of_the_label_s_score_only(n):
    z = scores(n)
    lse = log_sum_exp(n, z)
    lse.stop_gradient = True
    return with_gradients(n, n.reduce_sum(n.elementwise_mul(one_hot(n), n.elementwise_sub(z, lse)), axis=None))


REFUSALS = {
    gradient_of_one_maximum_only: "no gradient flows through reduce_max",
    gradient_of_the_label_s_score_only: "no gradient flows through log",
    cube_of_the_log_sum_exp: "is also read by exp", log_sum_exp_times_another: "is also read by exp",
    log_sum_exp_of_the_rows: "is also read by exp", log_sum_exp_before_the_softcap: "is also read by exp",
    fetched_log_sum_exp: "is fetched, the fused operator would not produce it",
    scores_as_small_as_the_input: "the scores of 3 classes are no larger than X with 3 features",
    tied_scores_smaller_than_the_input: "the scores of 2 classes are no larger than X with 3 features",
    weights_of_other_length: "does not have one element per class (5)",
    weights_summed_over_rows: "the sum goes over axes (0,)",
    gradient_that_waits_for_the_loss: "it depends on the value of",
    gradient_through_a_mask_that_is_drawn: "must stay where it is",
    gradient_through_a_state_that_changes: "s is updated in place",
    gradient_after_many_operators: f"{ahead.LIMIT} operators or more lead to it",
    fused_twice_differentiated: "is differentiated twice",
}


@pytest.mark.parametrize("build", REFUSALS, ids=lambda build: build.__name__)
def test_what_is_left_alone(build):
    n = Net()
    report = n.report(head.fuse_linear_cross_entropy, build(n))
    assert [r for r in report.refused if REFUSALS[build] in r.reason], report.render()


def test_a_refused_join_leaves_the_graph_as_it_was():
    n = Net()
    fetched = gradient_after_many_operators(n)
    graph = to_graph(n.program, [v.name for v in fetched])
    head.fuse_linear_cross_entropy(graph, PassReport("once"))
    before = [(op.type, op.rank, op.role, [v.name for v in op.output_vars]) for op in graph.ops]
    again = PassReport("again")
    assert head.fuse_linear_cross_entropy(graph, again) == 0
    assert again.refused
    assert [(op.type, op.rank, op.role, [v.name for v in op.output_vars]) for op in graph.ops] == before


def test_operators_of_other_attributes_are_not_joined():
    n = Net()
    rows, *_ = n.fused_linear_cross_entropy(n.x, n.w, n.y)
    fetched = with_gradients(n, n.reduce_sum(rows))
    grad = next(op for op in n.program.ops if op.type == "fused_linear_cross_entropy_grad")
    dict.__setitem__(grad.attrs, "z_loss", 0.5)  # which is refused where it is said openly
    (refusal,) = n.report(head.fuse_linear_cross_entropy, fetched).refused
    assert "reads other values than" in refusal.reason


# additions of gradients


def one_operand(n):
    return [n.sum([with_gradients(n, n.reduce_sum(scores(n)))[1]])]


def added_to_itself(n):
    d = with_gradients(n, n.reduce_sum(scores(n)))[1]
    return [n.elementwise_add(d, d)]


def broadcast(n):
    d = with_gradients(n, n.reduce_sum(scores(n)))[1]
    return [n.elementwise_add(d, n.data("t", 5))]


def differentiated(n):
    n.w.stop_gradient = False
    d = with_gradients(n, n.reduce_sum(n.square(scores(n))))[1]
    return with_gradients(n, n.reduce_sum(n.square(n.elementwise_add(d, n.data("t", 3, 5)))))


def read_by_others(n):
    d = with_gradients(n, n.reduce_sum(scores(n)))[1]
    return [n.elementwise_add(d, n.data("t", 3, 5)), n.tanh(d)]


def fetched_part(n):
    d = with_gradients(n, n.reduce_sum(scores(n)))[1]
    return [n.elementwise_add(d, n.data("t", 3, 5)), d]


def derivative_of_an_activation(n):
    d, *_ = n.fused_gemm_epilogue_grad(
        n.data("d", 4, 5), n.x, n.w, n.data("r", 4, 3), activation_grad="gelu_grad", needs=["DX"]
    )
    return [n.elementwise_add(d, n.data("t", 4, 3))]


def sum_over_a_batch(n):
    v = n.param("v", 1, 3, 5)
    d = with_gradients(n, n.reduce_sum(n.matmul(n.data("c", 2, 4, 3), v)), v)[1]
    return [n.elementwise_add(d, n.data("t", 1, 3, 5))]


ADDITIONS = {
    one_operand: "nothing to add it to", added_to_itself: "is added to itself", broadcast: "are broadcast",
    differentiated: "is differentiated", read_by_others: "is also read by tanh", fetched_part: "it must be written",
    derivative_of_an_activation: "does more to it", sum_over_a_batch: "may be a sum over a batch that was broadcast",
}  # fmt: skip


@pytest.mark.parametrize("build", ADDITIONS, ids=lambda build: build.__name__)
def test_additions_that_stay(build):
    n = Net()
    report = n.report(accumulation.fuse_grad_accumulation, build(n))
    assert [r for r in report.refused if ADDITIONS[build] in r.reason], report.render()
    assert not report.applied


def test_fused_layers_accumulate_too():
    """After fuse_gemm_epilogue the weight's gradient comes from its grad operator."""
    n = Net()
    b = n.param("b", 3)
    v = n.param("v", 3, 3)
    h = n.tanh(n.elementwise_add(n.matmul(n.x, v), b))
    loss = n.reduce_sum(n.tanh(n.elementwise_add(n.matmul(h, v), b)))
    fetches = [loss.name, *(g.name for _, g in append_backward(loss))]
    strategy = mg.static.BuildStrategy(fuse_gemm_epilogue=True, fuse_grad_accumulation=True, verify="each_pass")
    compiled = mg.static.CompiledProgram(n.program, build_strategy=strategy)
    after = compiled.program_for(fetches)
    assert "matmul_accumulate" in [op.type for op in after.ops]
    rng = np.random.default_rng(1)
    scope, feed = Scope(), {"x": rng.normal(size=(4, 3))}
    for name in ("w", "v", "b"):
        scope.write(name, rng.normal(size=n.program.vars[name].shape))
    off, on = (Executor().run(p, feed, fetches, scope=scope) for p in (n.program, compiled))
    for a, c in zip(off, on, strict=True):
        np.testing.assert_allclose(a, c, rtol=1e-12)


@pytest.mark.parametrize("stops", [False, True])
def test_a_maximum_is_a_constant_in_both_places_or_in_none(stops):
    n = Net()
    z = scores(n)
    square = n.square(log_sum_exp_less_a_maximum(n, z, stops, stops))
    report = n.report(head.fuse_linear_cross_entropy,
                      with_gradients(n, n.reduce_sum(n.elementwise_add(n.loss(z), square))))  # fmt: skip
    assert [a.rule for a in report.applied] == ["LinearCrossEntropy", "JoinGradient"], report.render()


# training


@pytest.mark.parametrize("tied", [False, True])
def test_a_language_model_trains_the_same(tied):
    """Shifted labels, ignored rows, softcap; with a tied embedding the gradients of both uses meet."""
    losses = {}
    for flags in ((), HEAD, (*HEAD, *ACCUMULATION, "fuse_gemm_epilogue", "dead_code_elimination")):
        main, startup = mg.static.Program(), mg.static.Program()
        main.random_seed = startup.random_seed = 3
        with mg.static.program_guard(main, startup), unique_name.guard():
            mg.set_default_dtype("float64")
            ids = mg.static.data("ids", [None, 6], "int64")
            table = mg.static.create_parameter([17, 8], "float64")
            h = mg.tanh(mg.nn.Linear(8, 8)(mg.nn.functional.embedding(ids, table)))
            w = table if tied else mg.static.create_parameter([17, 8], "float64")
            z = mg.matmul(h, w, transpose_y=True)
            z = (5.0 * mg.tanh(z / 5.0))[:, :-1]
            loss = mg.nn.functional.cross_entropy(mg.reshape(z, [-1, 17]), mg.reshape(ids[:, 1:], [-1]), ignore_index=3)
            mg.optimizer.AdamW(0.05).minimize(loss)
            mg.set_default_dtype("float32")
        strategy = mg.static.BuildStrategy(**dict.fromkeys(flags, True), verify="each_pass")
        compiled = mg.static.CompiledProgram(main, build_strategy=strategy)
        exe, scope, rng = Executor(), Scope(), np.random.default_rng(4)
        exe.run(startup, scope=scope)
        feed = {"ids": rng.integers(0, 17, (3, 6))}
        losses[flags] = [float(exe.run(compiled, feed, [loss], scope=scope)[0]) for _ in range(8)]
        types = [op.type for op in compiled.after.ops]
        stays = tied and ACCUMULATION[0] in flags  # its gradient is added to another, for any number of rows
        assert types.count("fused_linear_cross_entropy") == (bool(flags) and not stays)
        assert ("and the number of rows is not known" in compiled.explain()) == stays
        assert "fused_linear_cross_entropy_grad" not in types
    plain, *fused = losses.values()
    for found in fused:
        np.testing.assert_allclose(found, plain, rtol=1e-10)
    assert plain[-1] < plain[0]


# random programs


@pytest.fixture
def many_heads(monkeypatch):
    """Programs that have last layers more often than those of test_equivalence.py."""
    monkeypatch.setattr(random_programs, "PLAIN", 0.0)
    monkeypatch.setitem(random_programs.LAYERS, "head", 200)


@pytest.mark.usefixtures("many_heads")
@pytest.mark.parametrize("seeds", graded([range(20), range(20, 150)], now=lambda seeds: 0 in seeds), ids=str)
def test_last_layers_of_random_programs_compute_the_same(seeds):
    for seed in {*seeds, *SHOWN.values()}:
        every = choices(seed)[0]
        assert failure(seed, [HEAD, (*HEAD, *ACCUMULATION), every]) is None, f"seed {seed}"


# planted defects: random programs see them


def argmax_before_the_bias(patch):
    def careless(self, v):
        for reader in v.consumers:
            if reader.type == "arg_max" and self.head.prediction is None:
                self.head.prediction = reader
                self.ops.append(reader)

    patch.setattr(linear_head._Walk, "_take_side_outputs", careless)


def softcap_is_not_compared(patch):
    patch.setattr(linear_head, "EXACT", 10.0)


def ignored_label_is_forgotten(patch):
    rewrite = head.LinearCrossEntropy.rewrite

    def forgetful(self, g, head):
        head.ignore_index = -100
        return rewrite(self, g, head)

    patch.setattr(head.LinearCrossEntropy, "rewrite", forgetful)


def rows_are_not_moved(patch):
    rewrite = head.LinearCrossEntropy.rewrite

    def lazy(self, g, head):
        head.moves = [m for m in head.moves if m[0] != "slice"]
        return rewrite(self, g, head)

    patch.setattr(head.LinearCrossEntropy, "rewrite", lazy)


def value_of_the_loss_is_taken_for_known(patch):
    original = ahead.refuse_unless
    patch.setattr(ahead, "refuse_unless", lambda c, why: original(c or "depends on the value" in why, why))


def factors_are_swapped(patch):
    original = accumulation.factors

    def swapped(part):
        a, b, trans_a, trans_b = original(part)
        return (a, b, not trans_a, trans_b) if a.type.shape[0] == a.type.shape[-1] else (a, b, trans_a, trans_b)

    patch.setattr(accumulation, "factors", swapped)


def fetched_parts_are_not_checked(patch):
    patch.setattr(accumulation, "require_temporary", lambda v: None)


PLANTED = {
    argmax_before_the_bias: HEAD, softcap_is_not_compared: HEAD, ignored_label_is_forgotten: HEAD,
    rows_are_not_moved: HEAD, value_of_the_loss_is_taken_for_known: HEAD, factors_are_swapped: ACCUMULATION,
    fetched_parts_are_not_checked: ACCUMULATION,
}  # fmt: skip


@pytest.mark.usefixtures("many_heads")
@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_planted_defect_is_seen(plant, monkeypatch):
    plant(monkeypatch)
    first = SHOWN[plant.__name__]
    seen = (failure((first + i) % WITHIN, [PLANTED[plant]]) for i in range(WITHIN))
    assert any(seen), f"{WITHIN} programs did not show it"


def test_what_one_hot_refuses_is_refused():
    """-100 is no class, and no label that the loss of a one_hot ignores."""
    main, startup = Program(), Program()
    with mg.static.program_guard(main, startup):
        x, y = mg.static.data("x", [None, 3]), mg.static.data("y", [None], "int64")
        labels = mg.nn.functional.label_smooth(mg.nn.functional.one_hot(y, 8))
        loss = mg.nn.functional.cross_entropy(mg.nn.Linear(3, 8)(x), labels, soft_label=True)
    compiled = mg.static.CompiledProgram(main, mg.static.BuildStrategy(fuse_linear_cross_entropy=True))
    scope = Scope()
    Executor().run(startup, scope=scope)
    feed = {"x": np.ones((3, 3), np.float32), "y": np.array([1, -100, 4])}
    for program in (main, compiled):
        with pytest.raises(mg.errors.KernelError, match="-100"):
            Executor().run(program, feed=feed, fetch_list=[loss], scope=scope)
    assert "1 applied" in compiled.explain()
