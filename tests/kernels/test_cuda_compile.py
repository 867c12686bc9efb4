"""Every operator has a GPU form; its launches are valid and its kernels compile without spilled registers.

Needs no GPU. Operators are bound on the shapes of their samples in all float types, and on shapes that
reach the kernels for long rows, few rows, many elements.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from typing import Any

import pytest

from minigraph.kernels.cuda.record.binder import Binder, Device
from minigraph.kernels.cuda.record.bindings import nvrtc
from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.kernels.cuda.record.call import every_call
from minigraph.kernels.cuda.record.calls import Launch
from minigraph.kernels.cuda.record.compile import compile_source
from minigraph.opdef import OPS, OpDef
from minigraph.types import FLOATS, TensorType, as_dtype
from tests.support import opcheck
from tests.support.grades import graded

FLOAT_TYPES = ("float64", "float32", "float16", "bfloat16")
DEVICES = {"sm_80": Device("sm_80", 108, shared=163 * 1024), "sm_90a": Device()}
ALL_DEVICES = {**DEVICES, "sm_89": Device("sm_89", 142, shared=99 * 1024)}  # A100, H200, L40S
REGISTERS = 65536  # of a multiprocessor

# Operators that CUDAPlace cannot run, and why.
NO_GPU_FORM = dict.fromkeys(
    ("call", "cond", "deferred", "deferred_grad", "py_func", "pylayer", "while_loop", "while_loop_grad"),
    "the host decides: runtime/control",
)

# Operators whose kernels keep an array in local memory, and why.
LOCAL_MEMORY = {
    name: "digits of 2 / pi, by which the library reduces large angles" for name in ("sin", "cos", "tan")
}
# Bytes that CUDA 12's compiler spills, or any for sm_89. CUDA 13's for sm_80 and sm_90a spills nothing.
SPILLED = {"attention_mma_forward": 8, "attention_mma_prepare": 16, "input_grad": 16}

ROWS = (
    "2048,1024", "2048,4096", "2048,8192", "512,16384", "512,32768", "512,50257", "3,1000000", "64,700,128", "9000,30",
)  # fmt: skip
REDUCED = (("8192,4096", (0,)), ("8192,4096", (1,)), ("64,3000,48", (1,)), ("1000003", None), ("8,9,10,11", (0, 2)))


def types(text: str, dtype: Any) -> TensorType:
    return TensorType(tuple(int(s) for s in text.split(",") if s), as_dtype(dtype))


def without(shape: str, axis: int) -> str:
    """`shape` with size 1 at `axis`."""
    sizes = shape.split(",")
    sizes[axis] = "1"
    return ",".join(sizes)


# Batches and lengths of narrow heads whose attention is cut in all ways.
NARROW = (1, 127), (1, 300), (1, 512), (1, 1024), (4, 300), (8, 512)


def large(dtype: str) -> Iterator[tuple[str, list[TensorType | None], dict[str, Any]]]:
    """(operator, input types, attributes) of shapes that samples do not reach."""

    def of(*shapes: str) -> list[TensorType | None]:
        return [types(s, dtype) for s in shapes]

    for shape in ROWS:
        axis = 1 if shape.count(",") == 2 else 0 if shape == "9000,30" else -1
        row, at = without(shape, axis), {"axis": axis}
        label = types(row, "int64")
        for name in ("softmax", "log_softmax"):
            yield name, of(shape), at
            yield f"{name}_grad", of(shape, shape), at
        yield "softmax_with_cross_entropy", [*of(shape), label], at
        yield "softmax_with_cross_entropy", of(shape, shape), {"soft_label": True, **at}
        yield "softmax_with_cross_entropy_grad", [label, *of(shape, row)], at
        yield "softmax_with_cross_entropy_grad", of(shape, shape, row), {"soft_label": True, **at}
        if axis == -1:
            rows, n = shape.split(",")
            yield "layer_norm", of(shape, n, n), {}
            yield "layer_norm_grad", of(shape, rows, rows, shape, n, n), {}
            yield "layer_norm_grad", [*of(shape, rows, rows, shape), None, None, *of(rows, rows)], {}
    for shape, axis in REDUCED:
        for name in ("reduce_sum", "reduce_mean", "reduce_prod", "reduce_max"):
            yield name, of(shape), {"axis": axis}
        if axis is None or len(axis) == 1:
            for name in ("arg_max", "arg_min", "cumsum"):
                yield name, of(shape), {"axis": axis and axis[0]}
            yield "cumsum", of(shape), {"axis": axis and axis[0], "reverse": True, "exclusive": True}
    for classes in (131072, 50257, 1000):
        x, w, bias = of("300,16", f"{classes},16", str(classes))
        label, every = types("300", "int64"), {"trans_w": True, "label_smoothing": 0.1, "z_loss": 1e-4, "softcap": 30.0,
                                                      "token_scaling": True}
        for attrs in ({"trans_w": True}, {**every, "chunk_bytes": 64 * classes}):
            yield "fused_linear_cross_entropy", [x, w, label, bias], attrs
            yield "fused_linear_cross_entropy_grad", [x, w, label, *of("300,1"), None, *of("300,1")], attrs
    yield "elementwise_mul_grad", of("4096,1024", "1024", "4096,1024"), {}
    for head in {"float64": (64, 512), "float32": (32, 64, 128, 512)}.get(dtype, (64, 128, 256)):
        q, sums = of(f"4,1024,8,{head}")[0], types("4,8,1024", "float64" if dtype == "float64" else "float32")
        table = [*(None,) * 5, types("16,16", "bool")] if head in (64, 128) else None
        if table is not None:
            yield "memory_efficient_attention", [q, q, q, *table], {"block_size": 64}
            yield "memory_efficient_attention_grad", [q, q, q, q, sums, q, *table], {"block_size": 64}
        for bias in of("8,1024,1024") if head in (64, 512) else (None, *of("8,1024,1024")):
            yield "memory_efficient_attention", [q, q, q, bias], {"causal": True}
            yield "memory_efficient_attention_grad", [q, q, q, q, sums, q, bias], {"causal": True}
    for batch, size in NARROW * (dtype == "float32"):
        q, sums = of(f"{batch},{size},1,32")[0], types(f"{batch},1,{size}", "float32")
        yield "memory_efficient_attention", [q, q, q], {}
        yield "memory_efficient_attention_grad", [q, q, q, q, sums, q], {}
    for rows, width in ((50304, 1024), (50304, 256), (50304, 33), (500, 1024)):  # few ids for a row, or many
        w, grad = of(f"{rows},{width}", f"65536,{width}")
        for ids in types("65536", "int64"), types("65536", "int32"):
            yield "embedding_grad", [ids, w, grad], {}
    for shape in ("3,1031,1033", "3,1030,1034", "3,1024,1040"):
        yield "transpose", of(shape), {"perm": (0, 2, 1)}
    yield "relu", of(f"{2**31 + 3}"), {}
    yield "elementwise_add", of(f"3,{2**30}", "3,1"), {}


def bound(
    opdef: OpDef, inputs: dict[str, Any], attrs: dict[str, Any], device: Device, guarded: bool = False
) -> Binder:  # fmt: skip
    """The operator's calls for inputs of these types ({slot: list of types}), all outputs wanted.

    guarded   outputs belong to a Scope and must stay as they are where a kernel before reported a fault
    """
    variadic = {s.name for s in (*opdef.inputs, *opdef.outputs) if s.variadic}

    def buffers(slots: Sequence[Any], given: dict[str, Any]) -> dict[str, Any]:
        made = {s.name: [Buffer(t.shape, t.dtype) for t in given.get(s.name) or ()] for s in slots}
        return {name: b if name in variadic else b[0] if b else None for name, b in made.items()}

    outputs = opdef.infer_types(inputs, attrs)
    binder = Binder(device)
    binder.begin(1, reference=opdef.reference)
    outs = buffers(opdef.outputs, outputs)
    if guarded:
        binder.wrong[0] = "out of range"
        slots = (slot if isinstance(slot, list) else [slot] for slot in outs.values())
        binder.outside = frozenset(id(b) for slot in slots for b in slot)
    opdef.gpu_bind(binder, buffers(opdef.inputs, inputs), outs, attrs)
    return binder


@cache
def launches(op_type: str, arch: str) -> list[Launch]:
    """All launches of an operator that differ in their source, of samples and of large shapes."""
    opdef, found = OPS[op_type], {}
    for call in opcheck.samples(opdef) if opdef.samples_function else ():
        for dtype in FLOAT_TYPES if call.float_places else FLOAT_TYPES[:1]:
            typed = call.for_gpu(dtype)
            inputs = {slot: [opcheck.type_of(x) for x in xs] for slot, xs in typed.inputs.items()}
            for guarded in (False, True) if "guarded" in opdef.traits else (False,):
                found |= by_source(bound(opdef, inputs, typed.attrs, ALL_DEVICES[arch], guarded))
    for dtype in FLOAT_TYPES:
        for name, given, attrs in large(dtype):
            if name == op_type:
                inputs = {s.name: [t] for s, t in zip(opdef.inputs, given, strict=False) if t}
                found |= by_source(bound(opdef, inputs, opdef.bind_attrs(attrs), ALL_DEVICES[arch]))
    return list(found.values())


def by_source(binder: Binder) -> dict[Any, Launch]:
    calls = [call for call in every_call(binder.calls) if isinstance(call, Launch)]
    for call in calls:
        call.check()
    return {(call.source, call.function, call.shared > 0): call for call in calls}


KERNELS = [name for name, opdef in OPS.items() if "side_effect" not in opdef.traits and name not in NO_GPU_FORM]


@pytest.mark.parametrize("opdef", list(OPS.values()), ids=lambda o: o.type)
def test_operator_has_a_gpu_form(opdef):
    forms = opdef.gpu, opdef.cuda, opdef.shows, opdef.joins
    assert all(form is None for form in forms) == (opdef.type in NO_GPU_FORM)
    assert opdef.type in NO_GPU_FORM or callable(opdef.gpu_bind)


def test_listed_reasons_are_still_needed():
    assert NO_GPU_FORM.keys() | LOCAL_MEMORY.keys() <= OPS.keys()


def looks_at_faults(opdef: OpDef) -> bool:
    """Whether its kernels ask for what others reported, where they write what a Scope keeps."""
    for call in opcheck.samples(opdef) if opdef.samples_function else ():
        inputs = {slot: [opcheck.type_of(x) for x in xs] for slot, xs in call.inputs.items()}
        binder = bound(opdef, inputs, call.attrs, DEVICES["sm_90a"], guarded=True)
        given = (a for c in every_call(binder.calls) if isinstance(c, Launch) for a in c.args)
        if binder.step not in binder.wrong and any(a is binder.fault for a in given):
            return True
    return False


@pytest.mark.parametrize("op_type", KERNELS)
def test_definitions_say_whose_kernels_look_at_faults(op_type):
    assert looks_at_faults(OPS[op_type]) == ("guarded" in OPS[op_type].traits)


@pytest.mark.parametrize(("op_type", "looks"), [("foreach_mul", True), ("fused_adamw", True), ("scale", False)])
def test_a_definition_that_does_not_say_it_is_found(monkeypatch, op_type, looks):
    opdef = OPS[op_type]
    monkeypatch.setattr(opdef, "traits", opdef.traits ^ {"guarded"})
    with pytest.raises(AssertionError):
        test_definitions_say_whose_kernels_look_at_faults(op_type)
    assert looks_at_faults(opdef) == looks


ARCHS = [("sm_80", "sm_90a"), ("sm_89",)]


@pytest.mark.parametrize(
    ("op_type", "archs"), graded(product(KERNELS, ARCHS), now=lambda _, archs: archs is ARCHS[0])
)
def test_launches_are_valid(op_type, archs):
    for arch in archs:
        for call in launches(op_type, arch):
            call.check()
            shared = ALL_DEVICES[arch].shared
            assert call.shared <= shared, f"{call.function} takes {call.shared} bytes of shared memory"


def test_large_shapes_reach_every_row_kernel():
    functions = {call.function for name in KERNELS for call in launches(name, "sm_90a")}
    assert functions >= {
        "pointwise", "rows", "columns", "held", "streamed", "statistics", "apply", "forward", "backward", "column_sums",
    }  # fmt: skip


def test_large_shapes_reach_every_cluster_of_attention():
    found: dict[str, set[str]] = {}
    for op_type in ("memory_efficient_attention", "memory_efficient_attention_grad"):
        for call in launches(op_type, "sm_90a"):
            found.setdefault(call.function, set()).update(re.findall(r"#define CLUSTER (\d+)\n", call.source))
    for function in ("attention_mma_forward", "attention_mma_query_grad", "attention_mma_key_grad"):
        assert found[function] >= {"1", "2", "4", "6", "8"}, function


def family(op_type: str) -> str:
    """What binds it; attention's kernels for the two devices differ."""
    bind = OPS[op_type].gpu_bind
    module = getattr(bind, "func", bind).__module__
    return op_type if module.endswith("attention") else module


FIRST_OF_FAMILY = {family(name): name for name in reversed(KERNELS)}


@pytest.mark.parametrize(
    ("op_type", "arch"),
    graded(product(KERNELS, DEVICES), now=lambda name, arch: FIRST_OF_FAMILY[family(name)] == name),
)
def test_kernels_compile_without_spills(op_type, arch):
    """Every kernel: its first form, float64 of a sample, for sm_80 and its last, bfloat16 of a large shape."""
    for call in ends(launches(op_type, arch))[[*DEVICES].index(arch)].values():
        require_clean(call, op_type, arch)


@pytest.mark.kernels
@pytest.mark.parametrize("op_type", KERNELS)
def test_kernels_compile_without_spills_for_less_shared_memory(op_type):
    """The same for sm_89, whose forms are those of sm_80 but where they take less shared memory."""
    forms = launches(op_type, "sm_89")
    for call in {id(c): c for end in ends(forms) for c in end.values()}.values():
        require_clean(call, op_type, "sm_89")


@pytest.mark.kernels
@pytest.mark.parametrize("arch", DEVICES)
@pytest.mark.parametrize("op_type", KERNELS)
def test_every_form_of_a_kernel_compiles_without_spills(op_type, arch):
    for call in launches(op_type, arch):
        require_clean(call, op_type, arch)


def ends(forms: Sequence[Launch]) -> tuple[dict[str, Launch], dict[str, Launch]]:
    """The first and the last form of each kernel."""
    return {c.function: c for c in reversed(forms)}, {c.function: c for c in forms}


def require_clean(call: Launch, op_type: str, arch: str) -> None:
    """Its source compiles; no register is spilled; registers and shared memory are within a block's."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC's Python bindings are not installed")
    cubin = compile_source(call.source, arch)
    report = _report(cubin.log, call.function)
    assert cubin.waits_first == (arch == "sm_90a"), f"{call.function} may begin before what it reads is written"
    spilled = SPILLED.get(call.function, 0) if arch == "sm_89" or nvrtc().nvrtcVersion()[1] == 12 else 0
    assert cubin.spilled_bytes <= spilled, f"{call.function} spills registers: {cubin.log}"
    assert "serialized" not in cubin.log, f"{call.function} waits for each wgmma: {cubin.log}"
    assert op_type in LOCAL_MEMORY or spilled or "0 bytes stack frame" in report, f"{call.function}: {report}"
    registers = int(re.search(r"Used (\d+) registers", report)[1])
    threads = -(-call.block[0] // 128) * 128  # registers are given to groups of 4 warps
    assert -(-registers // 8) * 8 * threads <= REGISTERS, f"{call.function}: {registers} registers, {call.block}"
    static = re.search(r"(\d+) bytes smem", report)
    shared = call.shared + (int(static[1]) if static else 0)
    assert shared <= ALL_DEVICES[arch].shared, f"{call.function}: {shared} bytes of shared memory"


def _report(log: str, function: str) -> str:
    """The compiler's words on one kernel of a source."""
    parts = re.split(r"Compiling entry function '(\w+)'", log)
    return dict(zip(parts[1::2], parts[2::2], strict=True))[function]


def test_spills_are_seen():
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC's Python bindings are not installed")
    source = """extern "C" __global__ void __launch_bounds__(1024, 2) crowded(float* x) {
        float kept[80];
        for (int i = 0; i < 80; ++i) kept[i] = x[threadIdx.x + 1024 * i];
        __syncthreads();
        for (int i = 0; i < 80; ++i) x[threadIdx.x + 1024 * i] = kept[i] * kept[79 - i];
    }"""
    assert compile_source(source).spilled_bytes > 0


def test_float_types_are_all(rng):
    assert {as_dtype(t) for t in FLOAT_TYPES} == FLOATS
