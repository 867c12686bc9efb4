"""static.amp.bf16: Paddle's older names say the same as those of static.amp."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.program import unique_name
from minigraph.static import amp
from minigraph.static.amp import bf16
from minigraph.types import bfloat16, float32

X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)


def written(change: Any, trained: bool) -> tuple[str, str, Any]:
    """The text of a small network after `change`, that of its startup program, and what `change` gives."""
    main, startup = static.Program("main"), static.Program("startup")
    with static.program_guard(main, startup), unique_name.guard():
        x = static.data("x", [None, 4], "float32")
        with bf16.bf16_guard():
            h = static.nn.fc(x, 3, activation="relu")
        loss = mg.mean(static.nn.fc(h, 2))
        made = change(mg.optimizer.SGD(0.1)).minimize(loss) and None if trained else change(main)
    return str(main), str(startup), made


@pytest.mark.parametrize(("older", "newer"), [
    (lambda o: bf16.decorate_bf16(o), lambda o: amp.decorate(o, dtype="bfloat16")),
    (lambda o: bf16.decorate_bf16(o, use_bf16_guard=True), lambda o: amp.decorate(o, dtype="bfloat16")),
    (lambda o: bf16.decorate_bf16(o, use_pure_bf16=True),
     lambda o: amp.decorate(o, level="O2", dtype="bfloat16", use_amp_guard=True)),
    (lambda o: bf16.decorate_bf16(o, None, True, False), lambda o: amp.decorate(o, level="O2", dtype="bfloat16")),
    (lambda o: bf16.decorate_bf16(o, bf16.AutoMixedPrecisionListsBF16(custom_fp32_list={"matmul_v2"})),
     lambda o: amp.decorate(o, amp.CustomOpLists(custom_black_list={"matmul_v2"}), dtype="bfloat16")),
])  # fmt: skip
def test_decorated_optimizers(older, newer):
    assert written(older, True) == written(newer, True)
    assert written(older, True) != written(lambda o: o, True)


@pytest.mark.parametrize(("older", "newer"), [
    (lambda p: bf16.cast_model_to_bf16(p), lambda p: amp.cast_model_to_fp16(p, dest_type="bfloat16")),
    (lambda p: bf16.cast_model_to_bf16(p, static.Program(), None, False),
     lambda p: amp.cast_model_to_fp16(p, None, False, "bfloat16")),
    (lambda p: bf16.rewrite_program_bf16(p), lambda p: amp.cast_model_to_fp16(p, None, False, bfloat16, "O1") and None),
])  # fmt: skip
def test_cast_programs(older, newer):
    assert written(older, False)[:2] == written(newer, False)[:2]
    assert "cast" in written(older, False)[0]


def test_parameters_are_rounded_and_the_program_runs():
    x = static.data("x", [None, 4], "float32")
    out = static.nn.fc(x, 3, bias_attr=False, weight_attr=mg.ParamAttr("w"))
    main, scope, exe = static.default_main_program(), static.Scope(), static.Executor()
    exe.run(static.default_startup_program(), scope=scope)
    wide = scope.read("w").astype(np.float32)
    names = bf16.cast_model_to_bf16(main, use_bf16_guard=False)
    assert names == {"w"}
    bf16.cast_parameters_to_bf16(mg.CPUPlace(), main, scope, names)
    assert scope.read("w").dtype == bfloat16
    (value,) = exe.run(main, feed={"x": X}, fetch_list=[out], scope=scope)
    np.testing.assert_allclose(value.astype(np.float32), X @ wide, rtol=2**-6, atol=2**-6)


def test_lists_have_both_names():
    lists = bf16.AutoMixedPrecisionListsBF16({"reduce_sum"}, {"matmul_v2"}, {"h"})
    assert lists.bf16_list is lists.white_list and "reduce_sum" in lists.bf16_list
    assert lists.fp32_list is lists.black_list and "matmul" in lists.fp32_list
    assert lists.fp32_varnames == {"h"} and lists.amp_dtype == "bfloat16"


def test_bits_of_bfloat16():
    values = np.array([[1.5, -2.25], [3e38, 0.1]])
    bits = bf16.convert_float_to_uint16(values)
    assert bits.dtype == np.uint16 and bits.tolist() == [[16320, 49168], [32609, 15820]], (
        "as Paddle 2.6.2"
    )
    np.testing.assert_allclose(bits.view(bfloat16).astype(float32), values, rtol=2**-7)
    assert bf16.convert_float_to_uint16(0.3).shape == ()
