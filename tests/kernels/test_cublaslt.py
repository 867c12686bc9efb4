"""cuBLASLt descriptors, built against a stub of the library that records what it is told."""

from __future__ import annotations

import ctypes
import enum
import importlib
import sys
import types

import numpy as np
import pytest

from minigraph.kernels.cuda.device.tiles import SMALL
from minigraph.kernels.cuda.record.binder import Binder
from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.kernels.cuda.record.calls import Choice, Gemm
from minigraph.types import bfloat16, float16, float32, float64


class Desc(enum.IntEnum):
    TRANSA = 3
    TRANSB = 4
    EPILOGUE = 7
    BIAS_POINTER = 8
    EPILOGUE_AUX_POINTER = 11
    EPILOGUE_AUX_LD = 12
    BIAS_DATA_TYPE = 26


class Layout(enum.IntEnum):
    BATCH_COUNT = 5
    STRIDED_BATCH_OFFSET = 6


class Preference(enum.IntEnum):
    MAX_WORKSPACE_BYTES = 1
    REDUCTION_SCHEME_MASK = 3
    MIN_ALIGNMENT_A_BYTES = 5
    MIN_ALIGNMENT_B_BYTES = 6
    MIN_ALIGNMENT_C_BYTES = 7
    MIN_ALIGNMENT_D_BYTES = 8


class Epilogue(enum.IntEnum):
    DEFAULT = 1
    BIAS = 4
    RELU_BIAS = 6
    RELU_AUX_BIAS = 134
    DRELU = 136
    BGRADA = 256
    BGRADB = 512


class ComputeType(enum.IntEnum):
    COMPUTE_32F = 68
    COMPUTE_64F = 70
    COMPUTE_32F_FAST_TF32 = 77


class Library:
    """Remembers descriptors and layouts by handle; a product is the arguments it was called with."""

    MatmulDescAttribute, MatrixLayoutAttribute, MatmulPreferenceAttribute = Desc, Layout, Preference
    Epilogue = Epilogue
    MatmulTile = enum.IntEnum("MatmulTile", [f"TILE_{tile}" for tile in ("128x256", *SMALL)])
    ClusterShape = enum.IntEnum("ClusterShape", {"SHAPE_1x1x1": 1, "SHAPE_2x1x1": 2, "SHAPE_1x2x1": 5})
    MatmulAlgoConfigAttribute = enum.IntEnum("Config", {"TILE_ID": 1, "SPLITK_NUM": 2, "CLUSTER_SHAPE_ID": 13})
    ReductionScheme = enum.IntEnum("ReductionScheme", {"COMPUTE_TYPE": 2})
    cuBLASLtError = type("cuBLASLtError", (Exception,), {})

    def __init__(self):
        self.objects, self.calls = {}, []
        self.algorithms = {None: [b"first"]}  # names by the largest workspace that they are proposed for
        self.valid, self.needed = {b"first"}, 0
        self.cuts = {}  # (tile, parts, waves, cluster) by name
        self.workspaces = {}  # bytes by name; an algorithm is proposed where it has so much room

    def _new(self, **facts):
        handle = len(self.objects) + 1
        self.objects[handle] = facts
        return handle

    def get_matmul_desc_attribute_dtype(self, attribute):
        return np.int64 if "POINTER" in attribute.name or attribute.name.endswith("LD") else np.int32

    def matmul_desc_create(self, compute, scale):
        return self._new(compute=compute, scale=scale)

    def matrix_layout_create(self, dtype, rows, columns, ld):
        return self._new(dtype=dtype, rows=rows, columns=columns, ld=ld)

    def matmul_preference_create(self):
        return self._new()

    def _set(self, handle, attribute, pointer, nbytes):
        value = int.from_bytes(ctypes.string_at(pointer, nbytes), sys.byteorder, signed=True)
        self.objects[handle][attribute.name] = value

    matmul_desc_set_attribute = matrix_layout_set_attribute = matmul_preference_set_attribute = _set

    def matmul_algo_get_heuristic(self, handle, desc, a, b, c, d, preference, wanted, results, found):
        room = self.objects[preference]["MAX_WORKSPACE_BYTES"]
        names = self.algorithms.get(room, self.algorithms[None])
        names = [name for name in names if self.workspaces.get(name, 0) <= room][:wanted]
        for i, name in enumerate(names):
            ctypes.memmove(results + 96 * i, name.ljust(64, b"."), 64)
            ctypes.memmove(results + 96 * i + 64, np.array([self.workspaces.get(name, 0)], np.uint64).ctypes.data, 8)
            ctypes.memmove(results + 96 * i + 76, np.array([self.cut(name)[2]], np.float32).ctypes.data, 4)
        ctypes.memmove(found, np.array([len(names)], np.int32).ctypes.data, 4)

    def matmul_algo_check(self, handle, desc, a, b, c, d, algorithm, result):
        if ctypes.string_at(algorithm, 64).rstrip(b".") not in self.valid:
            raise self.cuBLASLtError
        ctypes.memmove(result + 64, np.array([self.needed], np.uint64).ctypes.data, 8)

    def cut(self, name):
        return self.cuts.get(name, ("128x256", 1, 0.0, "2x1x1"))

    def matmul_algo_config_get_attribute(self, algorithm, attribute, value, nbytes, written):
        tile, parts, _, cluster = self.cut(ctypes.string_at(algorithm, 64).rstrip(b"."))
        known = {1: self.MatmulTile[f"TILE_{tile}"], 2: parts, 13: self.ClusterShape[f"SHAPE_{cluster}"]}
        dtype = np.uint16 if attribute == 13 else np.uint32
        ctypes.memmove(value, np.array([known[attribute]], dtype).ctypes.data, nbytes)

    def matmul_preference_destroy(self, handle):
        pass

    matrix_layout_destroy = matmul_desc_destroy = matmul_preference_destroy

    def matmul(self, *arguments):
        self.calls.append(arguments)


@pytest.fixture
def library(monkeypatch):
    stub = Library()
    bindings = types.ModuleType("nvmath.bindings")
    bindings.cublas, bindings.cublasLt = types.SimpleNamespace(ComputeType=ComputeType), stub
    monkeypatch.setitem(sys.modules, "nvmath", types.ModuleType("nvmath"))
    monkeypatch.setitem(sys.modules, "nvmath.bindings", bindings)
    monkeypatch.delitem(sys.modules, "minigraph.kernels.cuda.device.cublaslt", raising=False)
    yield stub
    sys.modules.pop("minigraph.kernels.cuda.device.cublaslt", None)


def plan_of(call: Gemm, **facts):
    return importlib.import_module("minigraph.kernels.cuda.device.cublaslt").LtPlan(7, call, **facts)


def operand(*shape, dtype=float32, ptr=1 << 20):
    return Buffer(shape, dtype, ptr)


def gemm(m, n, k, dtype=float32, **facts):
    a, b, c = (operand(s, dtype=dtype, ptr=p << 20) for s, p in ((m * k, 1), (k * n, 2), (m * n, 3)))
    return Gemm(a, b, c, m=m, n=n, k=k, workspace=operand(1024, dtype=np.dtype("uint8"), ptr=4 << 20), **facts)


@pytest.mark.parametrize(("trans_a", "trans_b"), [(False, False), (True, False), (False, True), (True, True)])
def test_operands_are_swapped_and_layouts_are_column_major(library, trans_a, trans_b):
    m, n, k = 5, 7, 3
    plan = plan_of(gemm(m, n, k, trans_a=trans_a, trans_b=trans_b))
    desc = library.objects[plan.desc]
    assert (desc["TRANSA"], desc["TRANSB"]) == (trans_b, trans_a)
    sizes = [(library.objects[x]["rows"], library.objects[x]["columns"], library.objects[x]["ld"])
             for x in (plan.a, plan.b, plan.c)]  # fmt: skip
    assert sizes == [(k, n, k) if trans_b else (n, k, n), (m, k, m) if trans_a else (k, m, k), (n, m, n)]
    plan.run(99)
    handle, described, _, b, _, a, _, _, c, _, d, *rest = library.calls[0]
    assert (handle, described, a, b, c, d) == (7, plan.desc, 1 << 20, 2 << 20, 3 << 20, 3 << 20)
    assert rest[-3:] == [4 << 20, 1024, 99]


@pytest.mark.parametrize(
    ("dtype", "tf32", "compute", "scale"),
    [(float32, False, 68, 0), (float32, True, 77, 0), (bfloat16, True, 68, 0), (float64, True, 70, 1)],
)
def test_float32_is_rounded_to_tf32_only_if_allowed(library, dtype, tf32, compute, scale):
    plan = plan_of(gemm(4, 4, 4, dtype), tf32=tf32)
    assert (library.objects[plan.desc]["compute"], library.objects[plan.desc]["scale"]) == (compute, scale)
    assert plan.alpha.dtype == (np.float64 if dtype == float64 else np.float32)


def test_epilogue_carries_pointers_types_and_leading_dimension(library):
    bias, mask = operand(7, dtype=bfloat16, ptr=5 << 20), operand(5, 16, dtype=np.dtype("uint8"), ptr=6 << 20)
    plan = plan_of(gemm(5, 7, 3, bfloat16, epilogue="RELU_AUX_BIAS", bias=bias, aux=mask, aux_ld=128))
    desc = library.objects[plan.desc]
    assert desc["EPILOGUE"] == Epilogue.RELU_AUX_BIAS
    assert (desc["BIAS_POINTER"], desc["BIAS_DATA_TYPE"]) == (5 << 20, 14)
    assert (desc["EPILOGUE_AUX_POINTER"], desc["EPILOGUE_AUX_LD"]) == (6 << 20, 128)


def test_batches_step_by_their_strides(library):
    plan = plan_of(gemm(5, 7, 3, batch=4, strides=(15, 0, 35)))
    steps = [library.objects[x]["STRIDED_BATCH_OFFSET"] for x in (plan.a, plan.b, plan.c)]
    assert steps == [0, 15, 35]
    assert all(library.objects[x]["BATCH_COUNT"] == 4 for x in (plan.a, plan.b, plan.c))


def test_no_algorithm_is_reported(library):
    library.algorithms = {None: []}
    module = importlib.import_module("minigraph.kernels.cuda.device.cublaslt")
    with pytest.raises(module.Unsupported, match="cuBLASLt has no DEFAULT for 5 x 7 x 3"):
        plan_of(gemm(5, 7, 3))


def test_algorithms_add_in_one_fixed_order(library):
    plan_of(gemm(5, 7, 3))
    assert {facts.get("REDUCTION_SCHEME_MASK") for facts in library.objects.values()} == {None, 2}


def named(name):
    return name.ljust(64, b".")


def test_the_first_choice_of_the_library_runs_unless_another_is_chosen(library):
    library.algorithms = {None: [b"first", b"second"], 0: [b"second", b"third"]}
    plan = plan_of(gemm(5, 7, 3))
    assert (plan.algorithm, plan.candidates) == (named(b"first"), [named(b"first"), named(b"second")])
    plan.choose(named(b"second"))
    plan.run(99)
    assert ctypes.string_at(library.calls[0][-4], 64) == named(b"second")


@pytest.mark.parametrize(
    ("dtype", "epilogue", "cluster", "better"),
    [(bfloat16, "DEFAULT", "2x1x1", True), (float16, "BIAS", "2x1x1", True), (float16, "RELU_BIAS", "2x1x1", True),
     (float32, "DEFAULT", "2x1x1", False), (bfloat16, "RELU_AUX_BIAS", "2x1x1", False),
     (bfloat16, "DEFAULT", "1x1x1", False)],
)  # fmt: skip
def test_small_tiles_come_first_where_sums_are_short(library, dtype, epilogue, cluster, better):
    library.algorithms = {None: [b"first", b"second", b"small"]}
    library.cuts = {b"first": ("128x256", 1, 4.0, "2x1x1"), b"small": ("128x128", 1, 8.0, cluster)}
    names = [named(b"first"), named(b"second"), named(b"small")]
    plan = plan_of(gemm(64, 64, 768, dtype, epilogue=epilogue))
    assert plan.candidates == ([names[2], *names[:2]] if better else names)
    assert plan.algorithm == plan.candidates[0]
    assert plan_of(gemm(64, 64, 8192, dtype, epilogue=epilogue)).candidates == names


@pytest.mark.parametrize(("parts", "dtype", "asked"), [(2, bfloat16, True), (1, bfloat16, False), (2, float32, False)])
def test_where_sums_are_cut_what_needs_no_room_is_asked_for_too(library, parts, dtype, asked):
    library.algorithms = {None: [b"parts", b"wide"], 0: [b"whole", b"wide"]}
    library.cuts = {b"parts": ("128x256", parts, 0.485, "2x1x1"), b"wide": ("128x256", 1, 0.4, "2x1x1"),
                    b"whole": ("192x96", 1, 0.97, "1x2x1")}  # fmt: skip
    candidates = plan_of(gemm(768, 3072, 16384, dtype)).candidates
    assert candidates == [named(name) for name in ([b"whole", b"parts", b"wide"] if asked else [b"parts", b"wide"])]


@pytest.mark.parametrize(
    ("known", "needed", "taken"),
    [(named(b"kept"), 1024, True), (named(b"kept"), 1025, False), (named(b"of another version"), 0, False),
     (b"short", 0, False)],
)  # fmt: skip
def test_a_known_algorithm_is_checked(library, known, needed, taken):
    library.valid, library.needed = {b"kept"}, needed
    plan = plan_of(gemm(5, 7, 3), algorithm=known)
    assert plan.accepted == taken
    assert plan.algorithm == (known if taken else named(b"first"))


def test_a_plan_knows_what_workspace_it_needs_and_finds_the_same_algorithm_with_no_more_room(library):
    library.algorithms, library.workspaces = {None: [b"first", b"second"]}, {b"first": 700, b"second": 0}
    call = gemm(5, 7, 3)
    plan = plan_of(call)
    assert plan.needed == 700
    call.workspace.shape = (plan.needed,)
    assert plan_of(call).algorithm == named(b"first")
    plan.choose(named(b"second"))
    assert plan.needed == 0
    call.workspace.shape = (699,)
    assert plan_of(call).algorithm == named(b"second")
    library.valid, library.needed = {b"kept"}, 600
    assert plan_of(call, algorithm=named(b"kept")).needed == 600


def test_the_library_is_told_how_operands_lie(library):
    call = gemm(4, 8, 4)
    call.b = operand(36).view((32,), offset=16)
    plan_of(call)
    (preference,) = (facts for facts in library.objects.values() if "MAX_WORKSPACE_BYTES" in facts)
    assert [preference[f"MIN_ALIGNMENT_{x}_BYTES"] for x in "ABCD"] == [16, 256, 256, 256]


def test_variants_are_recorded_apart_and_share_one_workspace():
    binder = Binder()
    binder.begin(0)
    a, b, c = operand(15), operand(21), operand(35)

    def record(epilogue):
        return lambda: binder.gemm(a, b, c, m=5, n=7, k=3, epilogue=epilogue)

    binder.choose({"one": record("BIAS"), "other": lambda: (record("DEFAULT")(), binder.zero(c))})
    (choice,) = binder.calls
    assert isinstance(choice, Choice)
    assert [[type(x).__name__ for x in calls] for calls in choice.variants.values()] == [["Gemm"], ["Gemm", "Fill"]]
    first, second = (calls[0].workspace for calls in choice.variants.values())
    assert first is second
    assert binder.scratches == [[first]]
    record("DEFAULT")()
    assert binder.calls[-1].workspace is not first
