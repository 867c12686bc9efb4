"""cuBLASLt plans: descriptors, algorithm and workspace of one product, bound once.

A row-major matrix is a column-major one of swapped sizes, so C = op(A) @ op(B) is asked for as
C^T = op(B)^T op(A)^T: the library's A is our B. All layouts are then column-major, in which every
epilogue exists and a bias along our columns is the library's bias along rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from nvmath.bindings import cublas
from nvmath.bindings import cublasLt as lt

from minigraph.kernels.cuda.record.buffer import alignment
from minigraph.kernels.cuda.record.call import Unsupported
from minigraph.kernels.cuda.record.calls import Gemm
from minigraph.types import bfloat16, float16, float32, float64

from .tiles import SMALL, Candidate, preferred

CUDA_DATA = {float32: 0, float64: 1, float16: 2, bfloat16: 14}  # cudaDataType
ALGORITHMS = 8  # candidates asked from the library's heuristic
RESULT = np.dtype([("algorithm", "V64"), ("workspace", "u8"), ("state", "i4"), ("waves", "f4"), ("reserved", "i4", 4)])
PLAIN = {"DEFAULT", "BIAS", "RELU_BIAS"}  # epilogues that write one result

_DESC = lt.MatmulDescAttribute
_LAYOUT = lt.MatrixLayoutAttribute
_PREFERENCE = lt.MatmulPreferenceAttribute
_CONFIG = lt.MatmulAlgoConfigAttribute
_TILES = {int(lt.MatmulTile[f"TILE_{name}"]): name for name in SMALL}
_desc_types = {a: np.dtype(lt.get_matmul_desc_attribute_dtype(a)) for a in _DESC}


LibraryError = lt.cuBLASLtError


class LtPlan:
    """One Gemm with its addresses; `run(stream)` launches it.

    algorithm   as `algorithm` of another plan gave it for the same product; ignored where the library refuses it
    """

    def __init__(self, handle: int, call: Gemm, tf32: bool = False, algorithm: bytes | None = None) -> None:
        self.handle, self.call = handle, call
        dtype = call.a.dtype
        double = dtype == float64
        compute = cublas.ComputeType.COMPUTE_64F if double else cublas.ComputeType.COMPUTE_32F
        if tf32 and dtype == float32:
            compute = cublas.ComputeType.COMPUTE_32F_FAST_TF32
        scale = CUDA_DATA[float64 if double else float32]
        self.desc = lt.matmul_desc_create(compute, scale)
        self.layouts: list[int] = []
        self._describe(call)
        ab, cd = CUDA_DATA[dtype], CUDA_DATA[call.c.dtype]
        rows_a, columns_a = (call.k, call.m) if call.trans_a else (call.m, call.k)
        rows_b, columns_b = (call.n, call.k) if call.trans_b else (call.k, call.n)
        stride_a, stride_b, stride_c = call.strides
        self.a = self._layout(ab, columns_b, rows_b, call.batch, stride_b)
        self.b = self._layout(ab, columns_a, rows_a, call.batch, stride_a)
        self.c = self._layout(cd, call.n, call.m, call.batch, stride_c)
        real = np.float64 if double else np.float32
        self.alpha, self.beta = np.ones(1, real), np.full(1, call.beta, real)
        self.chosen = np.zeros(1, RESULT)
        self.accepted = algorithm is not None and self._accepts(algorithm)
        self.needs = {self.algorithm: int(self.chosen["workspace"][0])} if self.accepted else self._candidates()
        self.choose(self.candidates[0])

    @property
    def algorithm(self) -> bytes:
        """What runs, in the library's own form: good for this version of it and this GPU."""
        return self.chosen["algorithm"].tobytes()

    @property
    def candidates(self) -> list[bytes]:
        """Algorithms that can run; the first one does unless another is chosen."""
        return list(self.needs)

    @property
    def needed(self) -> int:
        """Bytes of workspace that what runs takes."""
        return self.needs[self.algorithm]

    def choose(self, algorithm: bytes) -> None:
        """Use one of the candidates from now on."""
        self.chosen["algorithm"] = np.frombuffer(algorithm, "V64")
        self.arguments = self._arguments(self.call.c.address)

    def run(self, stream: int) -> None:
        """Launch on the stream."""
        lt.matmul(*self.arguments, stream)

    def probe(self, bias: int, out: int, stream: int) -> None:
        """Launch with another bias into another output."""
        assert self.call.bias is not None
        self._set(_DESC.BIAS_POINTER, bias)
        lt.matmul(*self._arguments(out), stream)
        self._set(_DESC.BIAS_POINTER, self.call.bias.address)

    def _arguments(self, out: int) -> tuple[int, ...]:
        call, workspace = self.call, self.call.workspace
        return (
            self.handle, self.desc, self.alpha.ctypes.data, call.b.address, self.a, call.a.address, self.b,
            self.beta.ctypes.data, out, self.c, out, self.c, self.chosen.ctypes.data,
            workspace.address if workspace else 0, workspace.nbytes if workspace else 0,
        )  # fmt: skip

    def _describe(self, call: Gemm) -> None:
        self._set(_DESC.TRANSA, int(call.trans_b))
        self._set(_DESC.TRANSB, int(call.trans_a))
        self._set(_DESC.EPILOGUE, int(getattr(lt.Epilogue, call.epilogue)))
        if call.bias is not None:
            self._set(_DESC.BIAS_POINTER, call.bias.address)
            self._set(_DESC.BIAS_DATA_TYPE, CUDA_DATA[call.bias.dtype])
        if call.aux is not None:
            self._set(_DESC.EPILOGUE_AUX_POINTER, call.aux.address)
            self._set(_DESC.EPILOGUE_AUX_LD, call.aux_ld)

    def _set(self, attribute: Any, value: int) -> None:
        data = np.array([value], _desc_types[attribute])
        lt.matmul_desc_set_attribute(self.desc, attribute, data.ctypes.data, data.nbytes)

    def _layout(self, dtype: int, rows: int, columns: int, batch: int, stride: int) -> int:
        layout = lt.matrix_layout_create(dtype, rows, columns, rows)
        self.layouts.append(layout)
        if batch > 1:
            count, step = np.array([batch], np.int32), np.array([stride], np.int64)
            lt.matrix_layout_set_attribute(layout, _LAYOUT.BATCH_COUNT, count.ctypes.data, 4)
            lt.matrix_layout_set_attribute(layout, _LAYOUT.STRIDED_BATCH_OFFSET, step.ctypes.data, 8)
        return layout

    def _accepts(self, algorithm: bytes) -> bool:
        """Whether the library can still run this with this workspace; it is chosen then."""
        if len(algorithm) != RESULT["algorithm"].itemsize:
            return False
        self.chosen["algorithm"] = np.frombuffer(algorithm, "V64")
        checked, call = np.zeros(1, RESULT), self.call
        try:
            lt.matmul_algo_check(
                self.handle, self.desc, self.a, self.b, self.c, self.c, self.chosen.ctypes.data, checked.ctypes.data
            )
        except lt.cuBLASLtError:
            return False
        self.chosen["workspace"] = checked["workspace"]
        return int(checked["workspace"][0]) <= (call.workspace.nbytes if call.workspace else 0)

    def _candidates(self) -> dict[bytes, int]:
        """Algorithms whose sums have one fixed order, with their workspaces, the best one first, then as proposed."""
        call = self.call
        room = call.workspace.nbytes if call.workspace else 0
        offered = self._offered(room)
        if not offered:
            raise Unsupported(f"cuBLASLt has no {call.epilogue} for {call.m} x {call.n} x {call.k}")
        if room and self._accounted() and _cut(next(iter(offered)))[1] > 1:
            offered |= self._offered(0)  # behind sums in parts it leaves out tiles that it offers where nobody has room
        better = self._preferred(offered)
        return {a: int(offered[a]["workspace"]) for a in sorted(offered, key=lambda a: a != better)}

    def _offered(self, room: int) -> dict[bytes, Any]:
        """What the library proposes with this workspace, its best one first."""
        found: dict[bytes, Any] = {}
        for one in self._heuristic(room):
            found.setdefault(one["algorithm"].tobytes(), one)
        return found

    def _accounted(self) -> bool:
        """Whether tiles.py knows such products."""
        return self.call.a.dtype in (float16, bfloat16) and self.call.epilogue in PLAIN

    def _preferred(self, offered: Mapping[bytes, Any]) -> bytes:
        """The algorithm that runs first, see tiles.py."""
        forms, call = list(offered), self.call
        if not self._accounted():
            return forms[0]
        candidates = [Candidate(*_cut(form), float(one["waves"])) for form, one in offered.items()]
        return forms[preferred(candidates, call.k, call.c.dtype.itemsize)]

    def _heuristic(self, workspace: int) -> list[Any]:
        results, count = np.zeros(ALGORITHMS, RESULT), np.zeros(1, np.int32)
        preference = lt.matmul_preference_create()
        try:
            self._prefer(preference, workspace)
            lt.matmul_algo_get_heuristic(
                self.handle, self.desc, self.a, self.b, self.c, self.c, preference, ALGORITHMS,
                results.ctypes.data, count.ctypes.data,
            )  # fmt: skip
        except lt.cuBLASLtError:  # not supported
            return []
        finally:
            lt.matmul_preference_destroy(preference)
        return [one for one in results[: int(count[0])] if one["state"] == 0]

    def _prefer(self, preference: int, workspace: int) -> None:
        """Room, sums of one fixed order, and how the operands lie."""
        call = self.call
        facts = [
            (_PREFERENCE.MAX_WORKSPACE_BYTES, np.uint64(workspace)),
            (_PREFERENCE.REDUCTION_SCHEME_MASK, np.uint32(lt.ReductionScheme.COMPUTE_TYPE)),
            (_PREFERENCE.MIN_ALIGNMENT_A_BYTES, np.uint32(alignment(call.b.address))),
            (_PREFERENCE.MIN_ALIGNMENT_B_BYTES, np.uint32(alignment(call.a.address))),
            (_PREFERENCE.MIN_ALIGNMENT_C_BYTES, np.uint32(alignment(call.c.address))),
            (_PREFERENCE.MIN_ALIGNMENT_D_BYTES, np.uint32(alignment(call.c.address))),
        ]
        for attribute, value in facts:
            data = np.array([value])
            lt.matmul_preference_set_attribute(preference, attribute, data.ctypes.data, data.nbytes)

    def __del__(self) -> None:
        for layout in self.layouts:
            lt.matrix_layout_destroy(layout)
        lt.matmul_desc_destroy(self.desc)


@lru_cache(4096)
def _cut(algorithm: bytes) -> tuple[str, int]:
    """Tile and parts of an algorithm; no tile where it is none for Hopper, whose kernels come in clusters."""
    form, written = np.frombuffer(algorithm, np.uint8).copy(), np.zeros(1, np.uint64)

    def asked(attribute: Any, dtype: type) -> int:
        value = np.zeros(1, dtype)
        lt.matmul_algo_config_get_attribute(
            form.ctypes.data, attribute, value.ctypes.data, value.nbytes, written.ctypes.data
        )
        return int(value[0])

    alone = asked(_CONFIG.CLUSTER_SHAPE_ID, np.uint16) <= lt.ClusterShape.SHAPE_1x1x1
    tile = "" if alone else _TILES.get(asked(_CONFIG.TILE_ID, np.uint32), "")
    return tile, max(1, asked(_CONFIG.SPLITK_NUM, np.uint32))
