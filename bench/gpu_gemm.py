"""Matrix products with epilogues on a GPU: 8192 x 4096 x 4096, bfloat16, sums in float32.

Arms: minigraph is the fused operator, one cuBLASLt call with its epilogue or a kernel after it; tuned is the
same with BuildStrategy.autotune; unfused is the same from separate operators; plain is the products alone,
a bound that no epilogue beats; torch is eager, jax is jitted.
One product is 2 * 8192 * 4096 * 4096 = 275 GFLOP.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .gpu_timing import Case, CaseRows, GpuBench, Input, Vars

M, K, N = 8192, 4096, 4096
FLOPS = 2 * M * K * N
PLAIN = frozenset({"plain"})
TUNED = frozenset({"tuned"})
DTYPE = "bfloat16"


def linear_inputs() -> dict[str, Input]:
    return {
        "x": Input((M, K), DTYPE),
        "w": Input((K, N), DTYPE, scale=K**-0.5),
        "b": Input((N,), DTYPE),
    }


def tanh_gelu(z: np.ndarray) -> np.ndarray:
    return 0.5 * z * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))


def erf_gelu(z: np.ndarray) -> np.ndarray:
    return z * 0.5 * (1 + np.vectorize(math.erf, otypes=[float])(z / math.sqrt(2)))


def fused(
    activation: str, keep: bool = False, approximate: bool = False
) -> Callable[[Any, Vars], Sequence[Any]]:
    """The fused operator; `keep` also writes what backward needs."""

    def program(g: Any, v: Vars) -> Sequence[Any]:
        attrs = {
            "activation": activation,
            "approximate": approximate,
            "needs": ["ReserveSpace"] if keep else (),
        }
        outputs = g.fused_gemm_epilogue(v["x"], v["w"], v["b"], **attrs)
        return list(outputs if keep else outputs[:1])

    return program


def unfused(activation: str, keep: bool, **attrs: Any) -> Callable[[Any, Vars], Sequence[Any]]:
    """With `keep` also what gelu_grad reads; relu_grad reads the output."""

    def program(g: Any, v: Vars) -> Sequence[Any]:
        z = g.elementwise_add(g.matmul(v["x"], v["w"]), v["b"])
        out = z if activation == "none" else getattr(g, activation)(z, **attrs)
        return [out, z] if keep and activation == "gelu" else [out]

    return program


def plain(g: Any, v: Vars) -> Sequence[Any]:
    return [g.matmul(v["x"], v["w"])]


def in_float32(g: Any, v: Vars) -> Sequence[Any]:
    return [g.matmul(v["x"], v["w"], out_dtype="float32")]


def jax_linear(act: str, approximate: bool) -> Callable[..., Sequence[Any]]:
    def peer(jax: Any, x: Any, w: Any, b: Any) -> Sequence[Any]:
        z = x @ w + b
        if act == "gelu":
            return [jax.nn.gelu(z, approximate=approximate)]
        return [jax.nn.relu(z) if act == "relu" else z]

    return peer


def forward(
    name: str, formula: Callable[[np.ndarray], np.ndarray], activation: str, peer: Any, **attrs: Any
) -> Iterator[Case]:
    def exact(rows: CaseRows) -> Sequence[Any]:
        return [formula(rows.of("x") @ rows.whole("w") + rows.whole("b"))]

    for keep in [False] if activation == "none" else [False, True]:
        programs = {
            "minigraph": fused(activation, keep, **attrs),
            "tuned": fused(activation, keep, **attrs),
            "unfused": unfused(activation, keep, **attrs),
            "plain": plain,
        }
        title = f"{name}{', kept for backward' if keep else ''}"
        jax = None if keep else jax_linear(activation, attrs.get("approximate", False))
        yield Case(
            title, linear_inputs(), programs, exact, peer, flops=FLOPS, unchecked=PLAIN, jax=jax, tuned=TUNED
        )


def forwards() -> Iterator[Case]:
    def torch_linear(activation: Callable[[Any], Callable[[Any], Any]] | None) -> Any:
        def peer(torch: Any, t: Vars) -> Callable[[], Any]:
            act = activation(torch) if activation else None
            if act is None:
                return lambda: torch.addmm(t["b"], t["x"], t["w"])
            return lambda: act(torch.addmm(t["b"], t["x"], t["w"]))

        return peer

    yield Case(
        "product alone", {k: i for k, i in linear_inputs().items() if k != "b"}, {"minigraph": plain, "tuned": plain},
        lambda rows: [rows.of("x") @ rows.whole("w")], lambda torch, t: lambda: torch.mm(t["x"], t["w"]), flops=FLOPS,
        jax=lambda jax, x, w: [x @ w], tuned=TUNED,
    )  # fmt: skip
    yield Case(
        "product in float32", {k: i for k, i in linear_inputs().items() if k != "b"},
        {"minigraph": in_float32, "tuned": in_float32, "plain": plain},
        lambda rows: [rows.of("x") @ rows.whole("w")],
        lambda torch, t: lambda: torch.mm(t["x"], t["w"], out_dtype=torch.float32), flops=FLOPS,
        jax=lambda jax, x, w: [jax.numpy.matmul(x, w, preferred_element_type="float32")], tuned=TUNED, unchecked=PLAIN,
    )  # fmt: skip
    yield from forward("bias", lambda z: z, "none", torch_linear(None))
    yield from forward(
        "bias, relu", lambda z: np.maximum(z, 0), "relu", torch_linear(lambda torch: torch.relu)
    )
    yield from forward(
        "bias, gelu tanh", tanh_gelu, "gelu",
        torch_linear(lambda torch: lambda z: torch.nn.functional.gelu(z, approximate="tanh")), approximate=True,
    )  # fmt: skip
    yield from forward(
        "bias, gelu erf", erf_gelu, "gelu", torch_linear(lambda torch: torch.nn.functional.gelu)
    )


# backward


def backward_inputs() -> dict[str, Input]:
    """Of a linear layer h -> h @ w, whose h = activation(z): d is the gradient of its result."""
    return {
        "d": Input((M, N), DTYPE), "h": Input((M, K), DTYPE), "w": Input((K, N), DTYPE, scale=N**-0.5),
        "z": Input((M, K), DTYPE),
    }  # fmt: skip


def tanh_slope(cupy: Any, z: Any) -> Any:
    inner = math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)
    t = cupy.tanh(inner)
    return 0.5 * (1 + t) + 0.5 * z * (1 - t * t) * math.sqrt(2 / math.pi) * (
        1 + 3 * 0.044715 * z * z
    )


def backwards() -> Iterator[Case]:
    inputs = backward_inputs()

    def dx_plain(g: Any, v: Vars) -> Sequence[Any]:
        return [g.matmul_grad(v["h"], v["w"], v["d"], needs=["X_grad"])[0]]

    def dx_gelu(g: Any, v: Vars) -> Sequence[Any]:
        attrs = {"activation_grad": "gelu_grad", "approximate": True, "needs": ["DX"]}
        return [g.fused_gemm_epilogue_grad(v["d"], v["h"], v["w"], v["z"], **attrs)[0]]

    def dx_unfused(g: Any, v: Vars) -> Sequence[Any]:
        return [g.gelu_grad(v["z"], dx_plain(g, v)[0], approximate=True)]

    def dx_exact(rows: CaseRows) -> Sequence[Any]:
        return [(rows.of("d") @ rows.whole("w").T) * tanh_slope(np, rows.of("z"))]

    def dx_torch(torch: Any, t: Vars) -> Callable[[], Any]:
        return lambda: torch.ops.aten.gelu_backward(
            torch.mm(t["d"], t["w"].T), t["z"], approximate="tanh"
        )

    def dx_jax(jax: Any, d: Any, h: Any, w: Any, z: Any) -> Sequence[Any]:
        return jax.vjp(lambda z: jax.nn.gelu(z, approximate=True), z)[1](d @ w.T)

    yield Case(
        "input gradient with gelu tanh's slope", inputs,
        {"minigraph": dx_gelu, "tuned": dx_gelu, "unfused": dx_unfused, "plain": dx_plain}, dx_exact, dx_torch,
        flops=FLOPS, unchecked=PLAIN, jax=dx_jax, tuned=TUNED,
    )  # fmt: skip

    def dx_relu(g: Any, v: Vars) -> Sequence[Any]:
        h, mask = g.fused_gemm_epilogue(
            v["d"], v["w"], v["b"], activation="relu", trans_y=True, needs=["ReserveSpace"]
        )
        return [
            g.fused_gemm_epilogue_grad(
                v["d"], h, v["w"], mask, activation_grad="relu_grad", needs=["DX"]
            )[0]
        ]

    def dx_relu_unfused(g: Any, v: Vars) -> Sequence[Any]:
        h = g.relu(g.elementwise_add(g.matmul(v["d"], v["w"], trans_y=True), v["b"]))
        return [g.relu_grad(h, g.matmul_grad(h, v["w"], v["d"], needs=["X_grad"])[0])]

    def dx_relu_plain(g: Any, v: Vars) -> Sequence[Any]:
        h = g.matmul(v["d"], v["w"], trans_y=True)
        return [g.matmul_grad(h, v["w"], v["d"], needs=["X_grad"])[0]]

    def dx_relu_exact(rows: CaseRows) -> Sequence[Any]:
        product = rows.of("d") @ rows.whole("w").T
        return [product * (product + rows.whole("b") > 0)]

    yield Case(
        "relu forward, input gradient with its slope",
        {"d": inputs["d"], "w": inputs["w"], "b": Input((K,), DTYPE, scale=0.0)},  # 0: no sign hangs on rounding
        {"minigraph": dx_relu, "tuned": dx_relu, "unfused": dx_relu_unfused, "plain": dx_relu_plain}, dx_relu_exact,
        flops=2 * FLOPS, unchecked=PLAIN, tuned=TUNED,
    )  # fmt: skip

    def dw_plain(g: Any, v: Vars) -> Sequence[Any]:
        return [g.matmul_grad(v["h"], v["w"], v["d"], needs=["Y_grad"])[1]]

    def dw_bias(g: Any, v: Vars) -> Sequence[Any]:
        return list(g.fused_gemm_epilogue_grad(v["d"], v["h"], v["w"], needs=["DY", "DBias"])[1:])

    def dw_unfused(g: Any, v: Vars) -> Sequence[Any]:
        return [*dw_plain(g, v), g.reduce_sum(v["d"], axis=(0,))]

    def dw_torch(torch: Any, t: Vars) -> Callable[[], Any]:
        return lambda: (torch.mm(t["h"].T, t["d"]), t["d"].sum(0))

    yield Case(
        "weight and bias gradient", {k: inputs[k] for k in ("h", "d", "w")},
        {"minigraph": dw_bias, "tuned": dw_bias, "unfused": dw_unfused, "plain": dw_plain},
        lambda rows: _on_device(rows, lambda cupy, a: [a["h"].T @ a["d"], a["d"].sum(axis=0)]), dw_torch,
        flops=FLOPS, unchecked=PLAIN, jax=lambda jax, h, d, w: [h.T @ d, d.sum(0)], tuned=TUNED,
    )  # fmt: skip


def _on_device(
    rows: CaseRows, formula: Callable[[Any, Mapping[str, Any]], Sequence[Any]]
) -> Sequence[Any]:
    """A formula on whole arrays in float64, on the GPU."""
    return formula(rows.gpu.cupy, {name: rows.device(name) for name in rows.arrays})


# forward and backward


def both() -> Iterator[Case]:
    """One layer h = gelu(x @ w + b) with what follows it in backward: three products."""
    inputs = {
        **linear_inputs(),
        "w2": Input((N, K), DTYPE, scale=K**-0.5),
        "d2": Input((M, K), DTYPE),
    }
    gelu = {"approximate": True}

    def layer(g: Any, v: Vars) -> Sequence[Any]:
        z = g.elementwise_add(g.matmul(v["x"], v["w"]), v["b"])
        h = g.gelu(z, **gelu)
        dh = g.matmul_grad(h, v["w2"], v["d2"], needs=["X_grad"])[0]
        dz = g.gelu_grad(z, dh, **gelu)
        _, db = g.elementwise_add_grad(z, v["b"], dz, needs=["Y_grad"])
        dw = g.matmul_grad(v["x"], v["w"], dz, needs=["Y_grad"])[1]
        return [h, dw, db]

    def layer_fused(g: Any, v: Vars) -> Sequence[Any]:
        h, z = g.fused_gemm_epilogue(
            v["x"], v["w"], v["b"], activation="gelu", needs=["Out", "ReserveSpace"], **gelu
        )
        dz = g.fused_gemm_epilogue_grad(
            v["d2"], h, v["w2"], z, activation_grad="gelu_grad", needs=["DX"], **gelu
        )[0]
        _, dw, db = g.fused_gemm_epilogue_grad(dz, v["x"], v["w"], needs=["DY", "DBias"])
        return [h, dw, db]

    def products(g: Any, v: Vars) -> Sequence[Any]:
        h = g.matmul(v["x"], v["w"])
        dh = g.matmul_grad(h, v["w2"], v["d2"], needs=["X_grad"])[0]
        return [h, g.matmul_grad(v["x"], v["w"], dh, needs=["Y_grad"])[1]]

    def formula(cupy: Any, a: Mapping[str, Any]) -> Sequence[Any]:
        z = a["x"] @ a["w"] + a["b"]
        h = 0.5 * z * (1 + cupy.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
        dz = (a["d2"] @ a["w2"].T) * tanh_slope(cupy, z)
        return [h, a["x"].T @ dz, dz.sum(axis=0)]

    def torch_layer(torch: Any, t: Vars) -> Callable[[], Any]:
        def run() -> Any:
            z = torch.addmm(t["b"], t["x"], t["w"])
            h = torch.nn.functional.gelu(z, approximate="tanh")
            dz = torch.ops.aten.gelu_backward(torch.mm(t["d2"], t["w2"].T), z, approximate="tanh")
            return h, torch.mm(t["x"].T, dz), dz.sum(0)

        return run

    def jax_layer(jax: Any, x: Any, w: Any, b: Any, w2: Any, d2: Any) -> Sequence[Any]:
        h, pull = jax.vjp(lambda w, b: jax.nn.gelu(x @ w + b, approximate=True), w, b)
        return [h, *pull(d2 @ w2.T)]

    yield Case(
        "layer with gelu tanh, forward + backward", inputs,
        {"minigraph": layer_fused, "tuned": layer_fused, "unfused": layer, "plain": products},
        lambda rows: _on_device(rows, formula), torch_layer, flops=3 * FLOPS, unchecked=PLAIN, jax=jax_layer,
        tuned=TUNED,
    )  # fmt: skip


# a network, through the pass


def network() -> Iterator[Case]:
    """Two layers with gelu tanh between them and all their gradients: five products."""
    inputs = {
        **linear_inputs(),
        "w2": Input((N, K), DTYPE, scale=N**-0.5),
        "b2": Input((K,), DTYPE),
        "d": Input((M, K), DTYPE),
    }
    gradients = importlib.import_module("minigraph.program.backward").gradients

    def program(g: Any, v: Vars) -> Sequence[Any]:
        h = g.gelu(g.elementwise_add(g.matmul(v["x"], v["w"]), v["b"]), approximate=True)
        out = g.elementwise_add(g.matmul(h, v["w2"]), v["b2"])
        return [out, *gradients([out], [v[name] for name in ("w", "b", "w2", "b2")], [v["d"]])]

    def formula(cupy: Any, a: Mapping[str, Any]) -> Sequence[Any]:
        z = a["x"] @ a["w"] + a["b"]
        h = 0.5 * z * (1 + cupy.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
        dz = (a["d"] @ a["w2"].T) * tanh_slope(cupy, z)
        return [
            h @ a["w2"] + a["b2"],
            a["x"].T @ dz,
            dz.sum(axis=0),
            h.T @ a["d"],
            a["d"].sum(axis=0),
        ]

    def torch_network(torch: Any, t: Vars) -> Callable[[], Any]:
        leaves = [t[name].detach().requires_grad_() for name in ("w", "b", "w2", "b2")]

        def run() -> Any:
            h = torch.nn.functional.gelu(
                torch.addmm(leaves[1], t["x"], leaves[0]), approximate="tanh"
            )
            return torch.autograd.grad(torch.addmm(leaves[3], h, leaves[2]), leaves, t["d"])

        return run

    def jax_network(jax: Any, d: Any, x: Any, **parameters: Any) -> Sequence[Any]:
        def network(p: Mapping[str, Any]) -> Any:
            return jax.nn.gelu(x @ p["w"] + p["b"], approximate=True) @ p["w2"] + p["b2"]

        out, pull = jax.vjp(network, parameters)
        (grads,) = pull(d)
        return [out, *(grads[name] for name in ("w", "b", "w2", "b2"))]

    def products(g: Any, v: Vars) -> Sequence[Any]:
        h = g.matmul(v["x"], v["w"])
        out = g.matmul(h, v["w2"])
        dh, dw2 = g.matmul_grad(h, v["w2"], v["d"], needs=["X_grad", "Y_grad"])
        return [out, g.matmul_grad(v["x"], v["w"], dh, needs=["Y_grad"])[1], dw2]

    yield Case(
        "two layers with gelu tanh, all gradients", inputs,
        {"minigraph": program, "tuned": program, "unfused": program, "plain": products},
        lambda rows: _on_device(rows, formula), torch_network, flops=5 * FLOPS, unchecked=PLAIN, jax=jax_network,
        rewritten=frozenset({"minigraph", "tuned"}), tuned=TUNED,
    )  # fmt: skip


def cases() -> Sequence[Case]:
    return [*forwards(), *backwards(), *both(), *network()]


BENCH = GpuBench("gpu_gemm", f"Products {M} x {K} x {N} with their epilogues", cases, ("torch", "jax"))
