"""Attention by cuDNN without a GPU: what it is asked for, which calls it gets, how it runs in a plan.

Its frontend is taken as it is where it is installed with libcudnn, and else a double of it that draws nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import sys
import types
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph import cuda
from minigraph.errors import AttrError, PlaceError
from minigraph.kernels.cuda.attention import attention
from minigraph.kernels.cuda.attention.cudnn import graph as attention_cudnn_graph
from minigraph.kernels.cuda.attention.cudnn import kernel as attention_cudnn
from minigraph.kernels.cuda.record.binder import Binder, Device
from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.kernels.cuda.record.call import every_call
from minigraph.kernels.cuda.record.calls import Foreign
from minigraph.ops.attention import memory_efficient_attention, seen_positions
from minigraph.ops.attention_grad import memory_efficient_attention_grad
from minigraph.program.builder import Builder
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor
from minigraph.static import BuildStrategy, CompiledProgram
from minigraph.types import as_dtype
from tests.support import gpu_stub

ATTRS = memory_efficient_attention.bind_attrs({})
F16 = as_dtype("float16")


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr(attention_cudnn, "is_installed", lambda: True)


def slots(queries=100, keys=77, heads=4, groups=2, d=64, dv=0, dtype=F16, layout="bshd"):
    def buffer(size, count, width):
        return Buffer((2, size, count, width) if layout == "bshd" else (2, count, size, width), dtype)

    kv = heads // groups
    return {"Q": buffer(queries, heads, d), "K": buffer(keys, kv, d), "V": buffer(keys, kv, dv or d)}


def results(ins, sums=True):
    q = ins["Q"]
    return {"Out": Buffer(q.shape, q.dtype), "LogSumExp": Buffer((2, 4, 100), np.dtype("float32")) if sums else None}


def with_gradient(ins):
    return {**ins, **results(ins), "Out_grad": Buffer(ins["Q"].shape, ins["Q"].dtype)}


def begun(**facts) -> Binder:
    binder = Binder(**facts)
    binder.begin(0)
    return binder


# which calls it gets


@pytest.mark.parametrize(
    ("changes", "attrs"),
    [
        ({}, {}), ({"dtype": as_dtype("bfloat16"), "d": 8}, {}), ({"d": 256, "dv": 72}, {"causal": True}),
        ({"layout": "bhsd"}, {"layout": "bhsd", "window": (100, 3)}), ({}, {"scale": -0.3}),
        ({"keys": 100}, {"causal": True, "bottom_right": True}),
        ({"keys": 120}, {"window": (5, 0), "bottom_right": True}), ({}, {"dropout": 0.5, "is_test": True}),
    ],
)  # fmt: skip
def test_plain_calls_are_taken(installed, changes, attrs):
    assert attention_cudnn.reasons(slots(**changes), {**ATTRS, **attrs}, "sm_90a") == []


REFUSED = [
    ({}, {}, "sm_75", "needs sm_80"),
    ({"dtype": np.dtype("float32")}, {}, "sm_90a", "16-bit"),
    ({"d": 60}, {}, "sm_90a", "head dimensions 60 and 60"),
    ({"dv": 264}, {}, "sm_90a", "head dimensions 64 and 264"),
    ({}, {"dropout": 0.1}, "sm_90a", "other random numbers"),
    ({"queries": 0}, {}, "sm_90a", "a size is 0"),
    ({"keys": 0}, {}, "sm_90a", "a size is 0"),
    ({}, {"deterministic": True}, "sm_90a", "do not repeat bit by bit"),
    ({"queries": 1}, {}, "sm_90a", "with one query"),
    ({"queries": 1 << 23}, {}, "sm_90a", "2^31 elements"),
    ({}, {"causal": True, "bottom_right": True}, "sm_90a", "some queries see no key"),
    ({}, {"window": (9, 9)}, "sm_90a", "some queries see no key"),
    ({}, {"window": (50, 9)}, "sm_90a", "queries are more than keys"),
    ({"keys": 99}, {"window": (200, 1), "bottom_right": True}, "sm_90a", "queries are more than keys"),
]


@pytest.mark.parametrize(("changes", "attrs", "arch", "reason"), REFUSED)
def test_other_calls_are_refused_and_go_to_other_kernels(installed, changes, attrs, arch, reason):
    ins, attrs = slots(**changes), {**ATTRS, **attrs}
    (why,) = attention_cudnn.reasons(ins, attrs, arch)
    assert reason in why
    binder = begun(device=Device(arch))
    assert attention.chosen(binder, ins, attrs).name != "cudnn"
    assert f"not by cudnn: {why}" in binder.notes[-1][1]
    with pytest.raises(PlaceError, match=r"(?s)no kernel .*: not by cudnn.*hint: attention_kernel='auto'"):
        attention.chosen(begun(device=Device(arch), attention="cudnn"), ins, attrs)


@pytest.mark.parametrize("slot", ["Bias", "Mask", "CuSeqlensQ", "CuSeqlensK"])
def test_masks_biases_and_packed_sequences_are_refused(installed, slot):
    assert attention_cudnn.reasons({**slots(), slot: Buffer((1,), F16)}, ATTRS, "sm_90a") == [f"{slot} is given"]


def test_without_the_package_everything_is_as_before_and_said(monkeypatch):
    monkeypatch.setattr(attention_cudnn, "is_installed", lambda: False)
    binder = begun()
    attention.memory_efficient_attention(binder, slots(), results(slots()), ATTRS)
    assert [type(c).__name__ for c in binder.calls] == ["Launch"]
    assert binder.notes == [(0, "computed by wgmma; not by cudnn: nvidia-cudnn-frontend is not installed")]
    with pytest.raises(PlaceError, match="not by cudnn: nvidia-cudnn-frontend is not installed"):
        attention.memory_efficient_attention(begun(attention="cudnn"), slots(), results(slots()), ATTRS)


def test_whether_it_is_installed_is_looked_up():
    assert attention_cudnn.is_installed() == (importlib.util.find_spec("cudnn") is not None)


# who asks for it


@pytest.mark.parametrize("autotune", [False, True])
def test_nobody_gets_it_unasked(installed, autotune):
    binder = begun(autotune=autotune)
    attention.memory_efficient_attention(binder, slots(), results(slots()), ATTRS)
    outs = {f"{s}_grad": Buffer(b.shape, b.dtype) for s, b in slots().items()}
    attention.memory_efficient_attention_grad(binder, with_gradient(slots()), outs, ATTRS)
    assert not any(isinstance(c, Foreign) for c in every_call(binder.calls))
    said = "computed by wgmma; not by cudnn: only attention_kernel='cudnn' takes it"
    assert [text for _, text in binder.notes] == [said, said]


def test_it_takes_no_gradient_of_log_sum_exp(installed):
    ins = {**with_gradient(slots()), "LogSumExp_grad": Buffer((2, 4, 100), np.dtype("float32"))}
    outs = {f"{s}_grad": Buffer(b.shape, b.dtype) for s, b in slots().items()}
    binder = begun()
    attention.memory_efficient_attention_grad(binder, ins, outs, ATTRS)
    assert binder.notes == [(0, "computed by wgmma; not by cudnn: LogSumExp_grad is given")]
    with pytest.raises(PlaceError, match="not by cudnn: LogSumExp_grad is given"):
        attention.memory_efficient_attention_grad(begun(attention="cudnn"), ins, outs, ATTRS)


@pytest.mark.parametrize("name", ["wgmma", "mma", "exact", "cudnn"])
def test_a_name_is_the_kernel(installed, name):
    assert attention.chosen(begun(attention=name), slots(), ATTRS).name == name


def test_names_of_kernels_are_those_of_the_strategy():
    for kernel in attention.KERNELS:
        assert BuildStrategy(attention_kernel=kernel.name).run_options().attention == kernel.name
    assert BuildStrategy().run_options().attention == "auto"
    with pytest.raises(AttrError, match="wgmma, mma, exact or cudnn"):
        BuildStrategy(attention_kernel="flash")


# what it is asked for


def frontend():
    """The names that attributes need."""
    return types.SimpleNamespace(diagonal_alignment=types.SimpleNamespace(TOP_LEFT="top", BOTTOM_RIGHT="bottom"))


def seen_by_cudnn(asked) -> np.ndarray:
    """Positions that its documentation leaves: column < row + 1 + right bound, column + left bound > row."""
    c, facts = asked.call, attention_cudnn_graph._facts(frontend(), asked)
    row, column = np.arange(c.queries)[:, None], np.arange(c.keys)[None]
    assert ("diagonal_alignment" in facts) == any("bound" in name for name in facts)
    if facts.get("diagonal_alignment") == "bottom":
        row = row + c.keys - c.queries
    right, left = facts.get("diagonal_band_right_bound"), facts.get("diagonal_band_left_bound")
    assert right is None or right >= 0
    assert left is None or left >= 1
    seen = np.ones((c.queries, c.keys), bool)
    seen &= True if right is None else column <= row + right
    seen &= True if left is None else column + left > row
    return seen


def test_bounds_leave_what_the_operator_sees_and_rows_without_keys_are_refused(installed, rng):
    taken = 0
    for _ in range(600):
        queries, keys = (int(n) for n in rng.integers(1, 12, 2))
        window = None if rng.random() < 0.3 else tuple(int(n) for n in rng.integers(0, 14, 2))
        attrs = {**ATTRS, "causal": rng.random() < 0.5, "bottom_right": rng.random() < 0.5, "window": window}
        ins = slots(queries, keys)
        wanted = seen_positions(queries, keys, attrs["causal"], attrs["bottom_right"], window, None, None)
        why = attention_cudnn.reasons(ins, attrs, "sm_90a")
        assert ("some queries see no key" in why) == bool((~wanted.any(axis=1)).any())
        if not why:
            taken += 1
            np.testing.assert_array_equal(seen_by_cudnn(attention_cudnn.asked(ins, attrs, False, True)), wanted)
    assert taken > 200


def test_a_bound_that_hides_nothing_is_not_asked_for(installed):
    asked = attention_cudnn.asked(slots(50, 50), {**ATTRS, "window": (49, 49), "bottom_right": True}, False, True)
    assert (asked.left, asked.right, asked.bottom_right) == (None, None, False)


def test_operands_and_scratch_of_what_is_not_wanted(installed):
    ins, binder = slots(), begun(attention="cudnn")
    outs = results(ins, sums=False)
    attention.memory_efficient_attention(binder, ins, outs, ATTRS)
    given = with_gradient(ins)
    attention.memory_efficient_attention_grad(binder, given, {"K_grad": Buffer(ins["K"].shape, F16)}, ATTRS)
    first, second = binder.calls
    assert first.operands == (*ins.values(), outs["Out"])
    assert not first.graph.statistics and not first.graph.backward
    assert second.operands[:6] == tuple(given[s] for s in ("Q", "K", "V", "Out", "LogSumExp", "Out_grad"))
    assert [b.shape for b in second.operands[6:]] == [ins[s].shape for s in "QKV"]
    assert [b in binder.scratches[0] for b in second.operands[6:]] == [True, False, True]
    assert {id(b) for b in second.buffers()} == {id(b) for b in (*second.operands, second.workspace)}
    assert first.graph != second.graph
    assert first.graph == attention_cudnn.asked(slots(), ATTRS, False, False), "layers of one shape share a graph"


def drawable() -> Any:
    """The frontend with libcudnn, or None."""
    if not attention_cudnn.is_installed():
        return None
    found = importlib.import_module("cudnn")
    try:
        found.backend_version()
    except RuntimeError:
        return None
    return found


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize(
    ("sizes", "attrs"),
    [({}, {}), ({"keys": 100}, {"causal": True}), ({"keys": 130}, {"causal": True, "bottom_right": True}),
     ({"keys": 130}, {"window": (9, 3), "bottom_right": True}),
     ({"keys": 130, "d": 72, "dv": 128}, {"window": (9, 3)})],
)  # fmt: skip
def test_the_real_frontend_accepts_the_graphs(layout, sizes, attrs):
    if drawable() is None:
        pytest.skip("needs nvidia-cudnn-frontend and libcudnn")
    ins, attrs = slots(**sizes, layout=layout), {**ATTRS, **attrs, "layout": layout}
    assert attention_cudnn.reasons(ins, attrs, "sm_90a") == []
    for backward, statistics, count in ((False, False, 4), (False, True, 5), (True, True, 9)):
        asked = attention_cudnn.asked(ins, attrs, backward, statistics)
        graph = attention_cudnn_graph.drawn(asked, sm_version=90, sm_count=132)
        graph.validate()
        graph.build_operation_graph()
        assert sorted(graph._variant_pack_uids()) == list(range(1, count + 1))


class Frontend:
    """A double of the frontend that remembers what it is told; its second plan is the library's own."""

    cudnnGraphNotSupportedError = type("cudnnGraphNotSupportedError", (Exception,), {})
    data_type = types.SimpleNamespace(HALF="half", BFLOAT16="bfloat16", FLOAT="float")
    heur_mode = types.SimpleNamespace(A="a", FALLBACK="b")
    diagonal_alignment = frontend().diagonal_alignment

    def __init__(self, engines=("own", None), missing=""):
        self.engines, self.missing, self.told = engines, missing, []

    def backend_version(self):
        if self.missing == "library":
            raise RuntimeError("Unable to find symbol cudnnGetVersion")
        return 91900

    def create_handle(self):
        return "handle"

    def set_stream(self, handle, stream):
        self.told.append(("set_stream", handle, stream))

    def pygraph(self, **facts):
        self.told.append(("pygraph", facts))
        return _Graph(self)


class _Tensor:
    def __init__(self, **facts):
        self.facts = facts

    def __getattr__(self, name):
        def setter(value):
            self.facts[name.removeprefix("set_")] = value
            return self

        return setter


class _Graph:
    def __init__(self, frontend):
        self.frontend, self.plans, self.number, self.outputs = frontend, frontend.engines, 0, []

    @property
    def selected_engine(self):
        return self.frontend.engines[self.number]

    def select_plan(self, number):
        self.number = number

    def tensor(self, **facts):
        return _Tensor(**facts)

    def sdpa(self, **facts):
        return self.made("sdpa", facts, 2 if facts["generate_stats"] else 1, 2)

    def sdpa_backward(self, **facts):
        return self.made("sdpa_backward", facts, 3, 3)

    def made(self, name, facts, count, of):
        self.frontend.told.append((name, facts))
        self.outputs = [_Tensor() for _ in range(count)]
        return [*self.outputs, *[None] * (of - count)]

    def get_workspace_size(self):
        return 77

    def execute(self, operands, workspace, handle):
        self.frontend.told.append(("execute", operands, workspace, handle))

    def check_support(self):
        if self.frontend.missing == "engine":
            raise self.frontend.cudnnGraphNotSupportedError("no engine\n")

    def __getattr__(self, name):
        return lambda *args: self.frontend.told.append((name, *args))


@pytest.fixture
def fake(monkeypatch):
    class OneDevice:
        def Device(self, index):
            return contextlib.nullcontext()

    def use(**facts):
        made = Frontend(**facts)
        monkeypatch.setitem(sys.modules, "cudnn", made)
        return made

    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(cuda=OneDevice()))
    for cached in (attention_cudnn_graph.planned, attention_cudnn_graph._handle):
        cached.cache_clear()
    yield use
    for cached in (attention_cudnn_graph.planned, attention_cudnn_graph._handle):
        cached.cache_clear()


@pytest.mark.parametrize("statistics", [False, True])
def test_forward_is_planned_by_the_library_and_runs_at_addresses_on_a_stream(fake, statistics):
    library = fake()
    ins, attrs = slots(), {**ATTRS, "causal": True, "scale": 0.25}
    plan = attention_cudnn.asked(ins, attrs, False, statistics).planned(3)
    assert attention_cudnn.asked(ins, attrs, False, statistics).planned(3) is plan, "planned once"
    assert plan.nbytes == 77
    assert plan.graph.number == 1, "the first plan is not the library's"
    plan.run([10, 20, 30], 40, 50)
    facts = dict((name, more) for name, *more in library.told)
    (sdpa,) = facts["sdpa"]
    assert (sdpa["attn_scale"], sdpa["diagonal_band_right_bound"], sdpa["generate_stats"]) == (0.25, 0, statistics)
    assert [sdpa[n].facts["uid"] for n in "qkv"] == [1, 2, 3]
    assert sdpa["k"].facts["dim"] == [2, 2, 77, 64]
    assert sdpa["k"].facts["stride"] == [77 * 2 * 64, 64, 2 * 64, 1]
    found = [t.facts for t in plan.graph.outputs]
    assert [f["uid"] for f in found] == [4, 5][: 1 + statistics]
    assert [f["data_type"] for f in found] == ["half", "float"][: 1 + statistics]
    names = [name for name, *_ in library.told]
    order = ["pygraph", "sdpa", "validate", "build_operation_graph", "create_execution_plans", "build_plans"]
    assert names == [*order, "set_stream", "execute"]
    assert facts["set_stream"] == ["handle", 50]
    assert facts["execute"] == [{1: 10, 2: 20, 3: 30}, 40, "handle"]


def test_backward_has_nine_operands(fake):
    library = fake()
    plan = attention_cudnn.asked(slots(layout="bhsd"), {**ATTRS, "layout": "bhsd"}, True, True).planned(0)
    ((given,),) = [more for name, *more in library.told if name == "sdpa_backward"]
    uids = [given[n].facts["uid"] for n in ("q", "k", "v", "o", "stats", "dO")]
    assert uids + [t.facts["uid"] for t in plan.graph.outputs] == list(range(1, 10))
    assert given["stats"].facts["dim"] == [2, 4, 100, 1]
    assert [t.facts["dim"][1] for t in plan.graph.outputs] == [4, 2, 2]
    assert plan.graph.outputs[0].facts["stride"] == [4 * 100 * 64, 100 * 64, 64, 1]


@pytest.mark.parametrize(
    ("facts", "said"),
    [({"missing": "library"}, r"cannot be used: Unable to find symbol.*\n(.*\n)*  hint: pip install nvidia-cudnn"),
     ({"missing": "engine"}, "cannot compute this: no engine"),
     ({"engines": ("own", "another")}, "cannot compute this: the library has no plan")],
)  # fmt: skip
def test_what_is_missing_is_said(fake, facts, said):
    fake(**facts)
    with pytest.raises(PlaceError, match=said):
        attention_cudnn.asked(slots(), ATTRS, False, True).planned(0)


# how it runs


class ByNumPy:
    """In the place of a planned graph: the operator's reference on what lies at the addresses."""

    def __init__(self, asked, nbytes=5000):
        self.asked, self.nbytes, self.runs = asked, nbytes, 0

    def run(self, operands, workspace, stream):
        self.runs += 1
        ctypes.memset(workspace, 0xFF, self.nbytes)
        c = self.asked.call

        def shape(heads, rows, width):
            return (c.batch, rows, heads, width) if c.bshd else (c.batch, heads, rows, width)

        q, out = shape(c.heads, c.queries, c.d), shape(c.heads, c.queries, c.dv)
        k, v = shape(c.kv_heads, c.keys, c.d), shape(c.kv_heads, c.keys, c.dv)
        sums = c.batch, c.heads, c.queries
        shapes = [q, k, v, out, sums, out, q, k, v]
        arrays = [
            gpu_stub._seen(Buffer(s, np.dtype("float32") if s is sums else c.dtype, at), int(np.prod(s))).reshape(s)
            for s, at in zip(shapes, operands, strict=False)
        ]
        attrs = {
            "layout": "bshd" if c.bshd else "bhsd", "scale": self.asked.scale, "bottom_right": self.asked.bottom_right,
            "window": tuple(10**6 if n is None else n for n in (self.asked.left, self.asked.right)),
        }  # fmt: skip
        wide = [a.astype(float) for a in arrays[: 6 if self.asked.backward else 3]]
        if self.asked.backward:
            found = memory_efficient_attention_grad.reference(*wide, **attrs)[:3]
            made = arrays[6:]
        else:
            found, made = memory_efficient_attention.reference(*wide, **attrs), arrays[3:]
        for to, value in zip(made, found, strict=False):
            to[...] = value


@pytest.fixture
def stub(installed, monkeypatch):
    for name in ("why_not", "device_count", "runtime", "device_array"):
        monkeypatch.setattr(cuda, name, getattr(cuda, name))  # put back afterwards
    made: dict[Any, ByNumPy] = {}
    monkeypatch.setattr(attention_cudnn_graph, "planned", lambda asked, device: made.setdefault(asked, ByNumPy(asked)))
    runtime = gpu_stub.install()
    runtime.made = made
    return runtime


def trained(layout, dtype):
    """Two layers of attention and the gradients of their inputs."""
    shape = (2, 9, 4, 8) if layout == "bshd" else (2, 4, 9, 8)
    main = mg.static.Program()
    with mg.static.program_guard(main):
        x = mg.static.data("x", shape, dtype)
        w = mg.static.data("w", shape, dtype)
        x.stop_gradient = w.stop_gradient = False
        g = Builder(main.global_block())
        attrs = {"causal": True, "layout": layout, "needs": ["LogSumExp"]}
        y = g.memory_efficient_attention(x, w, x, **attrs)[0]
        loss = mg.sum(g.memory_efficient_attention(y, x, w, **attrs)[0] * w)
        grads = mg.static.gradients(loss, [x, w])
    rng = np.random.default_rng(3)
    return main, {n: rng.normal(size=shape).astype(as_dtype(dtype)) for n in "xw"}, [loss, *grads]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_a_program_trains_with_it_captured_and_says_so(stub, layout, dtype):
    main, feed, fetches = trained(layout, dtype)
    compiled = CompiledProgram(main, build_strategy=BuildStrategy(attention_kernel="cudnn"))
    exe, scope = Executor(mg.CUDAPlace(0)), Scope()
    runs = [exe.run(compiled, feed, fetches, scope=scope) for _ in range(4)]
    assert len(stub.captures) == 1
    assert len(stub.made) == 2, "layers of one shape share their graphs"
    assert sorted(p.runs for p in stub.made.values()) == [8, 8]
    exact = Executor(mg.CPUPlace()).run(main, feed, fetches, scope=Scope())
    near = 0.02 if dtype == "float16" else 0.1
    for found in runs:
        for a, b in zip(found, exact, strict=True):
            np.testing.assert_allclose(a.astype(float), b.astype(float), rtol=0.05, atol=near)
    assert compiled.explain().count("computed by cudnn") == 4


def test_what_cudnn_cannot_plan_is_an_error_that_names_the_operator(stub, monkeypatch):
    def planned(asked, device):
        raise PlaceError("cuDNN cannot compute this: no engine")

    monkeypatch.setattr(attention_cudnn_graph, "planned", planned)
    main, feed, fetches = trained("bshd", "float16")
    compiled = CompiledProgram(main, build_strategy=BuildStrategy(attention_kernel="cudnn"))
    with pytest.raises(PlaceError, match=r"attention\(Q=x.*no engine\n  built at .*test_attention_cudnn"):
        Executor(mg.CUDAPlace(0)).run(compiled, feed, fetches, scope=Scope())
