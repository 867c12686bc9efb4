"""The rewrite of mixed precision: where casts go, what the lists decide, and that no value changes but by rounding."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import minigraph as mg
from minigraph import nn, static
from minigraph.compiler.validate import distance, evaluate, made_up_values
from minigraph.errors import ProgramError
from minigraph.ir.convert import to_graph
from minigraph.ir.diff import first_difference
from minigraph.ir.text import parse
from minigraph.ir.verify import verify
from minigraph.opdef import OPS
from minigraph.passes.mixed_precision.lists import BLACK, GRAY, GRAY_O2, WHITE
from minigraph.program import Program, unique_name
from minigraph.program.backward import append_backward
from minigraph.static.amp import AutoMixedPrecisionLists, cast_model_to_fp16
from minigraph.types import bfloat16, float16, float32
from tests.support.grades import graded
from tests.support.mixed_programs import LEVELS, mixed_program


@pytest.mark.parametrize(("level", "dtype"), graded(LEVELS, now=lambda *case: case in (LEVELS[1], LEVELS[2])))
def test_random_programs_compute_the_same_but_for_rounding(level, dtype):
    """With every float lifted to float64, casts round nothing: values and gradients are those of before, each one."""
    halves = compared = refused = 0
    for seed in range(30):
        plain, net = mixed_program(seed), mixed_program(seed, level, dtype)
        verify(to_graph(net.program))
        assert first_difference(parse(str(net.program)), net.program) is None
        halves += sum(v.dtype.itemsize == 2 and v.type.is_float for v in net.program.list_vars())
        assert net.refusal.split(" ")[0] == plain.refusal.split(" ")[0]
        refused += bool(net.refusal)
        values = {**made_up_values(plain.program), **net.values, **net.feeds}
        before, after = evaluate(plain.program, values), evaluate(net.program, values)
        assert plain.results == net.results
        for name in net.results:
            assert distance(before[name], after[name]) < 1e-10, f"seed {seed}: {name}"
            compared += 1
    assert halves > 30 and compared > 200 and refused < 6, (halves, compared, refused)


# where casts go


def program(body) -> Program:
    main, startup = Program("main"), Program("startup")
    with static.program_guard(main, startup), unique_name.guard():
        body()
    return main


def types(main: Program) -> list[str]:
    return [op.type for op in main.ops]


def dtype_of(main: Program, op_type: str) -> str:
    """The type in which the only operator of this type writes."""
    (op,) = (op for op in main.ops if op.type == op_type)
    return str(next(op.output_vars).dtype)


def two_heads():
    x = static.data("x", [None, 8])
    a, b = nn.Linear(8, 4)(x), nn.Linear(8, 4)(x)
    mg.mean(mg.exp(a) + mg.log(mg.abs(a) + 1.0) + b)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_value_is_cast_once_and_weights_before_all_operators(dtype):
    main = program(two_heads)
    cast_model_to_fp16(main, None, False, dtype, "O1")
    casts = [op for op in main.ops if op.type == "cast"]
    read = Counter(v.name for op in casts for v in op.input_vars)
    assert set(read.values()) == {1} and read["x"] == 1
    assert types(main)[:4] == ["cast"] * 4, "the weights and biases of both layers"
    assert all(p.dtype == float32 for p in main.all_parameters())
    made = [next(op.output_vars) for op in main.ops if op.type in ("exp", "log", "reduce_mean")]
    assert {v.dtype for v in made} == {float32}
    assert all(op.site is not None for op in main.ops)


def test_the_gradient_of_a_shared_cast_is_added_before_it_is_cast():
    main = program(lambda: mg.mean(mg.matmul(x := static.data("x", [2, 3]), w := nn.Linear(3, 3).weight) +
                                   mg.matmul(x * 2.0, w)))  # fmt: skip
    cast_model_to_fp16(main, None, False, "float16", "O1")
    append_backward(main.ops[-1].outputs["Out"][0])
    assert types(main).count("sum") == 1
    (total,) = (op for op in main.ops if op.type == "sum")
    assert next(total.output_vars).dtype == float16


def test_level_o2_gives_parameters_16_bits_but_those_of_norms():
    def body():
        h = nn.LayerNorm(4)(nn.Linear(8, 4)(static.data("x", [None, 8])))
        mg.mean(nn.functional.softmax(nn.functional.gelu(h)))

    main = program(body)
    narrowed = cast_model_to_fp16(main, None, False, "bfloat16")
    assert {p.name for p in main.all_parameters() if p.dtype == bfloat16} == narrowed
    assert narrowed == {"linear_0.w_0", "linear_0.b_0"}
    assert [dtype_of(main, t) for t in ("layer_norm", "gelu", "softmax")] == ["bfloat16"] * 3
    assert dtype_of(main, "reduce_mean") == "float32"
    assert types(main).count("cast") == 2, "of the data, and before the mean"


def test_gray_operators_beside_float32_activations_compute_in_float32():
    def body():
        x = static.data("x", [None, 4])
        h = nn.Linear(4, 4)(x)
        mg.mean((h + x) * mg.full([1], 2.0) + mg.tanh(h * mg.full([1], 1e6)))

    main = program(body)
    cast_model_to_fp16(main, None, False, "float16", "O1")
    adds = [op for op in main.ops if op.type == "elementwise_add"]
    assert [str(next(op.output_vars).dtype) for op in adds] == ["float16", "float32", "float32"]
    muls = [op for op in main.ops if op.type == "elementwise_mul"]
    assert [next(op.output_vars).dtype for op in muls] == [float32, float32], "1e6 is infinite in float16"


def test_what_the_user_typed_stays():
    def body():
        x = static.data("x", [None, 4])
        h = nn.Linear(4, 4)(x)
        wide = mg.cast(h, "float32")
        low = mg.cast(x, "bfloat16")
        mg.mean(mg.tanh(wide))
        mg.mean(mg.matmul(low, low, transpose_y=True))
        mg.tanh(mg.cast(x, "float64"))

    main = program(body)
    cast_model_to_fp16(main, None, False, "float16", "O1")
    tanh = [next(op.output_vars).dtype.name for op in main.ops if op.type == "tanh"]
    assert tanh == ["float32", "float64"]
    matmuls = [next(op.output_vars).dtype.name for op in main.ops if op.type == "matmul"]
    assert matmuls == ["float16", "bfloat16"]


def test_stopped_gradients_stay_stopped():
    def body():
        h = nn.Linear(4, 4)(static.data("x", [None, 4]))
        h.stop_gradient = True
        body.loss = mg.mean(nn.Linear(4, 1)(nn.functional.relu(h)))

    main = program(body)
    cast_model_to_fp16(main, None, False, "float16", "O2")
    assert sorted(p.name for p, _ in append_backward(body.loss)) == ["linear_2.b_0", "linear_2.w_0"]


# lists and guards


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_lists_are_obeyed(level):
    def body():
        h = nn.Linear(8, 8)(static.data("x", [None, 8]))
        mg.mean(mg.tanh(nn.functional.softmax(nn.functional.relu(h))))

    def found(**lists):
        main = program(body)
        cast_model_to_fp16(main, AutoMixedPrecisionLists(**lists), False, "float16", level)
        return {t: dtype_of(main, t) for t in ("matmul", "relu", "softmax", "tanh", "reduce_mean")}

    usual = found()
    assert usual["matmul"] == usual["relu"] == "float16" and usual["reduce_mean"] == "float32"
    assert usual["softmax"] == usual["tanh"] == ("float32" if level == "O1" else "float16")
    assert set(found(custom_black_list={"matmul_v2"}).values()) == {"float32"} or level == "O2"
    assert found(custom_black_list={"matmul_v2"})["matmul"] == "float32"
    assert found(custom_black_list={"relu"})["relu"] == "float32"
    assert found(custom_black_list={"softmax"})["softmax"] == "float32"
    white = found(custom_white_list={"softmax", "mean"})
    assert white["softmax"] == white["tanh"] == white["reduce_mean"] == "float16"
    assert found(custom_black_varnames={"linear_0.w_0"})["matmul"] == "float32"


def test_guards():
    def body():
        x = static.data("x", [None, 4])
        with static.amp.fp16_guard():
            a = mg.matmul(x, x, transpose_y=True)
        with static.name_scope("block"), static.amp.bf16_guard():
            b = mg.matmul(x, x, transpose_y=True)
        mg.mean(mg.matmul(a + b, x))

    for guard, halves in ((True, 2), (False, 3)):
        main = program(body)
        cast_model_to_fp16(main, None, guard, "bfloat16", "O1")
        matmuls = [next(op.output_vars).dtype for op in main.ops if op.type == "matmul"]
        assert matmuls == [bfloat16] * halves + [float32] * (3 - halves)
    plain = program(body)
    assert {op.type for op in plain.ops} == {"matmul", "elementwise_add", "reduce_mean"}, "guards change nothing"


def test_a_program_with_gradients_is_refused_and_stays():
    main = program(two_heads)
    append_backward(main.ops[-1].outputs["Out"][0])
    text = str(main)
    with pytest.raises(ProgramError, match="has gradients or updates already"):
        cast_model_to_fp16(main, None, False)
    assert str(main) == text


def test_masks_of_data_are_not_rounded():
    """-1e9 would be -inf in float16."""

    def body():
        x, mask = static.data("x", [2, 4, 8]), static.data("mask", [4, 4])
        scores = mg.matmul(x, x, transpose_y=True) + mask
        body.out = mg.matmul(nn.functional.softmax(scores), x)

    main = program(body)
    cast_model_to_fp16(main, None, False, "float16", "O2")
    rng = np.random.default_rng(0)
    feed = {"x": rng.normal(size=(2, 4, 8)).astype(float32), "mask": np.full((4, 4), -1e9, float32)}
    (found,) = static.Executor().run(main, feed, [body.out], scope=static.Scope())
    assert found.dtype == float16 and np.isfinite(found).all()


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_numbers_that_16_bits_cannot_hold_keep_their_operator_in_float32(level):
    def body():
        h = nn.Linear(4, 4)(static.data("x", [None, 4]))
        body.out = mg.where(h > 0.0, h, mg.full_like(h, -1e9)), mg.scale(h, 1.0, -1e9), mg.clip(h, -2.0, 2.0)

    for dtype, types in (("float16", ["float32"] * 2), ("bfloat16", ["bfloat16"] * 2)):
        main = program(body)
        cast_model_to_fp16(main, None, False, dtype, level)
        assert [v.dtype.name for v in body.out] == [*types, dtype]
    feed, scope, exe = {"x": np.ones((1, 4), float32)}, static.Scope(), static.Executor()
    main = program(body)
    cast_model_to_fp16(main, None, False, "float16", level)
    for p in main.all_parameters():
        scope.write(p.name, np.full(p.shape, -1.0, p.dtype))
    assert (exe.run(main, feed, [body.out[0]], scope=scope)[0] == np.float32(-1e9)).all()


def tied():
    """A weight that a table and a product read, and the scale of a batch norm."""
    words = static.data("words", [None, 3], "int64")
    table = nn.Embedding(5, 4)
    h = nn.BatchNorm1D(4)(mg.reshape(table(words), [-1, 4]))
    mg.mean(mg.matmul(nn.Linear(4, 4)(h), table.weight, transpose_y=True))


def test_level_o2_leaves_parameters_wide_that_are_read_so():
    """By operators that turn out to compute in float32, as those of batch norm, or by those that the user names."""
    main = program(tied)
    assert cast_model_to_fp16(main, None, False) == {"embedding_0.w_0", "linear_0.w_0", "linear_0.b_0"}
    main = program(tied)
    lists = AutoMixedPrecisionLists(custom_black_list={"embedding"})
    assert cast_model_to_fp16(main, lists, False) == {"linear_0.w_0", "linear_0.b_0"}
    cast_back = {v.name for op in main.ops for v in op.input_vars if op.type == "cast" and v.dtype == float16}
    assert not cast_back & {p.name for p in main.all_parameters()}, "no parameter is rounded and cast back"


def test_each_operator_is_in_a_list_or_left_to_float32_on_purpose():
    """Whoever adds an operator says which."""
    unlisted = {
        "acosh", "argsort", "asinh", "atan", "atan2", "cast", "ceil", "cos", "cummax", "cummin", "cumprod",
        "elementwise_mod", "elementwise_pow", "floor", "hypot", "i0e", "i1e", "increment", "lgamma",
        "linear_recurrence", "logaddexp", "logcumsumexp", "nextafter", "pad", "polygamma", "round", "running_average",
        "sin", "sqrt", "trunc",
        "used_statistics",
        *("call", "cond", "deferred", "py_func", "pylayer", "while_loop"),  # blocks keep their types
        *("barrier", "c_allgather", "c_allreduce_sum", "c_broadcast", "c_reduce_sum", "c_reducescatter"),
        *("c_allreduce_coalesced", "c_shards", "c_reduce_shards", "c_gather_shards"),
        *("cholesky", "determinant", "eigh", "lu", "pinv", "qr", "slogdeterminant", "solve", "svd", "triangular_solve"),
    }  # fmt: skip
    listed = WHITE | GRAY | GRAY_O2 | BLACK
    made = {n for n in OPS if n.startswith(("foreach_", "fused_elementwise")) or n.endswith("_grad")}
    of_passes = {"matmul_accumulate", "column_sums", "layer_norm_again"}
    free = {n for n, op in OPS.items() if op.differentiable} - listed - made - of_passes
    assert free == unlisted
    assert listed - {"stop_gradient"} <= set(OPS) and not (WHITE & (GRAY | BLACK)) and not GRAY & BLACK
