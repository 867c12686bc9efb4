"""Operators that wait for numbers: which block they run follows from sizes and axes that only a run knows.

program/blocks/deferred.py builds the blocks, tensor/waiting the operators; decision 063 says why they are so.
"""

from __future__ import annotations

import numpy as np

from minigraph.opdef import Arrays, DTypeAttr, Ints, Texts, op
from minigraph.program.blocks.deferred import block_of, check_results, gradient_block, numbers_of
from minigraph.types import TensorType, float32, type_of

TRAITS = {"control", "reports", "random"}  # the function may draw random numbers


@op("Out*", traits=TRAITS)
def deferred(
    X: Arrays = None, Number: Arrays = None, *, function: str, arguments: str, types: Texts,  # type: ignore[assignment]
    dtype: DTypeAttr = float32, is_test: bool = False, rng=(0, 0, 0), lifted=False,
):  # fmt: skip
    """What a function returns for X and the values of Number.

    function   its name;  arguments: as `x=X[0], k=Number[0], axis=-1`
    types      of the results, as "f32[4,-1]"
    dtype      the default data type where it was called
    is_test    what is called is in its form for tests: dropout drops nothing
    """
    attrs = {"function": function, "arguments": arguments, "dtype": dtype, "is_test": is_test}
    block = block_of(attrs, [TensorType(x.shape, x.dtype) for x in X or ()], numbers_of(Number or ()))
    check_results(block, [type_of(t) for t in types])
    return block.evaluate(X or (), rng, lifted)


@deferred.infer
def _(X, Number, *, function, arguments, types, dtype, is_test):
    return [type_of(t) for t in types]


@deferred.grad
def _(g, X, Number, Out_grad, *, function, arguments, types, dtype, is_test):
    wanted = [i for i, v in enumerate(X) if g.is_active(v)]
    seeds = [grad for grad, t in zip(Out_grad, types, strict=True) if type_of(t).is_float]
    grads = iter(g.deferred_grad(
        X, Number, seeds, function=function, arguments=arguments, wanted=wanted, dtype=dtype, is_test=is_test,
        needs=["X_grad"],
    ))  # fmt: skip
    return [next(grads) if i in wanted else None for i in range(len(X))], None


@deferred.samples
def _(rng):
    attrs = {"function": "argmax", "arguments": "x=X[0], axis=one(Number[0])", "types": ("i64[3]",)}
    yield ([rng.normal(size=(3, 3))], [np.array([1])]), attrs
    attrs = {"function": "arange", "arguments": "start=Number[0], end=Number[1]", "types": ("i64[5]",)}
    yield (None, [np.array(2), np.array(7)]), attrs


@op("X_grad*", traits=TRAITS)
def deferred_grad(
    X: Arrays, Number: Arrays, Out_grad: Arrays, *, function: str, arguments: str, wanted: Ints,
    dtype: DTypeAttr = float32, is_test: bool = False, rng=(0, 0, 0), lifted=False,
):  # fmt: skip
    """Gradients of X[i], i in `wanted`, for gradients of the float results of `deferred`."""
    attrs = {"function": function, "arguments": arguments, "dtype": dtype, "wanted": wanted, "is_test": is_test}
    block = gradient_block(attrs, [TensorType(x.shape, x.dtype) for x in X], numbers_of(Number))
    return block.evaluate([*X, *Out_grad], rng, lifted)


@deferred_grad.infer
def _(X, Number, Out_grad, *, function, arguments, wanted, dtype, is_test):
    return [X[i] for i in wanted]


@deferred_grad.samples
def _(rng):
    attrs = {"function": "concat", "arguments": "x=[X[0], X[1]], axis=Number[0]", "wanted": (1,)}
    yield ([rng.normal(size=(2, 3)), rng.normal(size=(1, 3))], [np.array(0)], [rng.normal(size=(3, 3))]), attrs
