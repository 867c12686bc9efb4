"""Kernels that are bound by memory, on a GPU: softmax, losses, layer norm, gathers, transposes, elementwise, sums.

Arms: minigraph is one operator, torch is PyTorch's eager one, jax is the formula in float32, jitted. Bytes
are those that must be read and written at the least, each once; the floor is their time at the bandwidth of
a copy. JAX has no arm for dropout: its generator is another one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from .gpu_timing import Case, CaseRows, GpuBench, Input, Vars

DTYPES = ("float32", "bfloat16")
SCORES = ((8192, 32000), (65536, 1024))  # rows, classes
PLANE = (16384, 8192)
VOCABULARY, WIDTH, TOKENS = 50304, 1024, 65536

Program = Callable[[Any, Vars], Sequence[Any]]
Exact = Callable[[CaseRows], Sequence[Any]]
Peer = Callable[[Any, Vars], Callable[[], Any]]
Jitted = Callable[..., Sequence[Any]]


def case(
    title: str,
    dtype: str,
    inputs: dict[str, Input],
    program: Program,
    exact: Exact,
    peer: Peer,
    written: int,
    read: int | None = None,
    jax: Jitted | None = None,
    compared: tuple[int, ...] = (0,),
) -> Case:
    """`written` elements of `dtype` are written, and all inputs are read (or `read` bytes)."""
    size = 2 if "16" in dtype else 4
    nbytes = written * size + (sum(i.nbytes for i in inputs.values()) if read is None else read)
    title = f"{title} {dtype}"
    return Case(title, inputs, {"minigraph": program}, exact, peer, nbytes, jax=jax, compared=compared)


def wide(formula: Jitted) -> Jitted:
    """`formula` on floats in float32, results rounded to the type of the inputs that are narrowest."""

    def function(jax: Any, **arrays: Any) -> Sequence[Any]:
        dtype = min((a.dtype for a in arrays.values() if "int" not in a.dtype.name), key=lambda t: t.itemsize)
        exact = {k: a.astype("float32") if a.dtype.name == "bfloat16" else a for k, a in arrays.items()}
        return [found.astype(dtype) for found in formula(jax, **exact)]

    return function


def shown(shape: Sequence[int]) -> str:
    return "x".join(str(s) for s in shape)


# scores


def softmax64(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def log_softmax64(x: np.ndarray) -> np.ndarray:
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def scores(dtype: str) -> Iterator[Case]:
    for shape in SCORES:
        x, label = Input(shape, dtype), Input((shape[0],), "int64", below=shape[1])
        size, name = math.prod(shape), shown(shape)
        yield case(
            f"softmax {name}", dtype, {"x": x}, lambda g, v: [g.softmax(v["x"])],
            lambda rows: [softmax64(rows.of("x"))], lambda torch, t: lambda: torch.softmax(t["x"], -1), size,
            jax=wide(lambda jax, x: [jax.nn.softmax(x, -1)]),
        )  # fmt: skip
        yield case(
            f"softmax gradient {name}", dtype, {"y": Input(shape, dtype, scale=shape[1] ** -0.5), "d": x},
            lambda g, v: [g.softmax_grad(v["y"], v["d"])],
            lambda rows: [_softmax_grad(rows.of("y"), rows.of("d"))],
            lambda torch, t: lambda: torch._softmax_backward_data(t["d"], t["y"], -1, t["y"].dtype), size,
            jax=wide(lambda jax, y, d: [y * (d - (y * d).sum(-1, keepdims=True))]),
        )  # fmt: skip
        yield case(
            f"log_softmax {name}", dtype, {"x": x}, lambda g, v: [g.log_softmax(v["x"])],
            lambda rows: [log_softmax64(rows.of("x"))], lambda torch, t: lambda: torch.log_softmax(t["x"], -1), size,
            jax=wide(lambda jax, x: [jax.nn.log_softmax(x, -1)]),
        )  # fmt: skip
        yield case(
            f"cross entropy {name}", dtype, {"x": x, "label": label},
            lambda g, v: list(g.softmax_with_cross_entropy(v["x"], v["label"])),
            _cross_entropy,
            lambda torch, t: lambda: torch.nn.functional.cross_entropy(t["x"], t["label"], reduction="none")[:, None],
            size + shape[0], jax=wide(_jax_cross_entropy), compared=(1,),
        )  # fmt: skip
        yield case(
            f"cross entropy gradient {name}", dtype,
            {"y": x, "label": label, "d": Input((shape[0], 1), dtype)},
            lambda g, v: [g.softmax_with_cross_entropy_grad(v["label"], v["y"], v["d"])],
            _cross_entropy_grad, _torch_cross_entropy_grad, size, compared=(),
            jax=wide(lambda jax, y, label, d: [(y - jax.nn.one_hot(label, y.shape[1])) * d]),
        )  # fmt: skip


def _softmax_grad(y: np.ndarray, d: np.ndarray) -> np.ndarray:
    return y * (d - (y * d).sum(-1, keepdims=True))


def _cross_entropy(rows: CaseRows) -> Sequence[Any]:
    x, label = rows.of("x"), rows.of("label")
    return [softmax64(x), -log_softmax64(x)[np.arange(len(x)), label][:, None]]


def _cross_entropy_grad(rows: CaseRows) -> Sequence[Any]:
    y, label = rows.of("y"), rows.of("label")
    y[np.arange(len(y)), label] -= 1
    return [y * rows.of("d")]


def _jax_cross_entropy(jax: Any, x: Any, label: Any) -> Sequence[Any]:
    logarithm = jax.nn.log_softmax(x, -1)
    return [jax.numpy.exp(logarithm), -jax.numpy.take_along_axis(logarithm, label[:, None], 1)]


def _torch_cross_entropy_grad(torch: Any, t: Vars) -> Callable[[], Any]:
    """Backward alone: of log_softmax and of the picked scores. It takes scores, not probabilities: other numbers."""
    x = t["y"].clone().requires_grad_()
    loss, d = (
        torch.nn.functional.cross_entropy(x, t["label"], reduction="none"),
        t["d"][:, 0].contiguous(),
    )
    return lambda: torch.autograd.grad(loss, x, d, retain_graph=True)


# layer norm


def norms(dtype: str) -> Iterator[Case]:
    for shape in ((65536, 1024), (16384, 4096)):
        n, size = shape[1], math.prod(shape)
        x, vector = Input(shape, dtype), Input((n,), dtype)
        statistics, zeros = Input((shape[0],), "float32"), Input((shape[0],), "float32", scale=0.0)
        yield case(
            f"layer_norm {shown(shape)}", dtype, {"x": x, "scale": vector, "bias": vector},
            lambda g, v: list(g.layer_norm(v["x"], v["scale"], v["bias"])[:1]),
            lambda rows: [_normalized(rows.of("x")) * rows.whole("scale") + rows.whole("bias")],
            lambda torch, t, n=n: lambda: torch.nn.functional.layer_norm(t["x"], (n,), t["scale"], t["bias"]), size,
            jax=wide(_jax_norm),
        )  # fmt: skip

        def gradient(g: Any, v: Vars) -> Sequence[Any]:
            return list(
                g.layer_norm_grad(
                    v["x"], v["mean"], v["variance"], v["d"], v["scale"], v["bias"],
                    needs=["X_grad", "Scale_grad", "Bias_grad"],
                )
            )  # fmt: skip

        yield case(
            f"layer_norm gradient {shown(shape)}", dtype,
            {"x": x, "d": x, "scale": vector, "bias": vector, "mean": statistics, "variance": zeros},
            gradient, _norm_grad, _torch_norm_grad, size, jax=wide(_jax_norm_grad),
        )  # fmt: skip


EPSILON = 1e-5


def _normalized(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + EPSILON)


def _norm_grad(rows: CaseRows) -> Sequence[Any]:
    """With the given mean, and a variance of 0 everywhere: the formula does not ask where they come from."""
    n = (rows.device("x") - rows.device("mean")[:, None]) / math.sqrt(EPSILON)
    d = rows.device("d")
    scaled = d * rows.device("scale")
    inner = (scaled * n).mean(-1, keepdims=True)
    X_grad = (scaled - scaled.mean(-1, keepdims=True) - n * inner) / math.sqrt(EPSILON)
    return [X_grad, (d * n).sum(0), d.sum(0)]


def _jax_norm(jax: Any, x: Any, scale: Any, bias: Any) -> Sequence[Any]:
    centred = x - x.mean(-1, keepdims=True)
    return [centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + EPSILON) * scale + bias]


def _jax_norm_grad(jax: Any, x: Any, d: Any, scale: Any, bias: Any, mean: Any, variance: Any) -> Sequence[Any]:
    inverse = jax.lax.rsqrt(variance + EPSILON)[:, None]
    n, scaled = (x - mean[:, None]) * inverse, d * scale
    inner = (scaled * n).mean(-1, keepdims=True)
    return [(scaled - scaled.mean(-1, keepdims=True) - n * inner) * inverse, (d * n).sum(0), d.sum(0)]


def _torch_norm_grad(torch: Any, t: Vars) -> Callable[[], Any]:
    n = t["x"].shape[1]
    mean, inverse = t["mean"][:, None], torch.rsqrt(t["variance"] + EPSILON)[:, None]
    gradient = torch.ops.aten.native_layer_norm_backward
    return lambda: gradient(
        t["d"], t["x"], [n], mean, inverse, t["scale"], t["bias"], [True, True, True]
    )


# rows by index


def gathers(dtype: str) -> Iterator[Case]:
    ids = Input((TOKENS,), "int64", below=VOCABULARY)
    w, d = Input((VOCABULARY, WIDTH), dtype), Input((TOKENS, WIDTH), dtype)
    rows_read = (TOKENS * WIDTH) * (2 if "16" in dtype else 4) + ids.nbytes
    yield case(
        f"embedding {TOKENS} of {VOCABULARY}x{WIDTH}", dtype, {"ids": ids, "w": w},
        lambda g, v: [g.embedding(v["ids"], v["w"])], lambda rows: [rows.whole("w")[rows.of("ids")]],
        lambda torch, t: lambda: torch.nn.functional.embedding(t["ids"], t["w"]), TOKENS * WIDTH, rows_read,
        jax=lambda jax, ids, w: [w.at[ids].get(mode="promise_in_bounds")],
    )  # fmt: skip

    def exact(rows: CaseRows) -> Sequence[Any]:
        own, d = rows.whole("ids"), rows.whole("d")
        return [np.stack([d[own == row].sum(0) for row in rows.picked])]

    for skew, spread in ((0.0, ""), (1.1, " skewed ids")):  # as in texts: 600 of the rows get three quarters of the ids
        own = Input((TOKENS,), "int64", below=VOCABULARY, skew=skew)
        yield case(
            f"embedding gradient {TOKENS}{spread} to {VOCABULARY}x{WIDTH}", dtype, {"w": w, "ids": own, "d": d},
            lambda g, v: [g.embedding_grad(v["ids"], v["w"], v["d"])], exact,
            lambda torch, t: lambda: torch.ops.aten.embedding_dense_backward(t["d"], t["ids"], VOCABULARY, -1, False),
            VOCABULARY * WIDTH, rows_read, jax=wide(_jax_embedding_grad),
        )  # fmt: skip


def _jax_embedding_grad(jax: Any, w: Any, ids: Any, d: Any) -> Sequence[Any]:
    return [jax.numpy.zeros(w.shape, "float32").at[ids].add(d, mode="promise_in_bounds")]


# movement


def movements(dtype: str) -> Iterator[Case]:
    for shape, perm in (
        (PLANE, (1, 0)),
        ((32, 2048, 16, 64), (0, 2, 1, 3)),
        ((64, 56, 56, 256), (0, 3, 1, 2)),
        ((64, 1031, 1033), (0, 2, 1)),
    ):
        yield case(
            f"transpose {shown(shape)} by {''.join(map(str, perm))}", dtype, {"x": Input(shape, dtype)},
            lambda g, v, perm=perm: [g.transpose(v["x"], perm=perm)],
            lambda rows, perm=perm: [rows.device("x").transpose(perm)],
            lambda torch, t, perm=perm: lambda: t["x"].permute(perm).contiguous(), math.prod(shape),
            jax=lambda jax, x, perm=perm: [x.transpose(perm)],
        )  # fmt: skip
    half = (PLANE[0], PLANE[1] // 2)
    yield case(
        f"concat of two {shown(half)}", dtype, {"x": Input(half, dtype), "y": Input(half, dtype)},
        lambda g, v: [g.concat([v["x"], v["y"]], axis=1)],
        lambda rows: [np.concatenate((rows.of("x"), rows.of("y")), 1)],
        lambda torch, t: lambda: torch.cat((t["x"], t["y"]), 1), math.prod(PLANE),
        jax=lambda jax, x, y: [jax.numpy.concatenate((x, y), 1)],
    )  # fmt: skip


# elementwise


def gelu64(x: np.ndarray, approximate: bool) -> np.ndarray:
    if approximate:
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return x * 0.5 * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2)))


def gelu_slope64(x: np.ndarray, approximate: bool) -> np.ndarray:
    step = 1e-6
    return (gelu64(x + step, approximate) - gelu64(x - step, approximate)) / (2 * step)


def elementwise(dtype: str) -> Iterator[Case]:
    x, size, name = Input(PLANE, dtype), math.prod(PLANE), shown(PLANE)
    row = Input(PLANE[1:], dtype)
    yield case(
        f"add {name}", dtype, {"x": x, "y": x}, lambda g, v: [g.elementwise_add(v["x"], v["y"])],
        lambda rows: [rows.of("x") + rows.of("y")], lambda torch, t: lambda: t["x"] + t["y"], size,
        jax=wide(lambda jax, x, y: [x + y]),
    )  # fmt: skip
    yield case(
        f"add bias {name}", dtype, {"x": x, "y": row}, lambda g, v: [g.elementwise_add(v["x"], v["y"])],
        lambda rows: [rows.of("x") + rows.whole("y")], lambda torch, t: lambda: t["x"] + t["y"], size,
        jax=wide(lambda jax, x, y: [x + y]),
    )  # fmt: skip
    yield case(
        f"relu {name}", dtype, {"x": x}, lambda g, v: [g.relu(v["x"])], lambda rows: [np.maximum(rows.of("x"), 0)],
        lambda torch, t: lambda: torch.relu(t["x"]), size, jax=lambda jax, x: [jax.nn.relu(x)],
    )  # fmt: skip
    yield case(
        f"relu gradient {name}", dtype, {"x": x, "d": x}, lambda g, v: [g.relu_grad(v["x"], v["d"])],
        lambda rows: [rows.of("d") * (rows.of("x") > 0)],
        lambda torch, t: lambda: torch.ops.aten.threshold_backward(t["d"], t["x"], 0), size,
        jax=lambda jax, x, d: [jax.numpy.where(x > 0, d, 0)],
    )  # fmt: skip
    for approximate in (False, True):
        form = "tanh" if approximate else "erf"
        attrs = {"approximate": approximate}
        yield case(
            f"gelu {form} {name}", dtype, {"x": x}, lambda g, v, a=attrs: [g.gelu(v["x"], **a)],
            lambda rows, a=approximate: [gelu64(rows.of("x"), a)],
            lambda torch, t, f="tanh" if approximate else "none": (
                lambda: torch.nn.functional.gelu(t["x"], approximate=f)
            ), size, jax=wide(lambda jax, x, a=approximate: [jax.nn.gelu(x, approximate=a)]),
        )  # fmt: skip
        yield case(
            f"gelu {form} gradient {name}", dtype, {"x": x, "d": x},
            lambda g, v, a=attrs: [g.gelu_grad(v["x"], v["d"], **a)],
            lambda rows, a=approximate: [rows.of("d") * gelu_slope64(rows.of("x"), a)],
            lambda torch, t, f="tanh" if approximate else "none": (
                lambda: torch.ops.aten.gelu_backward(t["d"], t["x"], approximate=f)
            ), size,
            jax=wide(lambda jax, x, d, a=approximate: jax.vjp(lambda x: jax.nn.gelu(x, approximate=a), x)[1](d)),
        )  # fmt: skip
    other = "bfloat16" if dtype == "float32" else "float32"
    yield Case(
        f"cast {name} {dtype} to {other}", {"x": x}, {"minigraph": lambda g, v: [g.cast(v["x"], dtype=other)]},
        lambda rows: [rows.of("x")], lambda torch, t: lambda: t["x"].to(getattr(torch, other)), 6 * size,
        jax=lambda jax, x: [x.astype(other)], compared=(0,),
    )  # fmt: skip
    yield case(
        f"dropout {name}", dtype, {"x": x}, lambda g, v: list(g.dropout(v["x"], p=0.1))[:1], lambda rows: [None],
        lambda torch, t: lambda: torch.ops.aten.native_dropout(t["x"], 0.1, True), size, x.nbytes + size,
    )  # fmt: skip


# sums


def sums(dtype: str) -> Iterator[Case]:
    for shape in SCORES:
        x = Input(shape, dtype)
        for axis, what in ((0, "columns"), (1, "rows"), (None, "all")):
            axes = None if axis is None else (axis,)
            yield case(
                f"sum of {what} {shown(shape)}", dtype, {"x": x}, lambda g, v, a=axes: [g.reduce_sum(v["x"], axis=a)],
                lambda rows, axis=axis: [rows.device("x").sum(axis)],
                lambda torch, t, axis=axis: (lambda: t["x"].sum()) if axis is None else (lambda: t["x"].sum(axis)), 0,
                jax=wide(lambda jax, x, axis=axis: [x.sum(axis)]),
            )  # fmt: skip
        yield case(
            f"max of rows {shown(shape)}", dtype, {"x": x}, lambda g, v: [g.reduce_max(v["x"], axis=(1,))],
            lambda rows: [rows.of("x").max(1)], lambda torch, t: lambda: torch.amax(t["x"], 1), 0,
            jax=lambda jax, x: [x.max(1)],
        )  # fmt: skip


def cases() -> Sequence[Case]:
    return [
        c
        for group in (scores, norms, gathers, movements, elementwise, sums)
        for d in DTYPES
        for c in group(d)
    ]


BENCH = GpuBench("gpu_kernels", "Kernels bound by memory", cases, ("torch", "jax"))
