"""program.summary(): figures counted by hand, sizes that are open, and what notebooks show."""

from __future__ import annotations

from html.parser import HTMLParser

import numpy as np
import pytest

import minigraph as mg
from minigraph.errors import FeedError
from minigraph.opdef import OPS
from minigraph.program.text.html import LINES, ROWS, table, text
from minigraph.static import BuildStrategy, CompiledProgram


def layer(rows, name="x"):
    main = mg.static.Program("layer")
    with mg.static.program_guard(main, mg.static.Program()), mg.base.unique_name.guard():
        x = mg.static.data(name, [rows, 8])
        out = mg.nn.functional.relu(mg.nn.Linear(8, 4)(x))
        loss = mg.mean(out)
        mg.static.append_backward(loss)
    return main, loss


def row(summary, op_type):
    return next(r for r in summary.rows if r.op.type == op_type)


def test_figures_of_a_layer():
    main, loss = layer(16)
    summary = main.summary()
    product = row(summary, "matmul")
    assert (product.parameters, product.flops, product.nbytes) == (32, 2 * 16 * 8 * 4, 4 * (128 + 32 + 64))
    assert row(summary, "elementwise_add").parameters == 4
    assert row(summary, "matmul_grad").flops == 2 * 16 * 8 * 4  # x has no gradient
    assert summary.parameters == 36
    assert summary.flops == sum(r.flops for r in summary.rows)
    fused = CompiledProgram(main, BuildStrategy(fuse_gemm_epilogue=True)).program_for([loss.name]).summary()
    assert row(fused, "fused_gemm_epilogue").flops == 2 * 16 * 8 * 4 + 2 * 16 * 4
    assert fused.parameters == 36
    assert fused.nbytes < summary.nbytes
    assert "linear_1.tmp_0" in str(summary)


def test_products_of_every_kind_count_multiplications_and_sums():
    """Of the reference: an array that counts what matmul does would say the same."""
    rng = np.random.default_rng(0)
    for op_type in ("matmul", "matmul_grad"):
        opdef = OPS[op_type]
        for inputs, attrs in opdef.samples_function(rng):
            types = {
                slot.name: mg.types.TensorType(a.shape, mg.types.float64)
                for slot, a in zip(opdef.inputs, inputs, strict=False)
            }
            x, y = inputs[0], inputs[1]
            x = x.swapaxes(-1, -2) if attrs.get("trans_x") and x.ndim > 1 else x
            y = y.swapaxes(-1, -2) if attrs.get("trans_y") and y.ndim > 1 else y
            products = (x @ y).size * x.shape[-1]
            if op_type == "matmul":
                types["Out"] = mg.types.TensorType((x @ y).shape, mg.types.float64)
            else:
                types["X_grad"] = types["Y_grad"] = types["X"]
            factor = 2 if op_type == "matmul" else 4
            assert opdef.flops_function(types, opdef.bind_attrs(attrs)) == factor * products


def test_open_sizes_are_unknown_until_they_are_given():
    main, _ = layer(None)
    assert main.summary().flops is None
    assert "?" in str(main.summary())
    assert main.summary({"x": [16, 8]}).flops == layer(16)[0].summary().flops
    assert main.summary({"x": [16, 8]}).nbytes == layer(16)[0].summary().nbytes
    with pytest.raises(FeedError, match="is no data variable"):
        main.summary({"y": [16, 8]})
    with pytest.raises(FeedError, match="cannot have the shape"):
        main.summary({"x": [16, 7]})


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.names, self.text, self.open = set(), "", []

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


SHOWN = {"details", "summary", "pre", "table", "thead", "tbody", "tr", "th", "td", "p"}
BAD = "<script>alert(1)</script>&\"'"


def test_notebooks_show_folded_parts_and_names_stay_text():
    main, loss = layer(16, BAD)
    main.name = BAD
    compiled = CompiledProgram(main, BuildStrategy.all())
    report = compiled.memory_report(fetch_list=[loss], place=mg.CPUPlace())
    for each in (main, main.summary(), compiled, compiled.explain(), report):
        tags = Tags()
        tags.feed(each._repr_html_())
        tags.close()
        assert tags.open == []
        assert tags.names <= SHOWN
        assert "<script>" in tags.text or each is not main
        assert len(each._repr_html_()) < 20_000
    assert compiled.explain() == str(compiled.explain())


def test_long_parts_are_cut():
    assert text("a\n" * (LINES + 5)).count("\n") <= LINES + 2
    assert "6 more lines" in text("a\n" * (LINES + 5))
    assert table(["h"], [["a"]] * (ROWS + 7)).count("<td>") == ROWS
    assert "7 more rows" in table(["h"], [["a"]] * (ROWS + 7))


def test_attention_and_the_last_layer_count_their_products():
    f32 = mg.types.float32
    q, k, v = (mg.types.TensorType(s, f32) for s in ((2, 5, 3, 8), (2, 7, 3, 8), (2, 7, 3, 4)))
    types = {"Q": q, "K": k, "V": v}
    forward, backward = OPS["memory_efficient_attention"], OPS["memory_efficient_attention_grad"]
    scores = 2 * 3 * 5 * 7
    assert forward.flops_function(types, {"layout": "bshd"}) == 2 * scores * (8 + 4)
    assert backward.flops_function(types, {"layout": "bshd"}) == 2 * scores * (3 * 8 + 2 * 4)
    x, w = mg.types.TensorType((6, 8), f32), mg.types.TensorType((10, 8), f32)
    last = OPS["fused_linear_cross_entropy"]
    assert last.flops_function({"X": x, "W": w}, {"trans_w": True}) == 2 * 6 * 8 * 10
    assert last.flops_function({"X": x, "W": w, "DX": x, "DW": w}, {"trans_w": True}) == 3 * 2 * 6 * 8 * 10
    acc = mg.types.TensorType((4, 5), f32)
    given = {"X": mg.types.TensorType((6, 4), f32), "Y": mg.types.TensorType((6, 5), f32), "Acc": acc, "Out": acc}
    assert OPS["matmul_accumulate"].flops_function(given, {"trans_x": True, "trans_y": False}) == 2 * 6 * 4 * 5 + 20
