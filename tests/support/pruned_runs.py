"""One step of training, run with all kinds of fetch_list; shared by the tests and the GPU checks.

The numbers are those of Paddle 2.6.2: of SGD(0.1) on mean((x w + b)^2), with w = 0.5 and b = 0.1.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

import minigraph as mg
from minigraph import static

X = np.arange(6.0).reshape(2, 3)
STEPPED = -0.415, -0.285  # w and b after the update
LOSS, H = 19.885, [[1.6, 1.6], [6.1, 6.1]]


def net(**settings: Any) -> SimpleNamespace:
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        x = static.data("x", [2, 3], "float64")
        w, b = (
            static.create_parameter(shape, "float64", name, default_initializer=mg.nn.initializer.Constant(value))
            for name, shape, value in (("w", [3, 2], 0.5), ("b", [2], 0.1))
        )
        h = mg.matmul(x, w) + b
        loss, side = mg.mean(h * h), mg.mean(x)
        minimized = mg.optimizer.SGD(0.1, **settings).minimize(loss)
    return SimpleNamespace(
        main=main, startup=startup, x=x, w=w, b=b, h=h, loss=loss, side=side, minimized=minimized,
        ops=minimized[0], pairs=minimized[1],
    )  # fmt: skip


Targets = Callable[[SimpleNamespace], Any]
Row = tuple[Targets, bool, list[Any], tuple[float, float]]
BOTH, W_ONLY, B_ONLY = STEPPED, (STEPPED[0], 0.1), (0.5, STEPPED[1])
RUNS: dict[str, Row] = {  # what is fetched, use_prune, first value of each fetched array, w and b afterwards
    "nothing is pruned": (lambda n: [n.loss], False, [LOSS], BOTH),
    "loss": (lambda n: [n.loss], True, [LOSS], BOTH),
    "h": (lambda n: [n.h], True, [1.6], BOTH),
    "no value": (lambda n: [], True, [], BOTH),
    "what needs no update": (lambda n: [n.side], True, [2.5], BOTH),
    "a gradient": (lambda n: ["w@GRAD"], True, [9.15], BOTH),
    "what is fed": (lambda n: [n.x], True, [0.0], BOTH),
    "parameters": (lambda n: [n.w, n.b], True, [*STEPPED], BOTH),  # an error in Paddle, of its own
    "minimized": (lambda n: [n.loss, n.minimized], False, [LOSS], BOTH),
    "minimized, pruned": (lambda n: [n.loss, n.minimized], True, [LOSS], BOTH),
    "all updates": (lambda n: [n.loss, n.ops], False, [LOSS], BOTH),
    "update of b": (lambda n: [n.loss, [n.ops[0]]], False, [LOSS], B_ONLY),
    "update of w": (lambda n: [n.loss, [n.ops[1]]], False, [LOSS], W_ONLY),
    "update of w, parameters": (lambda n: [n.b, [n.ops[1]], n.w], False, [0.1, STEPPED[0]], W_ONLY),
    "loss beside an update": (lambda n: [[n.loss, n.ops[0]]], False, [LOSS], B_ONLY),
    "loss among updates": (lambda n: [([*n.ops, n.loss], n.pairs)], False, [LOSS], BOTH),
    "list in a list": (lambda n: [[n.loss, n.h]], False, [LOSS, 1.6], BOTH),
    "tuple in a list": (lambda n: [(n.loss, "w")], False, [LOSS, STEPPED[0]], BOTH),
    "empty list in a list": (lambda n: [n.loss, []], False, [LOSS], BOTH),
    "parameter and gradient": (lambda n: [*n.pairs], False, [STEPPED[0], 9.15, STEPPED[1], 3.85], BOTH),
}


def with_passes(main: static.Program) -> static.CompiledProgram:
    return static.CompiledProgram(main, static.BuildStrategy.all(verify="each_pass"))
