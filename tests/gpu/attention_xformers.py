"""GPU checks of attention: the matrix of shapes, masks and tolerances of xFormers' tests (v0.0.34).

Large batches repeat a few entries in another order, and a few heads of each result are compared with float64. Each
shape of a large batch takes one of the data types, and random widths are such that they share kernels with the others:
most of the time went into compiling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle, product
from typing import Any

import numpy as np

from tests.gpu.check import Check, call_of, each, normal, on_gpu
from tests.support import opcheck
from tests.support.opcheck import Slots

FORWARD = {"float32": (3e-4, 2e-5), "float16": (4e-3, 4e-4), "bfloat16": (2e-2, 5e-3)}  # atol, rtol
BACKWARD = {"float32": (9e-4, 1e-4), "float16": (0.2, 2e-2), "bfloat16": (0.9, 0.1)}
SUMS = 2e-4
DIFFERENT = 7  # entries of a batch
ODD = (2, 3, 15, 31, 32, 34, 68, 72, 90, 132, 136)
WIDTHS = (1, 2, 3, 31, 34, 36, 38, 40, 64, 80, 160, 258, 264, 512)
PAIRS = (*((32, n) for n in (36, 64, 264)), (64, 32), (16, 512), (512, 16))  # K, Kv; heads end at 512 here
RANDOM, CHUNK = 200, 20

Shape = tuple[int, int, int, int, int, int]  # B, Mq, Mkv, H, K, Kv


def checks() -> Iterator[Check]:
    for dtype in FORWARD:
        for keys in (32, 64, 256, 1024):
            yield Check(f"attention/xformers/{dtype}/keys {keys}", partial(_grid, dtype, keys))
        yield Check(f"attention/xformers/{dtype}/odd", partial(_shapes, dtype, list(odd())))
    for keys, k in product((32, 64, 256, 1024), (32, 128, 256)):
        yield Check(f"attention/xformers/batch/keys {keys}/{k}", partial(_batch, keys, k))
    for first in range(0, RANDOM, CHUNK):
        yield Check(f"attention/xformers/random {first:03}", partial(_random, first))


def odd() -> Iterator[tuple[Shape, str]]:
    """Sizes that are no pieces of a tile, on either side; widths; values of another width; numbers of heads."""
    shapes = [shape for m in ODD for shape in ((1, 32, m, 3, 32, 32), (2, m, 64, 1, 64, 64))]
    yield from zip(shapes, cycle(MASKS), strict=False)
    for k, kv in ((k, k) for k in WIDTHS):
        yield (1, 32, 40, 5, k, kv), "causal"
    for k, kv in PAIRS:
        yield (2, 32, 64, 3, k, kv), "nothing"
    yield (2, 32, 64, 12, 32, 32), "causal bottom right"


def grid(keys: int) -> Iterator[tuple[Shape, str]]:
    """Single entries of a batch, each with a mask of another kind."""
    shapes = [(1, m, keys, 1, k, k) for m, k in product((32, 256), (32, 128, 256))]
    yield from zip(shapes, cycle(MASKS), strict=False)


def _grid(dtype: str, keys: int) -> None:
    _shapes(dtype, list(grid(keys)))


def _batch(keys: int, k: int) -> None:
    dtypes = list(FORWARD)
    first = keys.bit_length() + k.bit_length()
    for n, m in enumerate((32, 256)):
        _shapes(dtypes[(first + n) % 3], [((300, m, keys, 1, k, k), MASKS[(first + n) % 5])])


def _shapes(dtype: str, cases: list[tuple[Shape, str]]) -> None:
    each((f"{shape} {mask}", partial(compare, dtype, shape, mask)) for shape, mask in cases)


def random_shape(r: np.random.Generator) -> Shape:
    b = int(r.integers(1, 301))
    h = int(r.integers(1, max(400 // b, 1) + 1))
    k = int(r.choice((24, 32, 120, 128, 248)))
    return b, int(r.integers(1, 501)), int(r.integers(1, 501)), h, k, k


def _random(first: int) -> None:
    each((f"seed {seed}", partial(_random_shape, seed)) for seed in range(first, first + CHUNK))


def _random_shape(seed: int) -> None:
    r = np.random.default_rng(seed)
    compare(list(FORWARD)[seed % 3], random_shape(r), MASKS[r.integers(len(MASKS))])


MASKS = (
    "nothing", "causal", "causal bottom right", "bias", "window", "bias causal", "packed", "packed causal",
    "packed causal bottom right", "packed window", "packed padded",
)  # fmt: skip


def inputs_of(shape: Shape, mask: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(inputs, attributes); packed masks make one batch of what would be several."""
    b, m, n, h, k, kv = shape
    packed = mask.startswith("packed")
    if packed:
        b = 1

    def entries(size: int, width: int, seed: int) -> np.ndarray:
        few = normal(min(b, DIFFERENT), size, h, width, seed=seed)
        return few[np.arange(b) % len(few)]

    inputs: dict[str, Any] = {"Q": entries(m, k, 0), "K": entries(n, k, 1), "V": entries(n, kv, 2)}
    attrs: dict[str, Any] = {"causal": "causal" in mask, "bottom_right": "bottom right" in mask}
    if "window" in mask:
        attrs |= {"window": (m // 3, n // 4), "bottom_right": True}
    if "bias" in mask:
        few = normal(min(b, DIFFERENT), h, m, n, seed=3)
        inputs["Bias"] = few[np.arange(b) % len(few)]
    if packed:
        r = np.random.default_rng(m + n)
        last = (m // 8, n // 8) if "padded" in mask else (0, 0)
        for slot, size, rest in (("CuSeqlensQ", m, last[0]), ("CuSeqlensK", n, last[1])):
            inputs[slot] = np.array([0, *np.sort(r.integers(0, size - rest + 1, 3)), size - rest], np.int32)
    return inputs, attrs


def executed_on_gpu(call: opcheck.Call) -> Slots:
    with on_gpu():
        return opcheck.executed(call)


def compare(dtype: str, shape: Shape, mask: str, executed: Callable[[opcheck.Call], Slots] = executed_on_gpu) -> None:
    """Forward and backward of a call, some heads of it, against float64 of the same rounded numbers."""
    inputs, attrs = inputs_of(shape, mask)
    call = call_of("memory_efficient_attention", inputs, **attrs).as_dtype(dtype)
    found = executed(call)
    more = {slot: found[slot][0] for slot in ("Out", "LogSumExp")}
    more["Out_grad"] = np.broadcast_to(normal(*more["Out"].shape[1:], seed=9), more["Out"].shape).copy()
    given = {slot: x[0] for slot, x in call.inputs.items()}
    grad = call_of("memory_efficient_attention_grad", {**given, **more}, **attrs).as_dtype(dtype)
    found |= executed(grad)
    batch, heads = given["Q"].shape[0], given["Q"].shape[2]
    for b, h in {(0, 0), (batch // 2, heads // 2), (batch - 1, heads - 1)}:
        _compare_head(dtype, found, {slot: x[0] for slot, x in grad.inputs.items()}, attrs, b, h)


def of_head(slot: str, x: np.ndarray, b: int, h: int) -> np.ndarray:
    """What belongs to one head of one entry of the batch."""
    if slot.startswith("CuSeqlens"):
        return x
    return x[b : b + 1, h : h + 1] if slot.startswith(("Bias", "LogSumExp")) else x[b : b + 1, :, h : h + 1]


def _compare_head(dtype: str, found: Slots, inputs: dict[str, Any], attrs: dict[str, Any], b: int, h: int) -> None:
    one = {slot: of_head(slot, x, b, h) for slot, x in inputs.items()}
    forward = {slot: x for slot, x in one.items() if slot not in ("Out", "LogSumExp", "Out_grad")}
    exact = opcheck.reference(call_of("memory_efficient_attention", forward, **attrs).as_dtype("float64"))
    whole = {**one, **{slot: x[0] for slot, x in exact.items()}}
    exact |= opcheck.reference(call_of("memory_efficient_attention_grad", whole, **attrs).as_dtype("float64"))
    for slot, (right, *_) in exact.items():
        atol, rtol = (SUMS, 0.0) if slot == "LogSumExp" else (FORWARD if slot == "Out" else BACKWARD)[dtype]
        ours = of_head(slot, found[slot][0], b, h).astype(float)
        np.testing.assert_allclose(ours, right, rtol=rtol, atol=atol, err_msg=f"{slot} of batch {b}, head {h}")
