"""Operators that hold blocks: the host decides in each run which of them run, and how often.

Each block takes the operator's inputs in their order, and returns its results. The blocks themselves,
and how they capture what they read, are in program/blocks/subprogram.py; decision 054 says why they are so.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from minigraph.errors import require
from minigraph.errors.kinds import BLOCKS
from minigraph.kernels.control import loop, loop_gradient
from minigraph.opdef import Arrays, BlockAttr, op
from minigraph.opdef.inner import as_flag, check_flag, in_round, joined

CONTROL = {"control", "side_effect", "reports"}
LOOP = ["X", "Input"]  # what the blocks of a loop take
MOST_MADE_UP = 1000  # rounds of a loop on the made-up numbers of validation, on which it may never end


@op("Out*?", traits=CONTROL, blocks={"true_block": ["Input"], "false_block": ["Input"]})
def cond(
    Pred, Input: Arrays = None, *, true_block: BlockAttr, false_block: BlockAttr, rng=(0, 0, 0), lifted=False  # type: ignore[assignment]
):
    """The results of true_block where Pred is True, else those of false_block."""
    block = true_block if as_flag(Pred) else false_block
    return block.evaluate(Input or (), rng, lifted)


@cond.infer
def _(Pred, Input, *, true_block, false_block):
    check_flag("Pred", Pred)
    for name, block in (("true_block", true_block), ("false_block", false_block)):
        block.check_takes(name, Input or ())
    results = true_block.output_types, false_block.output_types
    one, other = map(len, results)
    require(one == other, f"true_block has {one} results, false_block has {other}", BLOCKS)
    return [joined(pair) for pair in zip(*results, strict=True)]


@cond.grad
def _(g, Pred, Input, Out_grad, *, true_block, false_block):
    wanted = [i for i, v in enumerate(Input) if g.is_active(v)]
    outputs = [k for k, t in enumerate(true_block.output_types) if t.is_float]
    given = [*Input, *(Out_grad[k] for k in outputs)]
    true_grad, false_grad = (block.gradient(wanted, outputs) for block in (true_block, false_block))
    grads = iter(g.cond(Pred, given, true_block=true_grad, false_block=false_grad, needs=["Out"]))
    return None, [next(grads) if i in wanted else None for i in range(len(Input))]


@op("Out*", traits=CONTROL, blocks={"block": ["Input"]})
def call(Input: Arrays, *, block: BlockAttr, rng=(0, 0, 0), lifted=False):
    """The results of a block."""
    return block.evaluate(Input, rng, lifted)


@call.infer
def _(Input, *, block):
    block.check_takes("block", Input)
    return block.output_types


@call.grad
def _(g, Input, Out_grad, *, block):
    wanted = [i for i, v in enumerate(Input) if g.is_active(v)]
    outputs = [k for k, t in enumerate(block.output_types) if t.is_float]
    grads = iter(g.call([*Input, *(Out_grad[k] for k in outputs)], block=block.gradient(wanted, outputs)))
    return [next(grads) if i in wanted else None for i in range(len(Input))]


@op("Out*", traits=CONTROL, no_need_buffer={"Later"}, blocks={"forward_block": LOOP})
def pylayer(
    X: Arrays, Input: Arrays = None, Later: Arrays = None, *,  # type: ignore[assignment]
    forward_block: BlockAttr, backward_block: BlockAttr, rng=(0, 0, 0), lifted=False,
):  # fmt: skip
    """The results of forward_block; the gradients of X are those of backward_block, for gradients of the results.

    Later  what backward_block reads besides
    """
    return forward_block.evaluate([*X, *(Input or ())], rng, lifted)


@pylayer.infer
def _(X, Input, Later, *, forward_block, backward_block):
    forward_block.check_takes("forward_block", [*X, *(Input or ())])
    results = forward_block.output_types
    backward_block.check_takes("backward_block", [*results, *(Later or ())])
    grads = backward_block.output_types
    require(len(grads) == len(X), f"backward_block has {len(grads)} results for {len(X)} inputs", BLOCKS)
    return results


@pylayer.grad
def _(g, Later, Out_grad, *, forward_block, backward_block):
    return g.call([*Out_grad, *Later], block=backward_block)


@op("Out*", traits=CONTROL, blocks={"cond_block": LOOP, "body_block": LOOP})
def while_loop(
    X: Arrays, Input: Arrays = None, *, cond_block: BlockAttr, body_block: BlockAttr, rng=(0, 0, 0), lifted=False  # type: ignore[assignment]
):
    """X, put through body_block as long as cond_block gives True; both take X and Input."""
    run = partial(_run, rng, lifted)
    return loop(cond_block, body_block, X, Input or (), run, _as_is, most=MOST_MADE_UP if lifted else None)


@while_loop.infer
def _(X, Input, *, cond_block, body_block):
    given = [*X, *(Input or ())]
    for name, block in (("cond_block", cond_block), ("body_block", body_block)):
        block.check_takes(name, given)
    conditions, results = cond_block.output_types, body_block.output_types
    require(len(conditions) == 1, f"cond_block has {len(conditions)} results, not one", BLOCKS)
    check_flag("the result of cond_block", conditions[0])
    require(len(results) == len(X), f"body_block has {len(results)} results for {len(X)} loop variables", BLOCKS)
    for i, (own, result) in enumerate(zip(body_block.input_types, results, strict=False)):
        require(own.accepts(result), f"loop variable {i} is {own}, body_block makes it {result}")
    return [joined(pair) for pair in zip(body_block.input_types, results, strict=False)]


@while_loop.grad
def _(g, X, Input, Out_grad, *, cond_block, body_block):
    floats = [i for i, v in enumerate(X) if v.type.is_float]
    more = [i for i, v in enumerate(Input) if g.is_active(v)]
    block = body_block.gradient([*floats, *(len(X) + i for i in more)], floats, summed=len(more))
    grads, sums = g.while_loop_grad(
        X, Input or None, [Out_grad[i] for i in floats], [g.fill_any_like(Input[i], value=0.0) for i in more] or None,
        cond_block=cond_block, body_block=body_block, grad_block=block, needs=["X_grad", "Input_grad"],
    )  # fmt: skip
    flow, add = iter(grads), iter(sums or ())
    return (
        [next(flow) if i in floats else None for i in range(len(X))],
        [next(add) if i in more else None for i in range(len(Input))],
    )


@op("X_grad*,Input_grad*?", traits=CONTROL,
    blocks={"cond_block": LOOP, "body_block": LOOP, "grad_block": [*LOOP, "Out_grad", "Sum"]})  # fmt: skip
def while_loop_grad(
    X: Arrays, Input: Arrays = None, Out_grad: Arrays = None, Sum: Arrays = None, *,  # type: ignore[assignment]
    cond_block: BlockAttr, body_block: BlockAttr, grad_block: BlockAttr, rng=(0, 0, 0), lifted=False,
):  # fmt: skip
    """Gradients of a while_loop's float X and of some of its Input.

    Out_grad  gradients of the float results;  Sum: zeros like the Input whose gradients are wanted
    The values that each round begins with are computed again where a run has not kept them.
    """
    run, history, more = partial(_run, rng, lifted), list[Any](), Input or ()
    loop(cond_block, body_block, X, more, run, _as_is, history, MOST_MADE_UP if lifted else None)
    return loop_gradient(grad_block, history, more, Out_grad or (), Sum or (), run)


@while_loop_grad.infer
def _(X, Input, Out_grad, Sum, *, cond_block, body_block, grad_block):
    grads, sums = Out_grad or [], Sum or []
    grad_block.check_takes("grad_block", [*X, *(Input or ()), *grads, *sums])
    results, number = grad_block.output_types, len(grads)
    require(
        len(results) == number + len(sums), f"grad_block has {len(results)} results, not {number + len(sums)}",
        BLOCKS,
    )  # fmt: skip
    return [x for x in X if x.is_float], results[number:] or None


def _run(rng: Any, lifted: bool, block: Any, values: Any, number: int) -> list[Any]:
    return block.evaluate(values, in_round(rng, number), lifted)


def _as_is(array: Any) -> Any:
    return array
