"""Attention by cuDNN, through NVIDIA's frontend for it, a package that may be missing.

16-bit floats, head dimensions that are multiples of 8 up to 256, plain, causal or in a window, groups of heads.
cuDNN's backward adds up dQ in no fixed order, so its last bits change from run to run. (Its deterministic form
keeps a number for each pair of query and key, which this operator is there to avoid.) As in the other kernels
for tensor cores, NaN and infinity at hidden keys beside seen ones show.
This file says what cuDNN is asked for; graph.py asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

from minigraph.kernels.cpu.attention import scale_of
from minigraph.kernels.cuda.attention.exact.kernel import Call, call_of, drops, strides_of
from minigraph.kernels.cuda.attention.hopper.kernel import shape_of, window_of
from minigraph.kernels.cuda.record.binder import Binder
from minigraph.types import bfloat16, float16

from . import graph as attention_cudnn_graph

Slots = Mapping[str, Any]

WIDEST = 256  # head dimension
LARGEST = 1 << 31  # elements of an array, exclusive


class Sdpa(NamedTuple):
    """One graph of cuDNN: "scaled dot product attention", or its gradient.

    left, right   query i sees keys from i - left to i + right, as far as there is a bound; with bottom_right
                  counted from the diagonal that ends in the last query and key
    statistics    whether forward writes LogSumExp
    strides       of Q, K and V: elements from one batch, head and row to the next
    Operands are Q, K, V, Out, LogSumExp; of backward these, Out_grad, and the gradients of Q, K and V.
    """

    call: Call
    scale: float
    left: int | None
    right: int | None
    bottom_right: bool
    backward: bool
    statistics: bool
    strides: tuple[tuple[int, int, int], ...]

    def planned(self, device: int) -> Any:
        """The graph made ready for a GPU; a PlaceError where cuDNN has nothing for it."""
        return attention_cudnn_graph.planned(self, device)


@cache
def is_installed() -> bool:
    """Whether there is a package `cudnn`."""
    return find_spec("cudnn") is not None


def reasons(ins: Slots, attrs: Slots, arch: str) -> list[str]:
    """Why cuDNN is not asked to compute this call; empty if it is."""
    if not is_installed():
        return ["nvidia-cudnn-frontend is not installed"]
    c = call_of(ins, attrs)
    found = []
    if int("".join(filter(str.isdigit, arch))) < 80:
        found.append(f"cuDNN's attention needs sm_80, this is {arch}")
    if c.dtype not in (float16, bfloat16):
        found.append(f"it takes 16-bit floats, Q is {c.dtype}")
    if max(c.d, c.dv) > WIDEST or c.d % 8 or c.dv % 8:
        found.append(f"head dimensions {c.d} and {c.dv} are not multiples of 8 up to {WIDEST}")
    absent = "Bias", "Mask", "CuSeqlensQ", "CuSeqlensK", "LogSumExp_grad"  # it has no such operands
    found += [f"{slot} is given" for slot in absent if ins.get(slot) is not None]
    if drops(attrs):
        found.append("its dropout has other random numbers")
    if attrs["deterministic"]:
        found.append("its gradients do not repeat bit by bit, as deterministic=True demands")
    if 0 in (c.rows, c.keys, c.dv):
        return [*found, "a size is 0"]
    if c.queries == 1:
        found.append("with one query its LogSumExp changes from run to run")
    if max(x.size for x in ins.values() if x is not None) >= LARGEST:
        found.append("an array has 2^31 elements or more")
    low, high = (int(n) for n in window_of(attrs, shape_of(ins["Q"], ins["K"], attrs)))
    if high < 0 or c.queries - 1 + low > c.keys - 1:
        found.append("some queries see no key")
    elif c.queries > c.keys and (c.queries - 1 + low > 0 or attrs["bottom_right"]):
        found.append("it has no such window where queries are more than keys")
    return found


def asked(ins: Slots, attrs: Slots, backward: bool, statistics: bool) -> Sdpa:
    """The graph that computes a call."""
    c = call_of(ins, attrs)
    low, high = (int(n) for n in window_of(attrs, shape_of(ins["Q"], ins["K"], attrs)))
    shift = c.keys - c.queries if attrs["bottom_right"] else 0
    left = shift - low if c.queries - 1 + low > 0 else None
    right = high - shift if high < c.keys - 1 else None
    bottom_right = shift != 0 and (left, right) != (None, None)
    strides = tuple(strides_of(ins[slot], attrs["layout"]) for slot in "QKV")
    return Sdpa(c, scale_of(attrs["scale"], c.d), left, right, bottom_right, backward, statistics, strides)


def forward(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out, and LogSumExp where it is wanted."""
    sums = outs.get("LogSumExp")
    results = (outs["Out"],) if sums is None else (outs["Out"], sums)
    binder.foreign(asked(ins, attrs, False, sums is not None), ins["Q"], ins["K"], ins["V"], *results)


def backward(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Q_grad, K_grad and V_grad; what is not wanted is computed into scratch."""
    given = [ins[slot] for slot in ("Q", "K", "V", "Out", "LogSumExp", "Out_grad")]
    gradients = []
    for slot in ("Q", "K", "V"):
        wanted = outs.get(f"{slot}_grad")
        gradients.append(wanted if wanted is not None else binder.scratch(ins[slot].shape, ins[slot].dtype))
    binder.foreign(asked(ins, attrs, True, True), *given, *gradients)
