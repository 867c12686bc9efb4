"""Programs whose Q, K and V are parts of one array, in the spellings that users write.

    case = packed(spelling, dtype)          one of SPELLINGS, forward and gradient
    case = strided_program(seed)            any order of axes, any way to cut them apart, with traps

Gradients are those of a projection of fed rows, so what lies around the attention is computed, too.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

import minigraph as mg
from minigraph.nn.functional.attention import attend
from minigraph.program import Program, Variable, unique_name
from minigraph.program.backward import gradients
from minigraph.program.builder import Builder
from minigraph.types import as_dtype
from tests.support.random_programs import Case

Qkv = tuple[Variable, Variable, Variable]


def split(x: Variable, h: int, d: int) -> Qkv:
    """[B, S, 3 * H * D], cut and then reshaped."""
    q, k, v = (mg.reshape(part, [0, 0, h, d]) for part in mg.split(x, 3, axis=-1))
    return q, k, v


def columns(x: Variable, h: int, d: int) -> Qkv:
    """Slices of the last axis."""
    q, k, v = (mg.reshape(x[:, :, i * h * d : (i + 1) * h * d], [0, 0, h, d]) for i in range(3))
    return q, k, v


def indices(x: Variable, h: int, d: int) -> Qkv:
    """[B, S, 3, H, D], the third axis indexed."""
    whole = mg.reshape(x, [0, 0, 3, h, d])
    return whole[:, :, 0], whole[:, :, 1], whole[:, :, 2]


def interleaved(x: Variable, h: int, d: int) -> Qkv:
    """[B, S, H, 3 * D]: the three of a head side by side."""
    q, k, v = mg.split(mg.reshape(x, [0, 0, h, 3 * d]), 3, axis=-1)
    return q, k, v


def turned(x: Variable, h: int, d: int) -> Qkv:
    """[3, B, H, S, D], indexed: heads first."""
    whole = mg.transpose(mg.reshape(x, [0, 0, 3, h, d]), [2, 0, 3, 1, 4])
    return whole[0], whole[1], whole[2]


def parts_turned(x: Variable, h: int, d: int) -> Qkv:
    """Cut, then each with heads first."""
    q, k, v = (mg.transpose(part, [0, 2, 1, 3]) for part in split(x, h, d))
    return q, k, v


def unbound(x: Variable, h: int, d: int) -> Qkv:
    """[B, S, 3, H, D] cut into pieces of one, which are squeezed."""
    q, k, v = (mg.squeeze(part, [2]) for part in mg.split(mg.reshape(x, [0, 0, 3, h, d]), 3, axis=2))
    return q, k, v


SPELLINGS: dict[str, tuple[Callable[[Variable, int, int], Qkv], str]] = {
    "split": (split, "bshd"), "columns": (columns, "bshd"), "indices": (indices, "bshd"),
    "interleaved": (interleaved, "bshd"), "turned": (turned, "bhsd"), "parts turned": (parts_turned, "bhsd"),
    "unbound": (unbound, "bshd"),
}  # fmt: skip


class _Writer:
    """A program on the way: a projection of rows, then what becomes of it."""

    def __init__(self, seed: int, dtype: str) -> None:
        self.numbers, self.dtype = np.random.default_rng(seed), dtype
        self.program = Program("strided")
        self.program.random_seed = 5
        self.block = self.program.global_block()
        self.values: dict[str, np.ndarray] = {}
        self.feeds: dict[str, np.ndarray] = {}
        self.words: list[str] = []
        self.others: list[Variable] = []  # what has a gradient besides the result

    def data(self, *shape: int) -> Variable:
        name = f"x{len(self.feeds)}"
        self.feeds[name] = self.numbers.normal(size=shape).astype(as_dtype(self.dtype))
        return self.block.create_var(name, shape, self.dtype, is_data=True, stop_gradient=True)

    def projected(self, *shape: int) -> Variable:
        """An array that a parameter has part in."""
        w = self.block.create_parameter(f"p{len(self.values)}", shape, self.dtype)
        self.values[w.name] = self.numbers.normal(size=shape).astype(as_dtype(self.dtype))
        return self.data(*shape) * w

    def case(self, seed: int, outs: list[Variable], inner: list[str]) -> Case:
        losses = [mg.sum(out * self.data(*out.shape)) for out in outs]
        loss = losses[0] if len(losses) == 1 else losses[0] + losses[1]
        parameters = self.block.all_parameters()
        found = [v.name for v in gradients([loss], parameters) if v is not None]
        fetches = [*(out.name for out in outs), *found, *(n for n in inner if self.block.has_var(n))]
        return Case(seed, 1, self.program, self.values, self.feeds, list(dict.fromkeys(fetches)), self.words)


def packed(
    spelling: str, dtype: str = "float32", b: int = 2, s: int = 12, h: int = 2, d: int = 16, extra: Any = None,
    bias: np.ndarray | None = None, **attrs: Any,
) -> Case:  # fmt: skip
    """Attention of one projection [B, S, 3 * H * D].

    extra   (writer, projection, Q, K, V) -> names that are fetched: what else happens to them
    """
    with unique_name.guard():
        w = _Writer(1, dtype)
        with mg.static.program_guard(w.program, Program("startup")):
            part, layout = SPELLINGS[spelling]
            x = w.projected(b, s, 3 * h * d)
            q, k, v = part(x, h, d)
            inner = extra(w, x, q, k, v) if extra else []
            added = None if bias is None else w.data(*bias.shape)
            if added is not None:
                w.feeds[added.name] = bias.astype(added.dtype)
            out = attend("packed", q, k, v, added, layout=layout, **attrs)
            return w.case(0, [out, *w.others], inner)


TRAPS = ("none", "none", "none", "fetched", "read", "gradient", "updated", "whole", "shared")


def strided_program(seed: int, dtype: str = "float64") -> Case:
    """The axes [B, S, 3, H, D] lie in any order; they are put in order and cut in any."""
    r = random.Random(f"strided:{seed}")
    with unique_name.guard():
        w = _Writer(seed, dtype)
        with mg.static.program_guard(w.program, Program("startup")):
            b, s, h, d = (r.choice(sizes) for sizes in ((1, 2), (3, 7), (1, 2), (2, 4, 8)))
            sizes = {"b": b, "s": s, "n": 3, "h": h, "d": d}
            layout = r.choice(("bshd", "bhsd"))
            lies = "".join(r.sample("bsnh", 4)) + "d"
            if r.random() < 0.15:
                lies = "".join(r.sample("bsnhd", 5))
            x = w.projected(*(sizes[a] for a in lies))
            if r.random() < 0.3:
                x = mg.reshape(mg.reshape(x, [-1]), [sizes[a] for a in lies])
            w.words += [lies, layout]
            parts = _parts(w, r, x, lies, sizes, layout)
            trap = r.choice(TRAPS)
            w.words.append(trap)
            outs, inner = [], []
            chosen = r.choice(parts)
            if trap == "fetched":
                inner.append(chosen.name)
            elif trap == "gradient":
                inner.append(chosen.grad_name)
            elif trap == "whole":
                inner.append(x.name)
            elif trap == "read":
                outs.append(mg.tanh(chosen))
            elif trap == "updated":
                inner.append(Builder(w.block).emit("increment", mg.assign(x), step=0.5).name)
            elif trap == "shared":
                parts = [parts[0], parts[1], parts[1]]
            attrs = {"causal": r.random() < 0.5, "scale": r.choice((None, 0.7))}
            outs.insert(0, attend("strided", *parts, layout=layout, **attrs))
            return w.case(seed, outs, inner)


def _parts(w: _Writer, r: random.Random, x: Variable, lies: str, sizes: dict[str, int], layout: str) -> list[Variable]:
    """Q, K and V of `x`, whose axes are named."""
    how = r.choice(("cut first", "turned first", "turned in between", "sliced"))
    w.words.append(how)
    if how == "turned first":
        order = "n" + layout if r.random() < 0.5 else layout[:2] + "n" + layout[2:]
        x, lies = mg.transpose(x, [lies.index(a) for a in order]), order
    axis = lies.index("n")
    if how == "sliced":
        places = [slice(None)] * axis
        cut = [x[(*places, i)] for i in range(3)]
        lies = lies.replace("n", "")
    else:
        cut = mg.split(x, 3, axis=axis)
        if r.random() < 0.5:
            cut, lies = [mg.squeeze(part, [axis]) for part in cut], lies.replace("n", "")
    if "n" not in lies and lies == layout:
        return cut
    if "n" in lies:
        order = [lies.index(a) for a in (*layout, "n")]
        return [mg.reshape(mg.transpose(part, order), [sizes[a] for a in layout]) for part in cut]
    return [mg.transpose(part, [lies.index(a) for a in layout]) for part in cut]
