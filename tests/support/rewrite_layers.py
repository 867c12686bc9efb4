"""Layers of random programs that small rewrites change, or must leave alone (random_programs.py).

Each layer appends operators to a program on the way and returns the value that goes on, None where
nothing does. Those with traps refuse a rewrite by what they do in between.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np

from minigraph.program import Block, Variable
from minigraph.program.builder import Builder
from minigraph.types import float32, float64

POINTWISE = ("tanh", "relu", "sigmoid", "square")


class RewriteLayers:
    """What `_Net` of random_programs.py has besides linear layers."""

    r: random.Random
    g: Builder
    block: Block
    pool: list[Variable]
    sizes: dict[str, tuple[int, ...]]
    values: dict[str, np.ndarray]
    fetches: list[str]
    emit: Callable[..., Variable]
    pick: Callable[..., Variable | None]
    data: Callable[..., Variable]
    param: Callable[..., Variable]
    state: Callable[..., Variable]

    def repeated(self) -> Variable:
        """The same expression twice: of one value, of two versions of it, random, fetched, commuted."""
        x, r = self.pick(), self.r
        assert x is not None
        kind = r.choice(("pointwise", "product", "commuted", "chain", "random", "fetched", "version", "updated"))
        if kind == "product" and len(self.sizes[x.name]) >= 2:
            w = self.param(self.sizes[x.name][-1], 2)
            return self.emit("elementwise_mul", *(self.emit("matmul", x, w) for _ in "ab"))
        if kind == "commuted":
            y = self.emit("tanh", x)
            other = self.emit("elementwise_sub", y, x)  # apart from the loss, so that it is not differentiated
            self.fetches.append(self.emit("scale", other, scale=0.5).name)
            a, b = self.emit("elementwise_add", x, y), self.emit("elementwise_add", y, x)
            return self.emit("elementwise_mul", self.emit("elementwise_sub", x, y), self.emit("elementwise_mul", a, b))
        if kind == "chain":
            a, b = (self.emit("scale", self.emit("tanh", x), scale=0.5) for _ in "ab")
            return self.emit("elementwise_add", a, b)
        if kind == "random":  # the same call, other numbers
            a, b = (self.dropped(x) for _ in "ab")
            return self.emit("elementwise_sub", a, b)
        if kind == "version":
            s = self.state(*self.sizes[x.name])
            a = self.emit("tanh", s)
            self.emit("increment", s, step=0.25, out={"Out": s})
            return self.emit("elementwise_add", self.emit("elementwise_sub", self.emit("tanh", s), a), x)
        op_type = r.choice(POINTWISE)
        a, b = self.emit(op_type, x), self.emit(op_type, x)
        if kind == "fetched":
            self.fetches += [v.name for v in r.sample((a, b), r.randint(1, 2))]
        if kind == "updated":
            c = self.emit("assign", x)
            d = self.emit("assign", x)
            self.emit("increment", r.choice((c, d)), step=0.5, out={"Out": c})
            return self.emit("elementwise_add", c, d)
        return self.emit("elementwise_add", a, b)

    def dropped(self, x: Variable) -> Variable:
        """dropout with a seed of its own, so that the interpreter draws the same numbers."""
        out, _ = self.g.dropout(x, p=0.4, seed=7)
        self.sizes[out.name] = self.sizes[x.name]
        return out

    def constants(self) -> Variable:
        """A value made of constants meets the pool; large, fetched, updated and persistable ones too."""
        x, r = self.pick(), self.r
        assert x is not None
        size = self.sizes[x.name][-1] if self.sizes[x.name] else 1
        kind = r.choice(("equal", "different", "shape", "large", "zero", "updated", "state", "differentiated"))
        c = self.emit("fill_constant", shape=(size,), value=r.choice((0.5, 2.0)), dtype="float64")
        if kind == "different":
            n = self.emit("arange", end=size)
            c = self.emit("scale", self.emit("cast", n, dtype="float64"), scale=0.1, bias=0.5)
            c = self.emit("elementwise_add", c, self.emit("exp", c))
        elif kind == "shape":
            c = self.emit("fill_any_like", self.param(size), value=0.75)
            c = self.emit("elementwise_mul", c, self.emit("tanh", c))
        elif kind == "zero":  # minus zero, as a division by it shows
            zero = self.emit("fill_constant", shape=(size,), value=-0.0, dtype="float64")
            self.fetches.append(self.emit("elementwise_div", x, self.emit("scale", zero, scale=2.0)).name)
        elif kind == "large":
            n = self.emit("cast", self.emit("arange", end=r.choice((300, 70000))), dtype="float64")
            scaled = self.emit("scale", n, scale=1e-4)
            if self.sizes[n.name] == (300,) and r.random() < 0.5:
                self.fetches.append(scaled.name)
            mean = self.emit("reduce_mean", scaled)
            return self.emit("elementwise_mul", x, mean)
        elif kind == "updated":
            c = self.emit("scale", c, scale=2.0)
            self.emit("increment", c, step=0.5, out={"Out": c})
        elif kind == "state":
            c = self.emit("scale", c, scale=2.0, out={"Out": self.state(size)})
        elif kind == "differentiated":
            c.stop_gradient = False
            c = self.emit("tanh", c)
        else:
            c = self.emit("exp", self.emit("scale", c, scale=0.25))
        if r.random() < 0.15:
            self.fetches.append(c.name)
        return self.emit("elementwise_add", x, c)

    def norm(self, r: random.Random) -> Variable | None:
        """A layer norm of rows of at least two numbers, mostly with scale and shift; read by a cast now and then."""
        x = self.pool[-1]
        if len(self.sizes[x.name]) < 2 or self.sizes[x.name][-1] < 2 or 0 in self.sizes[x.name]:
            return None
        sizes = self.sizes[x.name]
        axis = r.randint(1, len(sizes) - 1)
        scale, shift = (self.param(math.prod(sizes[axis:])) if r.random() < 0.7 else None for _ in "ab")
        y, *_ = self.g.layer_norm(x, scale, shift, begin_norm_axis=axis, epsilon=0.1)
        self.sizes[y.name] = sizes
        if r.random() < 0.1:
            self.fetches.append(y.name)
        if r.random() < 0.2:
            return self.emit("cast", self.emit("cast", y, dtype="float32"), dtype="float64")
        return y

    def casts(self) -> Variable:
        """There and back: exact, rounded, on to a third type, to the own type, of bools and ints."""
        x, r = self.pick(), self.r
        assert x is not None
        kind = r.choice(("back", "rounded", "own", "on", "ints", "undefined", "fetched", "between"))
        if kind == "own":
            return self.emit("cast", x, dtype="float64")
        if kind == "rounded":
            return self.emit("cast", self.emit("cast", x, dtype="float32"), dtype="float64")
        if kind == "on":
            a = self.emit("cast", self.emit("cast", x, dtype="bfloat16"), dtype="float32")
            return self.emit("cast", a, dtype="float64")
        if kind in ("ints", "undefined"):
            zero = self.emit("fill_any_like", x, value=0.0)
            test = self.emit("greater_than", x, zero)
            wide = self.emit("cast", test, dtype=r.choice(("int8", "float32", "int64")))
            if kind == "undefined":  # numbers that fit, which the types do not say
                wide = self.emit("cast", self.data(x.shape, self.sizes[x.name], ints=True), dtype="int32")
                wide = self.emit("cast", self.emit("cast", wide, dtype="float64"), dtype="int16")
            return self.emit("elementwise_add", x, self.emit("cast", wide, dtype="float64"))
        low = self.emit("cast", x, dtype=float32)
        wide = self.emit("cast", low, dtype=float64)
        back = self.emit("cast", wide, dtype=float32)
        if kind == "fetched":
            self.fetches.append(r.choice((wide, back)).name)
        out = self.emit("cast", self.emit("tanh", back), dtype="float64")
        return self.emit("elementwise_add", out, wide) if kind == "between" else out

    def transposes(self) -> Variable | None:
        """Two in a row: back again, on, one of nothing, the value between read or fetched, an update between."""
        r = self.r
        x = self.pick(lambda s: len(s) >= 2)
        if x is None:
            return None
        kind = r.choice(("back", "back", "on", "on", "nothing", "read", "fetched", "updated"))
        rank = len(self.sizes[x.name])
        if kind == "nothing":
            return self.emit("transpose", x, perm=tuple(range(rank)))
        if kind == "updated":
            s = self.state(2, 3)
            t = self.emit("transpose", s, perm=(1, 0))
            self.emit("increment", s, step=0.5, out={"Out": s})
            return self.emit("tanh", self.emit("transpose", t, perm=(1, 0)))
        if kind == "on":  # two permutations whose order matters
            t = self.emit("transpose", self.param(2, 3, 4), perm=(1, 2, 0))
            return self.emit("transpose", t, perm=r.choice(((1, 0, 2), (0, 2, 1), (2, 1, 0))))
        perm = r.sample(range(rank), rank)
        other = [perm.index(axis) for axis in range(rank)]
        t = self.emit("transpose", x, perm=tuple(perm))
        out = self.emit("transpose", t, perm=tuple(other))
        if kind == "read":
            self.pool.append(self.emit("tanh", t))
        if kind == "fetched":
            self.fetches.append(r.choice((t, out)).name)
        return out

    def swapped(self) -> Variable | None:
        """A product of transposes: of the weight, of the value, of both, of axes that are not the last two."""
        r = self.r
        x = self.pick(lambda s: len(s) >= 2)
        if x is None:
            return None
        shape = self.sizes[x.name]
        rank, n = len(shape), r.choice((1, 2, 3))
        swap = (*range(rank - 2), rank - 1, rank - 2)
        weight = self.param(n, shape[-1])
        kind = r.choice(("weight", "weight", "value", "both", "undone", "batch", "other", "shared"))
        if kind == "undone":
            square = self.emit("transpose", self.param(3, 3), perm=(1, 0))
            return self.emit("matmul", square, self.param(3, n), trans_x=True)
        if kind == "other":  # sizes that fit with any of them
            cube = self.emit("transpose", self.param(2, 2, 2), perm=r.choice(((1, 0, 2), (2, 1, 0), (1, 2, 0))))
            return self.emit("matmul", cube, self.param(2, 2, 2))
        y = self.emit("transpose", weight, perm=(1, 0))
        if kind in ("value", "both"):
            x = self.emit("transpose", x, perm=swap)
            inner = self.sizes[x.name][-1]
            y = self.param(inner, n) if kind == "value" else self.emit("transpose", self.param(n, inner), perm=(1, 0))
        if kind == "batch":
            y = self.emit("transpose", x, perm=swap)
        z = self.emit("matmul", x, y)
        if kind == "shared":
            self.fetches.append(self.emit("tanh", y).name)
        if r.random() < 0.5:
            z = self.emit("elementwise_add", z, self.param(self.sizes[z.name][-1]))
        return z

    def dead(self) -> None:
        """A branch that nobody reads, some of it updated in place, or read only by a fetch of nothing."""
        x, r = self.pick(), self.r
        assert x is not None
        a = self.emit(r.choice(POINTWISE), x)
        if r.random() < 0.3:
            self.emit("increment", a, step=0.5, out={"Out": a})
        if r.random() < 0.3:
            a = self.dropped(a)
        if r.random() < 0.5:
            self.emit("reduce_mean", a)
