"""Attention: which kernels compute it, and the key of its dropout.

KERNELS is the registry, best first. A call goes to the first whose `reasons` has nothing against it; what
was passed over, and why, is a remark that `explain()` shows. Kernels of another library are taken where
`BuildStrategy.attention_kernel` names them, or where autotune measures that they are faster than the first of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from ...errors import PlaceError
from . import attention_cudnn, attention_exact, attention_hopper, attention_mma
from .binder import Binder

Slots = Mapping[str, Any]
Bind = Callable[[Binder, Slots, Slots, Slots], None]


class Kernel(NamedTuple):
    """One way to compute attention.

    reasons            (inputs, attributes, architecture) -> why it cannot compute a call; empty if it can
    forward, backward  bind functions of both operators
    foreign            it is another library's; its backward adds up in no fixed order
    """

    name: str
    reasons: Callable[[Slots, Slots, str], list[str]]
    forward: Bind
    backward: Bind
    foreign: bool = False


KERNELS: tuple[Kernel, ...] = (
    Kernel("wgmma", attention_hopper.reasons, attention_hopper.forward, attention_hopper.backward),
    Kernel("mma", attention_mma.reasons, attention_mma.forward, attention_mma.backward),
    Kernel("cudnn", attention_cudnn.reasons, attention_cudnn.forward, attention_cudnn.backward, foreign=True),
    Kernel("exact", attention_exact.reasons, attention_exact.forward, attention_exact.backward),
)


def chosen(binder: Binder, ins: Slots, attrs: Slots) -> list[Kernel]:
    """The first kernel that can, and those of other libraries that may be faster.

    A PlaceError with everybody's reasons where none can.
    """
    found: list[Kernel] = []
    passed_over = []
    for kernel in KERNELS:
        have = any(not k.foreign for k in found)
        if binder.attention not in ("auto", kernel.name) or (have and not kernel.foreign):
            continue
        why = kernel.reasons(ins, attrs, binder.device.arch) or _not_asked(kernel, binder, "Out_grad" in ins)
        if why:
            passed_over.append(f"not by {kernel.name}: {', '.join(why)}")
        else:
            found.append(kernel)
    if not found:
        hint = "" if binder.attention == "auto" else "attention_kernel='auto' takes the best that can"
        raise PlaceError("no kernel computes this: " + "; ".join(passed_over), hint=hint)
    found.sort(key=lambda kernel: kernel.foreign)
    names = " or ".join(kernel.name for kernel in found)
    binder.note("; ".join([f"computed by {names}", *passed_over]))
    return found


def _not_asked(kernel: Kernel, binder: Binder, backward: bool) -> list[str]:
    """Why another library's kernel is not considered although it could compute a call."""
    if not kernel.foreign or binder.attention == kernel.name:
        return []
    if backward:
        return [f"it adds up dQ in no fixed order, attention_kernel={kernel.name!r} allows that"]
    return [] if binder.autotune else [f"attention_kernel={kernel.name!r} or autotune takes it"]


def _bind(binder: Binder, ways: Mapping[str, Bind], ins: Slots, outs: Slots, attrs: Slots) -> None:
    if len(ways) == 1:
        (bind,) = ways.values()
        return bind(binder, ins, outs, attrs)
    binder.choose({name: partial(bind, binder, ins, outs, attrs) for name, bind in ways.items()})


def memory_efficient_attention(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out, and LogSumExp where it is wanted."""
    _bind(binder, {k.name: k.forward for k in chosen(binder, ins, attrs)}, ins, outs, attrs)


def memory_efficient_attention_grad(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Those of the gradients that are wanted."""
    _bind(binder, {k.name: k.backward for k in chosen(binder, ins, attrs)}, ins, outs, attrs)


def random_key(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """(seed, number, step)"""
    binder.launch("random_key.cu", "random_key", 1, 1, outs["Key"], *binder.rng(attrs))
