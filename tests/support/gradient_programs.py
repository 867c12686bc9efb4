"""Programs that ask for gradients in all the ways of a Paddle script; they run in Paddle 2.6.2 and here.

`python tests/support/gradient_programs.py <file>` in an environment with Paddle records what it finds;
tests/program/fixtures/paddle_gradients.json is one. A program gets a Box, appends its backward, and returns what is
fetched; each array has 64 bits.
"""

from __future__ import annotations

import importlib
import json
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Found = list[Any]
PROGRAMS: dict[str, Callable[[Box], Found]] = {}


class Box:
    """What a program is built with: `p` is the framework, and values of feeds and parameters follow from names."""

    def __init__(self, p: Any, name: str) -> None:
        self.p, self.static, self.F = p, p.static, p.nn.functional
        self.rng, self.feed = np.random.default_rng(zlib.crc32(name.encode())), {}

    def data(self, name: str, shape: list[int], live: bool = True, size: int = 2) -> Any:
        v = self.static.data(name, shape, "float64")
        v.stop_gradient = not live
        self.feed[name] = self.rng.normal(size=[size if s == -1 else s for s in shape])
        return v

    def labels(self, name: str, shape: list[int], classes: int) -> Any:
        self.feed[name] = self.rng.integers(0, classes, size=shape)
        return self.static.data(name, shape, "int64")

    def param(self, name: str, shape: list[int], **facts: Any) -> Any:
        value = self.p.nn.initializer.Assign(self.rng.normal(size=shape))
        attr = self.p.ParamAttr(name=name, initializer=value, **facts)
        return self.static.create_parameter(shape, "float64", attr=attr)

    def backward(self, loss: Any, **given: Any) -> list[Any]:
        return [g for _, g in self.static.append_backward(loss, **given)]


def program(build: Callable[[Box], Found]) -> Callable[[Box], Found]:
    PROGRAMS[build.__name__] = build
    return build


@program
def data_only(b: Box) -> Found:
    x = b.data("x", [2, 3])
    loss = b.p.mean(x * x)
    assert b.backward(loss) == []
    return [loss, "x@GRAD", loss.name + "@GRAD"]


@program
def data_and_parameters(b: Box) -> Found:
    x, w, c = b.data("x", [2, 3]), b.param("w", [3, 2]), b.param("c", [2])
    loss = b.p.mean(b.p.tanh(b.p.matmul(x, w) + c))
    return [loss, *b.backward(loss), "x@GRAD", "w@GRAD", "c@GRAD"]


@program
def inner_values(b: Box) -> Found:
    x, w = b.data("x", [2, 3]), b.param("w", [3, 2])
    h = b.p.matmul(x, w)
    t = b.p.tanh(h)
    loss = b.p.sum(t * t)
    b.backward(loss)
    return [h.name + "@GRAD", t.name + "@GRAD", "x@GRAD"]


@program
def inner_values_of_frozen_data(b: Box) -> Found:
    x, w = b.data("x", [2, 3], live=False), b.param("w", [3, 2])
    h = b.p.matmul(x, w)
    t = b.p.exp(h)
    loss = b.p.sum(t)
    b.backward(loss)
    return [h.name + "@GRAD", t.name + "@GRAD", "w@GRAD"]


@program
def used_twice(b: Box) -> Found:
    x = b.data("x", [2, 3])
    y = b.p.tanh(x) + b.p.exp(x) * x
    loss = b.p.sum(y + x)
    b.backward(loss)
    return ["x@GRAD"]


@program
def both_operands(b: Box) -> Found:
    x = b.data("x", [3, 3])
    loss = b.p.sum(x + x) + b.p.sum(b.p.matmul(x, x, transpose_y=True)) + b.p.sum(x * x)
    b.backward(loss)
    return ["x@GRAD"]


@program
def one_of_three_is_frozen(b: Box) -> Found:
    x, y, z = b.data("x", [2, 3]), b.data("y", [2, 3], live=False), b.data("z", [2, 3])
    loss = b.p.mean(x * y * z)
    b.backward(loss)
    return ["x@GRAD", "z@GRAD"]


@program
def broadcast(b: Box) -> Found:
    x, y, z = b.data("x", [2, 3]), b.data("y", [3]), b.data("z", [1])
    loss = b.p.sum((x + y) * (x - z) / (y * y + 1.0))
    b.backward(loss)
    return ["x@GRAD", "y@GRAD", "z@GRAD"]


@program
def size_known_at_run_time(b: Box) -> Found:
    x, w = b.data("x", [-1, 3], size=5), b.param("w", [3, 4])
    loss = b.p.mean(b.F.relu(b.p.matmul(x, w)))
    return [*b.backward(loss), "x@GRAD"]


@program
def functions(b: Box) -> Found:
    x = b.data("x", [4, 3])
    y = b.p.log(b.p.exp(x) + 2.0) + b.p.sqrt(x * x + 1.0) + b.p.sin(x) * b.p.cos(x) + b.p.abs(x)
    loss = b.p.mean(b.F.sigmoid(y) + b.p.square(x) + b.p.pow(x, 3.0))
    b.backward(loss)
    return ["x@GRAD", y.name + "@GRAD"]


@program
def activations(b: Box) -> Found:
    x = b.data("x", [4, 3])
    y = b.F.gelu(x) + b.F.gelu(x, approximate=True) + b.F.silu(x)
    loss = b.p.mean(y + b.F.relu(x) + b.F.leaky_relu(x, 0.125))
    b.backward(loss)
    return ["x@GRAD"]


@program
def cross_entropy(b: Box) -> Found:
    x, label, w = b.data("x", [4, 3]), b.labels("label", [4, 1], 5), b.param("w", [3, 5])
    scores = b.p.matmul(x, w)
    loss = b.p.mean(b.F.softmax_with_cross_entropy(scores, label))
    return [*b.backward(loss), "x@GRAD", scores.name + "@GRAD"]


@program
def softmax_over_products(b: Box) -> Found:
    q, k, v = (b.data(n, [2, 2, 3, 4]) for n in "qkv")
    weights = b.F.softmax(b.p.matmul(q, k, transpose_y=True) * 0.5)
    loss = b.p.sum(b.p.matmul(weights, v) * b.data("seed", [2, 2, 3, 4], live=False))
    b.backward(loss)
    return ["q@GRAD", "k@GRAD", "v@GRAD", weights.name + "@GRAD"]


@program
def layer_norm(b: Box) -> Found:
    x, w, c = b.data("x", [4, 6]), b.param("w", [6]), b.param("c", [6])
    loss = b.p.sum(b.p.tanh(b.F.layer_norm(x, [6], w, c)))
    return [*b.backward(loss), "x@GRAD"]


@program
def shapes(b: Box) -> Found:
    x, y = b.data("x", [2, 6]), b.data("y", [3, 4])
    z = b.p.concat([b.p.reshape(x, [3, 4]), b.p.transpose(b.p.reshape(y, [4, 3]), [1, 0])], axis=0)
    first, second = b.p.split(z, 2, axis=1)
    loss = b.p.sum(first * first * second)
    b.backward(loss)
    return ["x@GRAD", "y@GRAD", z.name + "@GRAD"]


@program
def stacks_and_slices(b: Box) -> Found:
    x, y = b.data("x", [4, 3]), b.data("y", [4, 3])
    z = b.p.stack([x[1:3], y[0:2]], axis=1)
    loss = b.p.sum(b.p.squeeze(z * z, axis=[]) + 1.0) + b.p.sum(b.p.unsqueeze(x, [0]) * 0.5)
    b.backward(loss)
    return ["x@GRAD", "y@GRAD"]


@program
def rows_by_number(b: Box) -> Found:
    x, table, at = b.data("x", [3, 4]), b.param("table", [6, 4]), b.labels("at", [3], 6)
    loss = b.p.sum(b.F.embedding(at, table) * x * x)
    return [*b.backward(loss), "x@GRAD"]


@program
def reductions(b: Box) -> Found:
    x = b.data("x", [2, 3, 4])
    y = b.p.mean(x, axis=1, keepdim=True) * x + b.p.sum(x, axis=[0, 2], keepdim=True)
    loss = b.p.sum(b.p.max(y, axis=-1)) + b.p.mean(b.p.min(x, axis=0))
    b.backward(loss)
    return ["x@GRAD", y.name + "@GRAD"]


@program
def choices(b: Box) -> Found:
    x, y = b.data("x", [4, 3]), b.data("y", [4, 3])
    z = b.p.where(x > y, x * 2.0, y * y) + b.p.clip(x, -0.5, 0.5) + b.p.maximum(x, y) - b.p.minimum(x, y)
    loss = b.p.mean(z)
    b.backward(loss)
    return ["x@GRAD", "y@GRAD"]


@program
def rounded(b: Box) -> Found:
    x = b.data("x", [7])
    b.feed["x"] = np.array([-2.5, -0.5, -0.2, 0.49999999999999994, 0.5, 1.5, 2.5])
    y = b.p.round(x)
    loss = b.p.sum(y * x)
    b.backward(loss)
    return [y, "x@GRAD"]


@program
def stopped_on_one_way(b: Box) -> Found:
    x, w = b.data("x", [2, 3]), b.param("w", [3, 2])
    h = b.p.matmul(x, w)
    h.stop_gradient = True
    loss = b.p.mean(h * h) + b.p.mean(x * x)
    assert b.backward(loss) == []
    return [loss, "x@GRAD"]


@program
def stopped_beside(b: Box) -> Found:
    x, w, v = b.data("x", [2, 3]), b.param("w", [3, 2]), b.param("v", [3, 2])
    h = b.p.matmul(x, w)
    h.stop_gradient = True
    loss = b.p.mean(h * b.p.matmul(x, v))
    return [*b.backward(loss), "x@GRAD"]


@program
def frozen_parameter(b: Box) -> Found:
    x, w, v = b.data("x", [2, 3]), b.param("w", [3, 4], trainable=False), b.param("v", [4, 2])
    loss = b.p.mean(b.p.tanh(b.p.matmul(b.p.tanh(b.p.matmul(x, w)), v)))
    return [*b.backward(loss), "x@GRAD"]


@program
def parameter_list_beside_data(b: Box) -> Found:
    x, w, v = b.data("x", [2, 3]), b.param("w", [3, 2]), b.param("v", [2])
    loss = b.p.mean(b.p.matmul(x, w) * v)
    return [*b.backward(loss, parameter_list=["v"]), "x@GRAD"]


@program
def parameter_list_of_all_kinds(b: Box) -> Found:
    x, w = b.data("x", [2, 3]), b.param("w", [3, 2])
    h = b.p.matmul(x, w)
    loss = b.p.mean(h * h)
    return b.backward(loss, parameter_list=[h, x, "w"])


@program
def parameter_list_with_a_frozen_one(b: Box) -> Found:
    x, w = b.data("x", [2, 3]), b.param("w", [3, 2], trainable=False)
    loss = b.p.mean(b.p.matmul(x, w))
    return [*b.backward(loss, parameter_list=[w, x])]


@program
def no_grad_set_of_data(b: Box) -> Found:
    x, y, w = b.data("x", [2, 3]), b.data("y", [2, 3]), b.param("w", [3, 2])
    loss = b.p.mean(b.p.matmul(x * y, w))
    return [*b.backward(loss, no_grad_set={"x"}), "y@GRAD"]


@program
def no_grad_set_inside(b: Box) -> Found:
    x, w = b.data("x", [2, 3]), b.param("w", [3, 3])
    h = b.p.matmul(x, w)
    loss = b.p.mean(h * x)
    return [*b.backward(loss, no_grad_set={h}), "x@GRAD"]


@program
def shared_parameter(b: Box) -> Found:
    x, w = b.data("x", [2, 3]), b.param("w", [3, 3])
    loss = b.p.mean(b.p.matmul(b.p.tanh(b.p.matmul(x, w)), w))
    return [*b.backward(loss), "x@GRAD"]


@program
def constant_set_live(b: Box) -> Found:
    c, w = b.p.full([2, 3], 2.0, "float64"), b.param("w", [3, 2])
    c.stop_gradient = False
    loss = b.p.mean(b.p.tanh(b.p.matmul(c, w)))
    return [*b.backward(loss), c.name + "@GRAD"]


@program
def gradients_of_two_targets(b: Box) -> Found:
    x, y = b.data("x", [2, 3]), b.data("y", [2, 3])
    h = x * y
    seed = b.data("seed", [2, 3], live=False)
    return b.static.gradients([h * 2.0, b.p.tanh(h)], [x, y, h], [seed, None])


@program
def second_order(b: Box) -> Found:
    x = b.data("x", [2, 3])
    (g,) = b.static.gradients(b.p.tanh(x) * x, x)
    (gg,) = b.static.gradients(g, x)
    return [g, gg]


@program
def penalty(b: Box) -> Found:
    x, w = b.data("x", [2, 3]), b.param("w", [3, 2])
    loss = b.p.mean(b.p.tanh(b.p.matmul(x, w)))
    (g,) = b.static.gradients(loss, x)
    return [g, *b.backward(loss + b.p.sum(g * g))]


@program
def two_losses(b: Box) -> Found:
    x, w = b.data("x", [2, 3]), b.param("w", [3, 2])
    h = b.p.matmul(x, w)
    first, second = b.p.mean(h * h), b.p.mean(h)
    return [*b.backward(first), *b.backward(second), "x@GRAD", "grad/grad/x@GRAD", "grad/grad/w@GRAD"]


@program
def step_of_sgd(b: Box) -> Found:
    x, w = b.data("x", [2, 3]), b.param("w", [3, 2])
    loss = b.p.mean(b.p.matmul(x, w) ** 2)
    _, pairs = b.p.optimizer.SGD(0.1).minimize(loss)
    return [loss, "x@GRAD", w, *[g for _, g in pairs]]


@program
def step_of_adam_with_clipping(b: Box) -> Found:
    x, w, c = b.data("x", [2, 3]), b.param("w", [3, 2]), b.param("c", [2])
    loss = b.p.mean((b.p.matmul(x, w) + c) ** 2)
    clip = b.p.nn.ClipGradByGlobalNorm(0.1)
    b.p.optimizer.Adam(0.125, beta1=0.5, beta2=0.75, grad_clip=clip).minimize(loss, no_grad_set={"c"})
    return [loss, "x@GRAD", w, c]


def run(
    p: Any, build: Callable[[Box], Found], compiled: Callable[[Any], Any] = lambda main: main, place: Any = None
) -> list[np.ndarray]:
    """The fetched values of a program after its startup program ran, on a CPU unless `place` says otherwise."""
    main, startup, scope = p.static.Program(), p.static.Program(), p.static.Scope()
    with p.static.program_guard(main, startup), p.static.scope_guard(scope):
        box = Box(p, build.__name__)
        fetches = build(box)
        exe = p.static.Executor(place if place is not None else p.CPUPlace())
        exe.run(startup)
        return [np.asarray(a) for a in exe.run(compiled(main), feed=box.feed, fetch_list=fetches)]


def record(path: Path) -> None:
    paddle = importlib.import_module("paddle")
    paddle.enable_static()
    found = {}
    for name, build in PROGRAMS.items():
        paddle.utils.unique_name.switch()
        found[name] = [{"shape": list(a.shape), "values": a.ravel().tolist()} for a in run(paddle, build)]
    rows = ",\n".join(f'"{name}": {json.dumps(arrays)}' for name, arrays in found.items())
    path.write_text("{\n" + rows + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    record(Path(sys.argv[1]))
