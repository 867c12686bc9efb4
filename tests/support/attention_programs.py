"""Random programs with attention written out in one of its many spellings, and with traps.

    case = attention_program(seed)      the same seed gives the same program

Everything is float64. Half of the programs have traps: inner values that are fetched, read by others,
updated in place, whose gradients are fetched; parameters that are frozen or shared.
"""

from __future__ import annotations

import math
import random

import numpy as np

import minigraph as mg
from minigraph.program import Program, Variable, unique_name
from minigraph.program.backward import gradients
from minigraph.program.builder import Builder
from minigraph.types import float64, tensor_type
from tests.support.random_programs import Case

B, H = 2, 4


class _Writer:
    """A program on the way."""

    def __init__(self, seed: int) -> None:
        self.r, self.numbers = random.Random(f"attention:{seed}"), np.random.default_rng(seed)
        self.program = Program("random")
        self.program.random_seed = 5
        self.block = self.program.global_block()
        self.g = Builder(self.block)
        self.values: dict[str, np.ndarray] = {}
        self.feeds: dict[str, np.ndarray] = {}
        self.fetches: list[str] = []
        self.words: list[str] = []
        self.inner: list[Variable] = []
        self.trapped = self.r.random() < 0.5

    def data(self, *shape: int, unknown: bool = False, truth: bool = False) -> Variable:
        name = f"x{len(self.feeds)}"
        declared = (-1, *shape[1:]) if unknown else shape
        v = self.block.create_var(
            name, type=tensor_type(declared, "bool" if truth else float64), is_data=True, stop_gradient=True
        )
        numbers = self.numbers.normal(size=shape)
        if truth:
            numbers = numbers < 0.7
            numbers[..., 0] = True  # every query sees a key: softmax of nothing but -inf is NaN
        self.feeds[name] = numbers
        return v

    def param(self, *shape: int) -> Variable:
        trainable = not (self.trapped and self.r.random() < 0.2)
        v = self.block.create_parameter(f"p{len(self.values)}", shape, float64, trainable=trainable)
        self.values[v.name] = self.numbers.normal(size=shape) / math.sqrt(shape[-1])
        return v

    def pick(self, **choices: int) -> str:
        word = self.r.choices(list(choices), list(choices.values()))[0]
        self.words.append(word)
        return word

    def keep(self, v: Variable) -> Variable:
        self.inner.append(v)
        return v


def attention_program(seed: int) -> Case:
    """The program of `seed`."""
    with unique_name.guard():
        w = _Writer(seed)
        with mg.static.program_guard(w.program, Program("startup")):
            mg.set_default_dtype("float64")
            try:
                out = _attention(w)
                _finish(w, out)
            finally:
                mg.set_default_dtype("float32")
    return Case(seed, 1, w.program, w.values, w.feeds, list(dict.fromkeys(w.fetches)), w.words)


def _attention(w: _Writer) -> Variable:
    r = w.r
    rank3, self_attention = r.random() < 0.2, r.random() < 0.5
    sq, d = r.choice((3, 4, 5)), r.choice((2, 3))
    sk = sq if self_attention else r.choice((3, 4, 6))
    groups = 1 if rank3 else r.choice((1, 1, 1, 2, 4))
    unknown = r.random() < 0.4
    q, k, v = _operands(w, rank3, sq, sk, d, groups, unknown)
    joined = not rank3 and r.random() < 0.25  # batch times heads are one axis for the products
    if joined:
        w.words.append("joined")
        q, k, v = (w.keep(mg.reshape(x, [-1, *x.shape[2:]])) for x in (q, k, v))
    full = (B * H, sq, sk) if rank3 or joined else (B, H, sq, sk)
    q, k, after = _scaled(w, q, k, d)
    transposed = r.random() < 0.3
    if transposed:
        perm = [*range(k.ndim - 2), k.ndim - 1, k.ndim - 2]
        k = w.keep(mg.transpose(k, perm))
    s = w.keep(mg.matmul(q, k, transpose_y=not transposed))
    if after is not None:
        s = w.keep(after(s))
    for _ in range(r.choice((0, 1, 1, 2))):
        if joined and r.random() < 0.7:
            full = (B, H, sq, sk) if len(s.shape) == 3 else (B * H, sq, sk)
            s = w.keep(mg.reshape(s, [-1, *full[1:]]))
        s = w.keep(_modified(w, s, full))
    if r.random() < 0.1:
        s = w.keep(mg.scale(s, 1.5))
    p = w.keep(mg.nn.functional.softmax(s, axis=r.choice((-1, len(full) - 1))))
    drop = w.pick(nothing=6, dropout=3, inference=1, downscale=1)
    if drop != "nothing":
        mode = "downscale_in_infer" if drop == "downscale" else "upscale_in_train"
        p = w.keep(mg.nn.functional.dropout(p, 0.3, training=drop != "inference", mode=mode))
    if joined and len(full) == 4:
        p = w.keep(mg.reshape(p, [-1, sq, sk]))
    if rank3 and r.random() < 0.4:
        w.words.append("turned")
        return mg.matmul(w.keep(mg.transpose(v, [0, 2, 1])), p, transpose_y=True)
    o = w.keep(mg.matmul(p, v))
    if joined:
        o = w.keep(mg.reshape(o, [-1, H, sq, d]))
    if rank3:
        return o
    return mg.reshape(mg.transpose(o, [0, 2, 1, 3]), [0, 0, -1]) if r.random() < 0.7 else o


def _operands(
    w: _Writer, rank3: bool, sq: int, sk: int, d: int, groups: int, unknown: bool
) -> tuple[Variable, Variable, Variable]:  # fmt: skip
    if rank3:
        x, y = w.data(B * H, sq, 3, unknown=unknown), w.data(B * H, sk, 3, unknown=unknown)
        q, k, v = (mg.matmul(a, w.param(3, d)) for a in (x, y, y))
        return w.keep(q), w.keep(k), w.keep(v)
    x, y = w.data(B, sq, 3, unknown=unknown), w.data(B, sk, 3, unknown=unknown)
    kv, moved = H // groups, w.r.random() < 0.8

    def heads(a: Variable, n: int) -> Variable:
        h = mg.reshape(mg.matmul(a, w.param(3, n * d)), [0, 0, n, d])
        return w.keep(mg.transpose(h, [0, 2, 1, 3])) if moved else w.keep(mg.tanh(mg.transpose(h, [0, 2, 1, 3])))

    q, k, v = heads(x, H), heads(y, kv), heads(y, kv)
    if groups > 1:
        w.words.append(f"{groups} groups")
        k, v = (_repeated(w, a, groups, sk, d) for a in (k, v))
    return q, k, v


def _repeated(w: _Writer, x: Variable, groups: int, s: int, d: int) -> Variable:
    kv = H // groups
    how = w.pick(expand=3, tile=2, whole=1)
    if how == "whole" and kv == 1:
        return mg.expand(x, [-1, H, -1, -1])
    wide = mg.unsqueeze(x, [2])
    wide = mg.tile(wide, [1, 1, groups, 1, 1]) if how == "tile" else mg.expand(wide, [-1, -1, groups, -1, -1])
    return w.keep(mg.reshape(wide, [0, H, s, d]))


def _scaled(w: _Writer, q: Variable, k: Variable, d: int):
    how = w.pick(none=2, before=2, both=2, after=3, div=2, pow=2, keys=1)
    if how == "before":
        return w.keep(mg.scale(q, d**-0.5)), k, None
    if how == "both":
        return w.keep(q * d**-0.25), w.keep(k * d**-0.25), None
    if how == "keys":
        return q, w.keep(k / math.sqrt(d)), None
    if how == "after":
        return q, k, lambda s: s * d**-0.5
    if how == "div":
        return q, k, lambda s: s / math.sqrt(d)
    if how == "pow":
        return q, k, lambda s: s * mg.pow(mg.full([], float(d)), -0.5)
    return q, k, None


def _modified(w: _Writer, s: Variable, full: tuple[int, ...]) -> Variable:
    r, (sq, sk) = w.r, full[-2:]
    how = w.pick(causal=5, window=1, padding=3, bias=3, frozen=1, capped=1, minus=1)
    if how == "capped":
        return mg.tanh(s)
    if how in ("causal", "window"):
        return _by_position(w, s, sq, sk, how == "window")
    shape = [n if r.random() < 0.6 else 1 for n in full]
    if how == "padding":
        fill = r.choice((-1e9, -3.0) if "window" in w.words else (-1e9, float("-inf"), -3.0))
        seen = w.data(*shape[:-1], sk, truth=True)
        if r.random() < 0.3:
            return mg.where(mg.logical_not(seen) if r.random() < 0.5 else mg.equal(seen, mg.zeros_like(seen)),
                            mg.full([], fill), s)  # fmt: skip
        if r.random() < 0.3:
            return s + (1 - mg.cast(seen, "float64")) * -1e9
        if r.random() < 0.3 and "window" not in w.words:
            seen = mg.logical_and(seen, mg.tril(mg.ones([sq, sk])) > 0)
        elif r.random() < 0.3 and "window" not in w.words:
            hidden = mg.logical_or(mg.triu(mg.ones([sq, sk]), 1) > 0, mg.logical_not(seen))
            return mg.where(hidden, fill, s)
        elif r.random() < 0.3 and "window" not in w.words:
            pad = (1 - mg.cast(seen, "float64")) * -1e9
            return s + (mg.triu(mg.full([sq, sk], float("-inf")), 1) + pad)
        return mg.where(seen, s, fill)
    bias = w.param(*shape) if how != "frozen" else w.data(*shape)
    if how == "minus":
        return s - bias
    return s + bias if r.random() < 0.7 else bias + s


def _by_position(w: _Writer, s: Variable, sq: int, sk: int, window: bool) -> Variable:
    r = w.r
    hidden = window and (sk < sq or "padding" in w.words)  # some query may see no key: NaN with -inf
    fill = r.choice((-1e9, -1e4, -3.0) if hidden else (-1e9, float("-inf"), -1e4, -3.0))
    shift = r.choice((0, 0, max(sk - sq, 0), 1))
    how = w.pick(tril=2, triu=2, positions=2, additive=2, sliced=1, like=1, log=1, literal=1, times=1)
    if how == "times" and not window:
        kept, hidden = mg.tril(mg.ones([sq, sk]), shift), 1 - mg.tril(mg.ones([sq, sk]), r.choice((shift, shift, 0)))
        return (s * kept - hidden * r.choice((1e9, 1e9, 3.0))) if r.random() < 0.7 else (s - hidden * 1e9) * kept
    if how == "literal":
        return s + mg.assign(np.where(np.tri(sq, sk, shift, bool), 0.0, fill)) if not window else s
    if how == "log" and not window and fill == float("-inf"):
        return s + mg.log(mg.tril(mg.ones([sq, sk]), shift))
    if how == "like" and not window:
        return s + mg.triu(mg.full_like(s, fill), 1 + shift)
    if how == "triu" and not window:
        return s + mg.triu(mg.full([sq, sk], fill), 1 + shift)
    if how == "additive" and not window:
        return s + (1 - mg.tril(mg.ones([sq, sk]), shift)) * -1e9
    if how == "sliced":
        seen = mg.tril(mg.ones([sk + 4, sk + 1]), shift)[2 : 2 + sq, 1:] == 1
    elif how == "tril":
        seen = mg.cast(mg.tril(mg.ones([1, 1, sq, sk]) if len(s.shape) == 4 else mg.ones([sq, sk]), shift), "bool")
    else:
        i, j = mg.reshape(mg.arange(sq), [sq, 1]), mg.arange(sk)
        seen = i + shift >= j if r.random() < 0.5 else j - i <= shift
    if window:
        i, j = mg.unsqueeze(mg.arange(sq), -1), mg.unsqueeze(mg.arange(sk), 0)
        near = mg.abs(j - i) < r.choice((2, 3)) if r.random() < 0.3 else i - j < r.choice((1, 2, 9))
        seen = mg.logical_and(seen, near)
    return mg.where(seen, s, fill)


def _finish(w: _Writer, out: Variable) -> None:
    r = w.r
    losses = [mg.sum(out * w.data(*(n for n in out.shape)) if -1 not in out.shape else out * out)]
    if w.trapped:
        for v in r.sample(w.inner, 2):
            trap = w.pick(fetched=2, read=2, gradient=2, shape=1, frozen=1, updated=1)
            if trap == "fetched":
                w.fetches.append(v.name)
            elif trap == "read":
                losses.append(mg.sum(mg.tanh(v)))
            elif trap == "gradient":
                w.fetches.append(v.grad_name)
            elif trap == "shape":
                w.fetches.append(mg.full_like(v, 0.5).name)
            elif trap == "frozen":
                v.stop_gradient = True
            elif not any(op.type == "increment" for op in w.block.ops):
                w.fetches.append(w.g.emit("increment", mg.assign(v), step=0.5).name)
    loss = losses[0] if len(losses) == 1 else losses[0] + losses[1] if len(losses) == 2 else mg.sum(mg.stack(losses))
    w.fetches.append(loss.name)
    if r.random() < 0.85:
        parameters = [p for p in w.block.all_parameters() if p.trainable]
        if parameters:
            w.fetches += [d.name for d in gradients([loss], parameters) if d is not None]
    w.fetches = [name for name in w.fetches if w.block.has_var(name)]
