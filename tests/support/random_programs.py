"""Random training programs for the equivalence tests: linear layers in all their variants, and traps.

    case = random_program(seed)      the same seed gives the same program

A program is a chain of layers. Each draws from random numbers of its own and reads from a pool of
earlier values, so a failing program shrinks by leaving layers out (`layers=`). Everything is
float64. Sizes are few, so that shapes meet by chance; `sizes` knows the real ones where the
program says -1.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

import minigraph.ops  # noqa: F401
from minigraph.compiler.validate import evaluate
from minigraph.errors import ProgramError
from minigraph.nn import ClipGradByGlobalNorm, ClipGradByNorm, ClipGradByValue
from minigraph.optimizer import SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, Lamb, Momentum, RMSProp
from minigraph.optimizer.optimizer import Optimizer
from minigraph.program import Program, Variable, unique_name
from minigraph.program.backward import gradients
from minigraph.program.builder import Builder
from minigraph.program.text.dump import dump
from minigraph.regularizer import L1Decay
from minigraph.types import float64, int64, tensor_type
from tests.support.random_heads import HeadLayers
from tests.support.rewrite_layers import RewriteLayers

SIZES = (1, 2, 3, 3, 5, 8)
ACTIVATIONS = {"relu": 34, "erf": 17, "gelu": 15, "tanh": 6, "sigmoid": 4, "none": 24}
BIASES = {"param": 54, "frozen": 6, "shared": 8, "computed": 8, "one": 3, "row": 4, "residual": 5, "axis0": 5,
          "scalar": 2, "none": 5}  # fmt: skip
WEIGHTS = {"param": 62, "frozen": 8, "shared": 12, "computed": 8, "data": 5, "batched": 5}
LAYERS = {"linear": 95, "reshape": 6, "transpose": 4, "slice": 4, "residual": 6, "product": 3, "like": 3,
          "moved": 3, "overwritten": 3, "ints": 1, "vector": 1, "repeated": 9, "constants": 8, "casts": 5,
          "transposes": 8, "swapped": 8, "dead": 4, "head": 7}  # fmt: skip
TRAPS = ("moved", "overwritten", "repeated", "constants", "transposes", "dead")  # may update in place
ENDINGS = {"SGD": 36, "Momentum": 9, "Adam": 14, "AdamW": 11, "inference": 9, "inner": 12, "twice": 4, "second": 5}
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "SGD": lambda **o: SGD(0.05, **o),
    "Momentum": lambda **o: Momentum(0.05, use_nesterov=True, **o),
    # epsilon is large: near 0, Adam would magnify the rounding of gradients that are 0 but for it
    "Adam": lambda **o: Adam(0.01, epsilon=1e-3, **{"weight_decay": 0.01, **o}),
    "AdamW": lambda **o: AdamW(0.01, epsilon=1e-3, **o),
}
RARER: list[Callable[..., Optimizer]] = [  # some of SGD's programs take one of these
    lambda **o: Adagrad(0.01, epsilon=1e-2, **o), lambda **o: Adadelta(0.1, epsilon=1e-2, **o),
    lambda **o: RMSProp(0.01, epsilon=1e-2, centered=True, momentum=0.5, **o),
    lambda **o: Adamax(0.01, epsilon=1e-2, **o), lambda **o: Adam(0.01, epsilon=1e-3, amsgrad=True, **o),
    lambda grad_clip=None, **_: Lamb(0.01, epsilon=1e-2, grad_clip=grad_clip),
]


def varied(kind: str, r: random.Random) -> Optimizer:
    """An optimizer of this kind, often with clipping, decay or groups."""
    options: dict[str, Any] = {}
    clips = (ClipGradByGlobalNorm(0.5), ClipGradByGlobalNorm(0.1), ClipGradByValue(0.05), ClipGradByNorm(0.1))
    if r.random() < 0.4:
        options["grad_clip"] = r.choice(clips)
    if r.random() < 0.3 and kind != "AdamW":
        options["weight_decay"] = r.choice((0.01, L1Decay(0.01)))
    if r.random() < 0.3 and kind == "AdamW":
        options["apply_decay_param_fun"] = lambda name: sum(map(ord, name)) % 2 == 0
    make = r.choice(RARER) if kind == "SGD" and r.random() < 0.4 else OPTIMIZERS[kind]
    return make(**options)
NORMED = 0.12  # of the layers stand behind a norm
PLAIN = 0.4  # of the programs are nothing but linear layers with parameters and activations


@dataclass
class Case:
    """A program with what it needs to run, and in words what it is made of."""

    seed: int
    layers: int
    program: Program
    values: dict[str, np.ndarray]  # persistables at the start
    feeds: dict[str, np.ndarray]
    fetches: list[str]
    description: list[str] = field(default_factory=list)
    results: dict[str, np.ndarray] | None = None  # without passes, once somebody asked for them

    @cached_property
    def text(self) -> str:
        return dump(self.program)


def random_program(seed: int, layers: Collection[int] | None = None, bare: bool = False) -> Case:
    """The program of `seed`; only some of its layers, and without inner fetches, to shrink it."""
    for without_traps in (False, True):
        with unique_name.guard():
            net = _Net(random.Random(seed), seed)
            count = net.r.randint(2, 7)
            for i in range(count):
                if layers is None or i in layers:
                    net.r, net.norms = (random.Random(f"{seed}:{i}{of}") for of in ("", " norm"))
                    net.layer(without_traps)
            net.r = random.Random(f"{seed}:end")
            try:
                net.finish(bare)
            except ProgramError as problem:  # a trap overwrote what a gradient reads
                if "overwritten" in str(problem) and not without_traps:
                    continue
                raise
        return Case(seed, count, net.program, net.values, net.feeds, net.fetches, net.words)
    raise AssertionError("unreachable")


@lru_cache(500)
def known_program(seed: int) -> Case:
    """The same Case for all who ask, with its results: passes change neither."""
    return random_program(seed)


class _Net(RewriteLayers, HeadLayers):
    """A program on the way."""

    def __init__(self, r: random.Random, seed: int) -> None:
        self.r, self.numbers = r, np.random.default_rng(seed)
        self.program, self.startup = Program("random"), Program("startup")
        self.plain = r.random() < PLAIN
        self.block = self.program.global_block()
        self.g = Builder(self.block)
        self.values: dict[str, np.ndarray] = {}
        self.feeds: dict[str, np.ndarray] = {}
        self.fetches: list[str] = []
        self.fetched_grads: list[Variable] = []
        self.read_later: list[Variable] = []
        self.words: list[str] = []
        self.before, self.norms = (random.Random(f"{of} {seed}") for of in ("before", "norms"))  # apart from layers
        self.sizes: dict[str, tuple[int, ...]] = {}
        self.rows = 0 if r.random() < 0.02 else r.choice((1, 2, 3, 4, 5))
        self.batch = -1 if r.random() < 0.5 else self.rows
        inner = tuple(r.choice(SIZES) for _ in range(r.choice((1, 1, 1, 2, 2, 3))))
        x = self.data((self.batch, *inner), (self.rows, *inner))
        x.stop_gradient = r.random() < 0.7
        self.pool = [x]
        self.losses: list[Variable] = []

    # what variables are made of

    def data(self, shape: tuple[int, ...], sizes: tuple[int, ...], ints: bool = False) -> Variable:
        v = self.block.create_var(
            f"x{len(self.feeds)}", type=tensor_type(shape, int64 if ints else float64), is_data=True,
            stop_gradient=True,
        )  # fmt: skip
        self.sizes[v.name] = sizes
        self.feeds[v.name] = self.numbers.integers(-3, 4, sizes) if ints else self.numbers.normal(size=sizes)
        return v

    def param(self, *shape: int, trainable: bool = True) -> Variable:
        v = self.block.create_parameter(f"p{len(self.values)}", shape, float64, trainable=trainable)
        self.sizes[v.name] = shape
        scale = max((1, *shape[-2:-1])) ** -0.5
        self.values[v.name] = np.asarray(self.numbers.normal(size=shape) * scale)
        return v

    def state(self, *shape: int) -> Variable:
        v = self.block.create_var(
            f"s{len(self.values)}", type=tensor_type(shape, float64), persistable=True, stop_gradient=True
        )
        self.sizes[v.name] = shape
        self.values[v.name] = self.numbers.normal(size=shape)
        return v

    def emit(self, op_type: str, *inputs: Variable, **attrs: Any) -> Variable:
        """Append an operator and note the real sizes of its output."""
        out = getattr(self.g, op_type)(*inputs, **attrs)
        op = self.block.ops[-1]
        real = {s: [v.type.with_shape(self.sizes[v.name]) for v in vs] for s, vs in op.inputs.items()}
        self.sizes[out.name] = op.opdef.infer_types(real, op.attrs)["Out"][0].shape
        return out

    def choose(self, weights: dict[str, int]) -> str:
        return self.r.choices(list(weights), list(weights.values()))[0]

    def pick(self, fits: Callable[[tuple[int, ...]], bool] = lambda s: True) -> Variable | None:
        """A value of the pool, mostly the latest."""
        fitting = [v for v in self.pool if fits(self.sizes[v.name])]
        if not fitting:
            return None
        return fitting[-1] if self.plain or self.r.random() < 0.8 else self.r.choice(fitting)

    # layers

    def layer(self, without_traps: bool) -> None:
        if not self.plain and self.norms.random() < NORMED and (y := self.norm(self.norms)) is not None:
            self.words.append("norm")
            self.pool.append(y)
        kind = "linear" if self.plain else self.choose(LAYERS)
        if without_traps and kind in TRAPS:
            kind = "linear"
        out = getattr(self, kind)()
        if out is not None:
            self.words.append(kind if kind != "linear" else self.words.pop())
            if out.dtype == float64:
                self.pool.append(out)

    def linear(self) -> Variable | None:
        x = self.pick(lambda s: len(s) >= 2)
        if x is None:
            return None
        r = self.r
        trans_x = r.random() < (0.15 if len(self.sizes[x.name]) == 2 else 0.05)
        trans_y = r.random() < 0.25
        inner, rows = self.sizes[x.name][-1], self.sizes[x.name][-2]
        if trans_x:
            inner, rows = rows, inner
        columns = inner if r.random() < 0.3 and inner else r.choice(SIZES)
        weight_kind, bias_kind, activation = self.choose(WEIGHTS), self.choose(BIASES), self.choose(ACTIVATIONS)
        if self.plain:
            weight_kind = bias_kind = "param"
        self.words.append(f"linear({weight_kind}, {bias_kind}, {activation})")
        if bias_kind == "axis0" and r.random() < 0.6:
            columns = rows  # so that a bias along the wrong axis fits
        y = self.weight(weight_kind, (columns, inner) if trans_y else (inner, columns))
        if r.random() < 0.02 and len(self.sizes[x.name]) == 2 and inner == rows and not trans_x:
            y = x  # one variable in both slots
            columns = inner
        before = weight_kind != "batched" and r.random() < 0.3
        early = self.bias(bias_kind, x, columns, rows) if before else None
        product = {"trans_x": trans_x, "trans_y": trans_y}
        if not self.plain and weight_kind != "batched" and r.random() < 0.02:  # the product lives on in a state
            state = self.state(*self.sizes[x.name][:-2], rows, columns)
            z = self.emit("matmul", x, y, **product, out={"Out": state})
        else:
            z = self.emit("matmul", x, y, **product)
        self.expose(z)
        bias = early if early is not None else self.bias(bias_kind, z, columns, rows)
        s = self.add(z, bias, bias_kind) if bias is not None else z
        if s is not z:
            self.expose(s)
        out = s
        if activation in ("erf", "gelu"):
            out = self.emit("gelu", s, approximate=activation == "gelu")
        elif activation != "none":
            out = self.emit(activation, s)
        if out is not s:
            self.expose(out, last=True)
        return out

    def weight(self, kind: str, shape: tuple[int, int]) -> Variable:
        known = [n for n, s in self.sizes.items() if s == shape and n in self.values]
        if kind == "shared" and known:
            return self.block.var(self.r.choice(known))
        if kind == "computed":
            return self.emit(self.r.choice(("tanh", "relu")), self.param(*shape))
        if kind == "data":
            return self.data(shape, shape)
        if kind == "batched":
            return self.param(1, *shape)
        return self.param(*shape, trainable=kind != "frozen")

    def bias(self, kind: str, z: Variable, columns: int, rows: int) -> Variable | None:
        sizes = (*self.sizes[z.name][:-2], rows, columns)
        known = [n for n, s in self.sizes.items() if s == (columns,) and n in self.values]
        if kind == "shared" and known:
            return self.block.var(self.r.choice(known))
        if kind == "computed":
            made = self.param(columns)
            return self.emit("tanh", made) if self.r.random() < 0.5 else self.emit("elementwise_add", made, made)
        if kind == "residual":
            other = self.pick(lambda s: s == sizes)
            return other if other is not None else self.param(*sizes)
        if kind == "axis0" and len(sizes) == 2:
            return self.param(rows)
        shapes = {"one": (1,), "row": (1, columns), "scalar": (), "none": None}
        shape = shapes.get(kind, (columns,))
        return None if shape is None else self.param(*shape, trainable=kind != "frozen")

    def add(self, z: Variable, bias: Variable, kind: str) -> Variable:
        rank = len(self.sizes[z.name])
        if kind == "axis0" and len(self.sizes[bias.name]) == 1 and rank == 2:
            return self.emit("elementwise_add", z, bias, axis=0)
        if self.r.random() < 0.15:
            return self.emit("elementwise_add", bias, z)
        explicit = len(self.sizes[bias.name]) == 1 and self.r.random() < 0.1
        return self.emit("elementwise_add", z, bias, axis=rank - 1 if explicit else -1)

    def expose(self, v: Variable, last: bool = False) -> None:
        """Sometimes an inner value is read by others, fetched, frozen, or its gradient is fetched."""
        chance = 1.0 if self.plain else self.r.random()
        if chance < 0.04 and not last:
            self.pool.append(v)
        elif chance < 0.07:
            self.fetches.append(v.name)
        elif chance < 0.10:
            self.fetched_grads.append(v)
        elif chance < 0.115 and len(self.pool) > 1:
            v.stop_gradient = True
        elif chance < 0.13:
            self.pool.append(self.emit("fill_any_like", v, value=0.5))
        elif chance < 0.16:
            self.read_later.append(v)

    def reshape(self) -> Variable | None:
        x = self.pick(lambda s: len(s) >= 2 and 0 not in s)
        if x is None:
            return None
        sizes = self.sizes[x.name]
        if len(sizes) > 2 and self.r.random() < 0.6:
            return self.emit("reshape", x, shape=(-1, sizes[-1]))
        return self.emit("reshape", x, shape=(-1, 1, sizes[-1]))

    def transpose(self) -> Variable | None:
        x = self.pick(lambda s: len(s) >= 2)
        if x is None:
            return None
        perm = list(range(len(self.sizes[x.name])))
        self.r.shuffle(perm)
        return self.emit("transpose", x, perm=tuple(perm))

    def slice(self) -> Variable | None:
        x = self.pick(lambda s: len(s) >= 2 and s[-1] > 1)
        if x is None:
            return None
        axis = len(self.sizes[x.name]) - 1
        return self.emit("slice", x, axes=(axis,), starts=(1,), ends=(self.sizes[x.name][-1],))

    def residual(self) -> Variable | None:
        return self._pair("elementwise_add")

    def product(self) -> Variable | None:
        return self._pair("elementwise_mul")

    def _pair(self, op_type: str) -> Variable | None:
        x = self.pick()
        assert x is not None
        y = self.r.choice([v for v in self.pool if self.sizes[v.name] == self.sizes[x.name]])
        return self.emit(op_type, x, y)

    def like(self) -> Variable | None:
        """A value of which only the shape is used, somewhere in the middle of the program."""
        inner = [v for op in self.block.ops for v in op.output_vars if v.name in self.sizes and v.dtype == float64]
        return self.emit("fill_any_like", self.r.choice(inner), value=0.25) if inner else None

    def ints(self) -> None:
        """A linear layer of integers."""
        x, y, b = (self.data(s, s, ints=True) for s in ((2, 3), (3, 2), (2,)))
        self.fetches.append(self.emit("elementwise_add", self.emit("matmul", x, y), b).name)

    def vector(self) -> Variable:
        """A linear layer of a vector."""
        n = self.r.choice(SIZES)
        z = self.emit("matmul", self.param(3), self.param(3, n))
        return self.emit("elementwise_add", z, self.param(n))

    def moved(self) -> Variable:
        """What a layer reads changes between its operators, so they can be brought together here or there."""
        n, r = self.r.choice(SIZES), self.r
        state = self.state(2, n)
        y, b = self.param(n, n, trainable=False), self.param(n)
        out = self.emit("assign", self.state(2, n)) if r.random() < 0.3 else None
        late = r.random() < 0.5
        bias = b if late else self.emit("tanh", b)
        z = self.emit("matmul", state, y)
        self._show(state)
        if r.random() < 0.5:
            self._increment(state)
        else:
            self.emit("assign", self.emit("tanh", state), out={"Out": state})
        if late and r.random() < 0.6:
            bias = self.emit("tanh", b)
        if out is not None:
            self.fetches.append(self.emit("tanh", out).name)  # reads the version that is overwritten below
            return self.emit("elementwise_add", z, bias, out={"Out": out})
        s = self.emit("elementwise_add", z, bias)
        return self.emit("relu", s) if r.random() < 0.5 else s

    def overwritten(self) -> Variable:
        """An inner or final value is updated in place, and the state that a layer read."""
        n, r = self.r.choice(SIZES), self.r
        x, y, b = self.state(2, n), self.param(n, n, trainable=False), self.param(n)
        z = self.emit("matmul", x, y)
        s = self.emit("elementwise_add", z, b)
        out = self.emit("tanh", s) if r.random() < 0.5 else s
        target = r.choice((z, out, x, y))
        if r.random() < 0.3:
            self.fetches.append(self.emit("fill_any_like", z, value=0.5).name)
        self._show(target)
        if r.random() < 0.6:
            self._increment(target)
        else:
            self.emit("assign", self.param(*self.sizes[target.name]), out={"Out": target})
        if r.random() < 0.3:
            self.fetches.append(self.emit("fill_any_like", z, value=1.5).name)
        return out

    def _show(self, v: Variable) -> None:
        """What is updated later is sometimes fetched in another shape."""
        if self.before.random() < 0.2:
            self.fetches.append(self.g.reshape(v, shape=(-1,)).name)

    def _increment(self, v: Variable) -> None:
        self.emit("increment", v, step=0.5, out={"Out": v})

    # the end

    def finish(self, bare: bool) -> None:
        ending = self.choose(ENDINGS)
        if ending == "second" and "norm" in self.words:  # whose gradient has none
            ending = "twice"
        read = {v.name for op in self.block.ops for v in op.input_vars}
        ends = [v for v in self.pool if v.name not in read and self.r.random() < 0.8]
        last = ends[-1] if ends else self.pool[-1]
        if not any(p.trainable for p in self.block.all_parameters()):
            ends.append(self.emit("elementwise_mul", last, self.param(self.sizes[last.name][-1])))
        loss = None
        for v in ends or [last]:
            loss = self._loss(v) if loss is None else self.emit("elementwise_add", loss, self._loss(v))
        assert loss is not None
        self.fetches += [loss.name, *(self.emit("tanh", v).name for v in self.read_later)]
        parameters = [p for p in self.block.all_parameters() if p.trainable]
        self.words.append(ending)
        for p in parameters:
            self._show(p)
        if ending in OPTIMIZERS:
            self.minimize(loss, ending)
        elif ending != "inference":
            getattr(self, ending)(loss, parameters)
        for v in self.fetched_grads:
            if self.block.has_var(v.grad_name):
                self.fetches.append(v.grad_name)
        if bare:
            self.fetches = [loss.name, *(n for n in self.block.vars if n.endswith("@GRAD") and n[0] == "p")]
        self.fetches = list(dict.fromkeys(self.fetches))

    def _loss(self, v: Variable) -> Variable:
        """mean(v * random factors), or sometimes mean(v)."""
        if self.r.random() < 0.85:
            v = self.emit("elementwise_mul", v, self.data(v.shape, self.sizes[v.name]))
        return self.emit("reduce_sum" if 0 in self.sizes[v.name] else "reduce_mean", v)

    def minimize(self, loss: Variable, kind: str) -> None:
        blocked = [n for n in self.sizes if self.r.random() < 0.01]
        try:
            optimizer = varied(kind, random.Random(f"{kind} {len(self.block.ops)}"))  # apart from what layers draw
            _, found = optimizer.minimize(loss, self.startup, no_grad_set=blocked)
        except ProgramError as problem:
            if "depends on no trainable" not in str(problem) and "no gradient to apply" not in str(problem):
                raise
            return
        self.fetches += [grad.name for _, grad in found if self.r.random() < 0.4]
        states = evaluate(self.startup, {})
        self.values |= {name: states[name] for name in self.startup.vars}

    def inner(self, loss: Variable, parameters: list[Variable]) -> None:
        """Gradients of inner values, some with a given gradient of the target."""
        wanted = self._inputs(parameters)
        target, seeds = loss, None
        if self.r.random() < 0.4:
            target = self.r.choice(self._inner() or [loss])
            seeds = [self.data(target.shape, self.sizes[target.name])] if self.r.random() < 0.6 else None
        self._fetch(gradients([target], wanted, seeds))

    def twice(self, loss: Variable, parameters: list[Variable]) -> None:
        """Gradients appended twice: of one target for different inputs, or of two targets that share layers."""
        if self.r.random() < 0.4:
            target = self.r.choice([loss, *self._inner()])
            seed = [self.data(target.shape, self.sizes[target.name])]
            for half in (parameters[::2], parameters[1::2]):
                self._fetch(gradients([target], half or parameters, seed))
            return
        self._fetch(gradients([loss], self._inputs(parameters)))
        target = self.r.choice([loss, *self._inner()])
        self._fetch(gradients([target], self._inputs(parameters)))

    def second(self, loss: Variable, parameters: list[Variable]) -> None:
        """A penalty on the gradient, differentiated again."""
        wanted = self._inputs(parameters)
        first = [d for d in gradients([loss], wanted) if d is not None]
        if first:
            penalty = self.g.reduce_sum(self.g.elementwise_mul(first[0], first[0]))
            self._fetch([penalty, *gradients([penalty], parameters)])

    def _inner(self) -> list[Variable]:
        return [v for op in self.block.ops for v in op.output_vars if v.name in self.sizes and v.dtype == float64]

    def _inputs(self, parameters: list[Variable]) -> list[Variable]:
        return [v for v in [*parameters, *self._inner()] if self.r.random() < 0.4] or parameters

    def _fetch(self, grads: list[Variable | None]) -> None:
        self.fetches += [d.name for d in grads if d is not None and self.r.random() < 0.7]
