"""Attention: which kernels compute it, and the key of its dropout.

KERNELS is the registry, best first. A call goes to the first whose `reasons` has nothing against it; what
was passed over, and why, is a remark that `explain()` shows. `BuildStrategy.attention_kernel` may name the one
that must compute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from minigraph.errors.kinds import NO_KERNEL
from minigraph.kernels.cuda.attention.exact import kernel as attention_exact
from minigraph.kernels.cuda.attention.hopper import kernel as attention_hopper
from minigraph.kernels.cuda.attention.mma import kernel as attention_mma
from minigraph.kernels.cuda.movement.movement import bring
from minigraph.kernels.cuda.record.binder import Binder

Slots = Mapping[str, Any]
Bind = Callable[[Binder, Slots, Slots, Slots], None]


class AttentionKernel(NamedTuple):
    """One way to compute attention.

    reasons            (inputs, attributes, architecture) -> why it cannot compute a call; empty if it can
    forward, backward  bind functions of both operators
    spreads            backward writes gradients by strides
    """

    name: str
    reasons: Callable[[Slots, Slots, str], list[str]]
    forward: Bind
    backward: Bind
    spreads: bool = False


KERNELS: tuple[AttentionKernel, ...] = (
    AttentionKernel(
        "wgmma", attention_hopper.reasons, attention_hopper.forward, attention_hopper.backward, spreads=True
    ),
    AttentionKernel("mma", attention_mma.reasons, attention_mma.forward, attention_mma.backward),
    AttentionKernel("exact", attention_exact.reasons, attention_exact.forward, attention_exact.backward),
)


def chosen(binder: Binder, ins: Slots, attrs: Slots) -> AttentionKernel:
    """The first kernel that can; a PlaceError with everybody's reasons where none can."""
    passed_over = []
    for kernel in KERNELS:
        if binder.attention not in ("auto", kernel.name):
            continue
        why = kernel.reasons(ins, attrs, binder.device.arch)
        if not why:
            binder.note("; ".join([f"computed by {kernel.name}", *passed_over]))
            return kernel
        passed_over.append(f"not by {kernel.name}: {', '.join(why)}")
    hint = None if binder.attention == "auto" else "attention_kernel='auto' takes the best that can"
    raise NO_KERNEL("no kernel computes this: " + "; ".join(passed_over), hint=hint)


def memory_efficient_attention(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out, and LogSumExp where it is wanted."""
    chosen(binder, ins, attrs).forward(binder, ins, outs, attrs)


def memory_efficient_attention_grad(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Those of the gradients that are wanted."""
    kernel = chosen(binder, ins, attrs)
    apart = () if kernel.spreads else [slot for slot, to in outs.items() if to is not None and to.steps is not None]
    parts = {slot: binder.scratch(outs[slot].shape, outs[slot].dtype) for slot in apart}
    kernel.backward(binder, ins, {**outs, **parts}, attrs)
    for slot, part in parts.items():
        bring(binder, outs[slot], part)


def attention_sight(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Which keys a query sees and, where it is wanted, the dropout factors."""
    binder.note("a gradient of a gradient of attention: its scores [B, H, Sq, Sk] are in memory, several times")
    attention_exact.sight(binder, ins, outs, attrs)


def random_key(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """(seed, number, step)"""
    binder.launch("elementwise/random_key.cu", "random_key", 1, 1, outs["Key"], *binder.rng(attrs))
