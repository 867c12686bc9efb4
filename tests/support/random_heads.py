"""Last layers of random programs (random_programs.py): scores of classes and their cross entropy."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

from minigraph.program import Block, Variable
from minigraph.program.builder import Builder

WEIGHTS = ("param", "param", "param", "transposed", "frozen", "computed", "shared", "batched")
ORDERS = (("bias", "cap", "rows"), ("bias", "rows", "cap"), ("rows", "bias", "cap"), ("cap", "bias", "rows"))
TRAPS = ("fetched", "read", "softmax", "second loss", "shape")


class HeadLayers:
    """What `_Net` of random_programs.py has for fuse_linear_cross_entropy."""

    r: random.Random
    g: Builder
    block: Block
    numbers: np.random.Generator
    pool: list[Variable]
    sizes: dict[str, tuple[int, ...]]
    values: dict[str, np.ndarray]
    feeds: dict[str, np.ndarray]
    fetches: list[str]
    emit: Callable[..., Variable]
    pick: Callable[..., Variable | None]
    data: Callable[..., Variable]
    param: Callable[..., Variable]

    def head(self) -> Variable | None:
        """The loss of each row; it meets weights, masks, squares and means later."""
        r = self.r
        x = self.pick(lambda s: len(s) >= 2)
        if x is None:
            return None
        classes = r.choice((3, 5, 7, 9))
        z = self._scores(x, classes)
        trap = r.choice(TRAPS) if r.random() < 0.2 else ""
        predicted = r.random() < 0.2
        if predicted and r.random() < 0.5:
            self._predict(z)
            predicted = False
        squared = r.random() < 0.15
        for step in r.choice(ORDERS):
            z = getattr(self, f"_{step}")(z) if r.random() < 0.6 else z
            if trap and r.random() < 0.3:
                self._trap(z, trap)
                trap = ""
        if predicted:
            self._predict(z)
        loss = self._cross_entropy(z, classes, trap)
        if squared:
            square = self._squared(z)
            loss = self.emit("elementwise_add", loss, square) if r.random() < 0.7 else self._keep(loss, square)
        if trap == "second loss":
            self.pool.append(self._cross_entropy(z, classes, ""))
        if r.random() < 0.3:
            loss = self.emit("elementwise_mul", loss, self.data(loss.shape, self.sizes[loss.name]))
        return self.emit("square", loss) if r.random() < 0.15 else loss

    def _scores(self, x: Variable, classes: int) -> Variable:
        inner, kind = self.sizes[x.name][-1], self.r.choice(WEIGHTS)
        known = [n for n, s in self.sizes.items() if s == (inner, classes) and n in self.values]
        if kind == "shared" and known:
            return self.emit("matmul", x, self.block.var(self.r.choice(known)))
        if kind == "transposed":
            return self.emit("matmul", x, self.param(classes, inner), trans_y=True)
        if kind == "batched":
            return self.emit("matmul", x, self.param(1, inner, classes))
        w = self.param(inner, classes, trainable=kind != "frozen")
        return self.emit("matmul", x, self.emit("tanh", w) if kind == "computed" else w)

    def _bias(self, z: Variable) -> Variable:
        r, classes = self.r, self.sizes[z.name][-1]
        bias = self.param(*([1] if r.random() < 0.1 else []), classes, trainable=r.random() < 0.8)
        return self.emit("elementwise_add", *((z, bias) if r.random() < 0.8 else (bias, z)))

    def _cap(self, z: Variable) -> Variable:
        """softcap, mostly; or something that looks like it."""
        r, cap = self.r, self.r.choice((1.5, 2.0))
        inner = 1 / cap if r.random() < 0.9 else 0.25
        if r.random() < 0.5:
            divided = self.emit("scale", z, scale=inner)
        else:
            by = self.emit("fill_constant", shape=(), value=1 / inner, dtype="float64")
            divided = self.emit("elementwise_div", z, by)
        return self.emit("scale", self.emit("tanh", divided), scale=cap, bias=0.5 if r.random() < 0.05 else 0.0)

    def _rows(self, z: Variable) -> Variable:
        r, sizes = self.r, self.sizes[z.name]
        if len(sizes) > 2 and sizes[1] > 1 and r.random() < 0.6:
            z = self.emit("slice", z, axes=(1,), starts=(0,), ends=(-1,))
        elif len(sizes) == 2 and sizes[1] > 1 and r.random() < 0.1:  # of classes, which is no choice of rows
            z = self.emit("slice", z, axes=(1,), starts=(0,), ends=(2,))
        if r.random() < 0.5 and 0 not in self.sizes[z.name]:
            z = self.emit("reshape", z, shape=(-1, self.sizes[z.name][-1]))
        return z

    def _keep(self, loss: Variable, other: Variable) -> Variable:
        self.pool.append(other)
        return loss

    def _squared(self, z: Variable) -> Variable:
        """A z-loss of each row, [..., 1], or something that looks like it."""
        r, axis = self.r, (len(self.sizes[z.name]) - 1,)
        below, top = z, None
        if r.random() < 0.7:
            top = self.emit("reduce_max", z, axis=axis, keepdim=True)
            top.stop_gradient = r.random() < 0.5
            below = self.emit("elementwise_sub", z, top)
        lse = self.emit("log", self.emit("reduce_sum", self.emit("exp", below), axis=axis, keepdim=True))
        if top is not None and r.random() < 0.9:
            lse = self.emit("elementwise_add", *((lse, top) if r.random() < 0.5 else (top, lse)))
        kind = r.choice(("square", "pow", "elementwise_mul"))
        if kind == "elementwise_mul":
            return self.emit(kind, self.emit("scale", lse, scale=0.25) if r.random() < 0.5 else lse, lse)
        return self.emit(kind, lse, **({"factor": r.choice((2.0, 2.0, 3.0))} if kind == "pow" else {}))

    def _written(self, z: Variable, target: Variable) -> Variable:
        """The loss of each row out of log-probabilities."""
        r, axis = self.r, (len(self.sizes[z.name]) - 1,)
        log = self.emit("log_softmax", z)
        own = self.emit("elementwise_mul", *((log, target) if r.random() < 0.5 else (target, log)))
        return self.emit("scale", self.emit("reduce_sum", own, axis=axis, keepdim=True), scale=-1.0)

    def _predict(self, z: Variable) -> None:
        last = len(self.sizes[z.name]) - 1
        axis = last if self.r.random() < 0.8 else -1
        best = self.emit("arg_max", z, axis=axis, keepdim=self.r.random() < 0.3)
        self.fetches.append(best.name)

    def _trap(self, z: Variable, kind: str) -> None:
        if kind == "fetched":
            self.fetches.append(z.name)
        elif kind == "read":
            self.pool.append(self.emit("tanh", z))
        elif kind == "shape":
            self.pool.append(self.emit("fill_any_like", z, value=0.5))

    def _cross_entropy(self, z: Variable, classes: int, trap: str) -> Variable:
        r = self.r
        classes = self.sizes[z.name][-1]
        rows, known = z.shape[:-1], self.sizes[z.name][:-1]
        wide = r.random() < 0.5
        soft = classes > 1 and r.random() < 0.35
        extra = (1,) if wide and not soft else ()
        label = self.data((*rows, *extra), (*known, *extra), ints=True)
        numbers = self.numbers.integers(0, classes, self.feeds[label.name].shape)
        attrs = {}
        if soft:
            target = self._target(label, classes)
            attrs["soft_label"] = True
        else:
            target = label
            attrs["ignore_index"] = r.choice((-100, 0))
            numbers[self.numbers.random(numbers.shape) < 0.2] = attrs["ignore_index"]
        self.feeds[label.name] = numbers
        if soft and r.random() < 0.5:
            return self._written(z, target)
        softmax, loss = self.g.softmax_with_cross_entropy(z, target, **attrs)
        self.sizes[softmax.name], self.sizes[loss.name] = self.sizes[z.name], (*known, 1)
        if trap == "softmax":
            self.fetches.append(softmax.name)
        return loss

    def _target(self, label: Variable, classes: int) -> Variable:
        """Smoothed labels, sometimes with weights of the classes, sometimes not summing to 1."""
        r = self.r
        target = self.emit("one_hot", label, depth=classes, dtype="float64")
        if r.random() < 0.8:
            share = r.choice((0.1, 0.5))
            bias = share / classes if r.random() < 0.85 else 0.2
            target = self.emit("scale", target, scale=1 - share, bias=bias)
        if r.random() < 0.5:
            weighed = self.emit("elementwise_mul", target, self.param(classes, trainable=r.random() < 0.5))
            axis = len(self.sizes[weighed.name]) - 1
            self.pool.append(self.emit("reduce_sum", weighed, axis=(axis,), keepdim=r.random() < 0.8))
        return target
