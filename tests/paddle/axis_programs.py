"""Axes in float32: negative ones, those of size 1, rank 0, broadcasting; with all gradients of several results."""

from __future__ import annotations

import numpy as np

from tests.paddle.cases import Case, Several
from tests.paddle.model_programs import drawn

CUBE, ROW = drawn(2, 3, 4), np.array([7, -7, 5, -3])
THIN, NUMBER = drawn(1, 2, 3, 1), np.float32(0.4).reshape(())
POSITIVE, LARGER = np.abs(drawn(2, 1, 3)) + 0.1, drawn(4, 1) + 2

CASES = {
    "from the back": Several(lambda p, x: [
        p.unsqueeze(x, [-1, -4]), p.flatten(x, -2, -1), p.concat([x, x], -2), p.stack([x, x], -3), p.roll(x, 1, -2),
        p.moveaxis(x, -1, -3), p.diff(x, axis=-2), p.unbind(x, -3)[1], p.chunk(x, 2, -1)[0], p.cumsum(x, -3),
        p.prod(x, -2), p.nn.functional.log_softmax(x, -2), p.diagonal(x, 1, -2, -1), p.norm(x, 2, -1),
    ], (CUBE,)),
    "of size one": Several(lambda p, x: [
        x.squeeze([0, -1]), x.squeeze(), p.sum(x, [0, 3]), p.nn.functional.softmax(x, -1), p.logsumexp(x, -1),
        p.argmax(x, -1), p.expand(x, [3, 2, 3, 4]), x.transpose([3, 0, 2, 1]), p.max(x, 3), p.cumprod(x, 0),
        p.median(x, 2), p.sort(x, -1), p.std(x, 1),
    ], (THIN,)),
    "of rank 0": Several(lambda p, a, b: [
        a + b, a / b, a**b, a - 1, p.maximum(a, b), p.stack([a, b]), p.concat([a.reshape([1]), b.unsqueeze(0)]),
        a > b, p.where(a > b, a, b), p.clip(a, max=0.1), p.nn.functional.mse_loss(a, b), p.broadcast_to(a, [2, 2]),
        p.atan2(a, b), p.lerp(a, b, 0.2), p.full_like(a, 2.0), p.logsumexp(a), p.argmax(a), p.transpose(a, []),
    ], (NUMBER, np.float32(0.7).reshape(()))),
    "broadcast": Several(lambda p, a, b: [
        a + b, a * b - b, a / b, p.maximum(a, b), a**2 > b, p.where(a > b, a, b), p.fmax(a, b), p.hypot(a, b),
        p.pow(a, b), p.logaddexp(a, b), p.kron(a[0], b[:, 0]),
    ], (POSITIVE, LARGER)),
    "einsum": Several(lambda p, a, b: [
        p.einsum("bij,bkj->bik", a, b), p.einsum("bij->bji", a), p.einsum("bij,bkj->b", a, b),
        p.einsum("...ij->...i", a), p.einsum("bii->bi", a[:, :, :3]),
    ], (CUBE, drawn(2, 5, 4))),
    "spread": Several(lambda p, x: [
        p.std(x), p.var(x, axis=[0, -1], unbiased=False), p.std(x, 1, keepdim=True), p.var(x, -1), p.logsumexp(x),
        p.logsumexp(x, [0, -1], True), p.quantile(x, 0.3, axis=1), p.norm(x, "fro", [0, 1]), p.norm(x, 3, 1, True),
        p.norm(x, p=-np.inf, axis=1),
    ], (CUBE,)),
    "turned": Several(lambda p, x: [
        p.roll(x, -1), p.roll(x, [1, -2], [0, -1]), p.flip(x, [-1, 0]), p.rot90(x, 1), p.rot90(x, -1, [1, 2]),
        p.rot90(x, 2, [-1, 0]), x[::-1, 0:3:2, ..., None], p.slice(x, [0, -1], [-2, 0], [10, -1]),
    ], (CUBE,)),
    "put": Several(lambda p, x, u, i: [
        p.scatter(x, p.to_tensor([2, 0]), u), p.scatter(x, p.to_tensor([1, 1]), u, overwrite=False),
        p.gather_nd(x, p.to_tensor([[1, 0], [2, 2]])), p.scatter_nd(i, u, [4, 4]),
        p.index_add(x, p.flatten(i), 0, u), p.index_fill(x, p.flatten(i), 1, -1.0),
        p.put_along_axis(x, p.to_tensor([[0], [2], [1]]), p.to_tensor(9.0), 1),
        p.static.setitem(x, (slice(None), 1), x[:, 0] * 2), p.static.setitem(x, x > 0, -1.0),
    ], (drawn(3, 4), drawn(2, 4), np.array([[1], [2]]))),
    "padded": Several(lambda p, x: [
        p.nn.functional.pad(x, [1, 2], value=3.0, data_format="NCL"), p.nn.functional.pad(x, [0, 0, 1, 0, 0, 2]),
        p.nn.functional.pad(x, [2, 1], mode="reflect", data_format="NCL"),
        p.nn.functional.pad(x, [1, 1], mode="circular", data_format="NCL"),
    ], (CUBE,)),
    "of ints": Case(lambda p, x, y: [
        x // y, x % y, x & y, x | y, x ^ y, ~x, -x, x**2, x == y, x > 1, p.abs(x), x / y, x / 2, 1.5 * x, x + 0.5,
        p.clip(x, -1, 1), p.sum(x), p.max(x), p.cumsum(x), p.sort(x), p.maximum(x, y), p.mod(x, y),
    ], (ROW, np.array([2, 3, -2, -3]))),
    "of truth": Case(lambda p, x, y: [
        x & y, x | y, x ^ y, ~x, p.logical_xor(x, y), p.any(x), p.all(y, axis=0, keepdim=True), p.cast(x, "int32"),
        p.sum(x.astype("int64")), p.where(x, p.ones([3]), p.zeros([3])), p.nonzero(x),
    ], (np.array([True, False, True]), np.array([True, True, False]))),
    "beside": Case(lambda p, x, y: [p.nextafter(x, y), p.nextafter(y, x), p.nextafter(x, x)],
                   (np.array([1, 0, -2, np.inf], "float32"), np.array([2, -1, 5, 0], "float32"))),
    "slopes of prelu": Several(lambda p, x: [
        p.static.nn.prelu(x, "all"), p.static.nn.prelu(x, "channel"), p.static.nn.prelu(x, "element"),
    ], (drawn(2, 3, 2, 2),), parameters=True),
    "normalised": Several(lambda p, x: [
        p.nn.BatchNorm1D(3)(x), p.nn.GroupNorm(3, 3)(x), p.nn.InstanceNorm1D(3)(x), p.nn.LayerNorm([3, 4])(x),
    ], (drawn(4, 3, 4),), parameters=True),
    "strides of the whole axis": Several(lambda p, x: [p.strided_slice(x, [1], [-1], [-6], [-2])], (drawn(2, 5),)),
    "cov": Case(lambda p, x: [p.linalg.cov(x)], (drawn(3, 4),)),
    "trapezoids of rows": Several(lambda p, x: [p.trapezoid(x, dx=0.5)], (drawn(3, 4),)),
    "place beside a kept axis": Case(lambda p, x: list(p.kthvalue(x, 2, axis=0, keepdim=True)), (drawn(4, 5),)),
    "diagonal of a row": Several(lambda p, x: [p.diag(x * 1.0, 1)], (drawn(3),)),
}  # fmt: skip
NEAR = dict.fromkeys(CASES, 2e-5)
SLIPS = {
    "strides of the whole axis": "Paddle leaves out the last element, which NumPy's x[:, 4::-2] has",
    "cov": "Paddle divides by 0 in static mode",
    "trapezoids of rows": "Paddle gives each row the gradient of the first",
    "place beside a kept axis": "Paddle drops the axis that keepdim keeps",
    "diagonal of a row": "Paddle's result in static mode has no gradient",
}
