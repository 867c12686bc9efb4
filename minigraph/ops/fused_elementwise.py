"""Several operators that work element by element, or on rows, as one: `fuse_elementwise` makes it.

Its body says what it computes, see minigraph/opdef/body.py. The reference runs the members' references one after the
other. On a CPU blocks of the values go through all members while they lie in the cache. On a GPU the body becomes one
kernel. 16-bit floats are float32 between the members and are rounded where they are written. A cast rounds where it
stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minigraph.errors import MinigraphError
from minigraph.opdef import Arrays, Texts, op
from minigraph.opdef.body import Member, fused_body, output_names, parse_body
from minigraph.opdef.reference import run_reference
from minigraph.ops.elementwise.elementwise import draw

Env = dict[str, np.ndarray]


@op(
    "Out*", traits={"in_place"}, no_need_buffer={"Like"}, cpu="minigraph.kernels.cpu.fused_blocks:in_blocks",
    gpu="fused.fused",
)  # fmt: skip
def fused_elementwise(X: Arrays, Like: Arrays = None, *, body: Texts, rng=(0, 0, 0), lifted=False):  # type: ignore[assignment]
    """The operators of `body` one after the other; the outputs are y0, y1, ...

    X     what the body calls x0, x1, ...
    Like  what it calls s0, s1, ...: only their shapes and types are used
    body  lines such as "y0 = gelu(X=x0) {approximate=true}"; see minigraph/opdef/body.py
    """
    members = parse_body(tuple(body))
    env = _named(X, Like)
    run_members(members, env, rng, lifted)
    return [env[name] for name in output_names(members)]


@fused_elementwise.infer
def _(X, Like, *, body):
    known = fused_body(tuple(body), tuple(X), tuple(Like or ()))  # kernels will ask for the same
    return ([known.types[name] for name in known.outputs],)


def _named(X: Sequence[np.ndarray], Like: Sequence[np.ndarray] | None) -> Env:
    return {f"x{i}": x for i, x in enumerate(X)} | {f"s{i}": s for i, s in enumerate(Like or ())}


def run_members(members: Sequence[Member], env: Env, rng: Any, lifted: bool) -> None:
    """Evaluate all members in `env`."""
    for m in members:
        inputs = {slot: [env[name] for name in names] for slot, names in m.inputs.items()}
        try:
            results = run_reference(m.opdef, inputs, m.attrs, m.outputs, (rng[0], m.number, *rng[2:]), lifted)
        except MinigraphError as problem:
            problem.fact += f", in {m.opdef.type}"
            raise
        for slot, names in m.outputs.items():
            env.update(zip(names, results[slot], strict=True))


@fused_elementwise.samples
def _(rng):
    x, y, n = draw(rng, (4, 6)), draw(rng, (4, 6)), draw(rng, (6,))
    yield ([x, n, y],), {"body": [
        "t0 = elementwise_add(X=x0, Y=x1)", "y0 = gelu(X=t0) {approximate=true}",
        "y1 = elementwise_mul(X=y0, Y=x2)", "t1 = greater_than(X=t0, Y=y1)", "y2 = where(Condition=t1, X=x0, Y=x2)",
    ]}  # fmt: skip
    yield ([x, y], [x]), {"body": [
        "t0, t1 = elementwise_mul_grad(X=x0, Y=x1, Out_grad=x1)", "t2 = fill_any_like(X=s0) {value=0.5}",
        "y0 = sum(X=[t0, t1, t2])",
    ]}  # fmt: skip
    yield ([x, n, n, y],), {"body": [
        "t0 = elementwise_add(X=x0, Y=x3)", "y0, y1, y2 = layer_norm(X=t0, Scale=x1, Bias=x2)",
        "y3 = softmax(X=y0)", "t1 = reduce_sum(X=y3) {axis=[1], keepdim=true}", "y4 = elementwise_div(X=y3, Y=t1)",
    ]}  # fmt: skip
    yield ([x, x.mean(axis=1), x.var(axis=1), y, n], [n]), {"body": [
        "t0, y0, y1 = layer_norm_grad(X=x0, Mean=x1, Variance=x2, Y_grad=x3, Scale=x4, Bias=s0)",
        "y2 = elementwise_add(X=t0, Y=x3)",
    ]}  # fmt: skip
    yield ([x, n, y],), {"body": [
        "t0, t1, t2 = layer_norm(X=x0, Scale=x1)", "y0 = elementwise_add(X=t0, Y=x2)", "y1 = column_sums(X=y0)",
    ]}  # fmt: skip
    yield ([draw(rng, (2, 1, 3)), draw(rng, (4, 3))],), {"body": [
        "t0 = elementwise_sub(X=x0, Y=x1)", "y0 = square(X=t0)", "y1 = cast(X=x1) {dtype=int32}",
    ]}  # fmt: skip
    yield ([np.array([[3.7, -2.25, 0.0]])],), {"body": [
        "t0 = cast(X=x0) {dtype=int32}", "t1 = scale(X=t0) {scale=3.0, bias=1.0}", "y0 = cast(X=t1) {dtype=bool}",
        "y1 = cast(X=t1) {dtype=float32}",
    ]}  # fmt: skip
    whole = "t1 = fill_any_like(X=s0) {value=9007199254740993, dtype=int64}"  # float64 has no such number
    yield ([x, rng.integers(-9, 9, (4, 6))], [y]), {"body": [
        "t0 = greater_than(X=x0, Y=x0)", "t2 = logical_not(X=t0)", whole, "y0 = where(Condition=t2, X=t1, Y=x1)",
        "t3 = fill_any_like(X=t0) {value=-9223372036854775808, dtype=int64}", "y1 = elementwise_max(X=t3, Y=y0)",
    ]}  # fmt: skip
    yield ([draw(rng, (4, 1))], [x]), {"body": [
        "t0 = fill_any_like(X=s0) {value=0.5}", "t1 = reduce_sum(X=t0) {axis=[1], keepdim=true}",
        "y0 = elementwise_div(X=x0, Y=t1)",
    ]}  # fmt: skip
    yield ([draw(rng, (0, 3))],), {"body": ["t0 = exp(X=x0)", "y0 = log(X=t0)"]}
