"""Programs of a last layer with its loss, and what memory they plan with and without fuse_linear_cross_entropy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import minigraph as mg
from minigraph.program import unique_name
from minigraph.runtime.memory import ALL_SMALL

MIB = 1 << 20
LARGE, SMALL = (128256, 4096), (32000, 1024)
ROWS = (128, 1024, 4096, 5000, 8192, 16384)


def net(
    rows, size, dtype, optimizer="SGD", bias=False, kind="plain", clip=False, around: Callable[[Any], Any] = lambda o: o
):  # fmt: skip
    """(program, loss, feeds) of a last layer from H to V; kind: cast, layer, tied or two heads of one weight.

    around  gives the optimizer that minimizes, of the one that is named
    """
    classes, width = size
    main = mg.static.Program()
    with mg.static.program_guard(main, mg.static.Program()), unique_name.guard():
        mg.set_default_dtype(dtype)
        try:
            x = mg.static.data("x", [rows, width], dtype)
            y = mg.static.data("y", [rows], "int64")
            feeds = {"x": x, "y": y}
            shape = [classes, width] if kind == "tied" else [width, classes]
            w = mg.static.create_parameter(shape, dtype)
            hidden = [x]
            if kind == "tied":
                feeds = {"ids": mg.static.data("ids", [rows], "int64"), "y": y}
                hidden = [mg.tanh(mg.nn.Linear(width, width)(mg.nn.functional.embedding(feeds["ids"], w)))]
            elif kind in ("layer", "two"):
                hidden = [mg.tanh(mg.nn.Linear(width, width)(x)), x][: 1 + (kind == "two")]
            losses = []
            for h in hidden:
                z = mg.matmul(h, w, transpose_y=kind == "tied")
                z = mg.add(z, mg.static.create_parameter([classes], dtype, is_bias=True)) if bias else z
                losses.append(mg.nn.functional.cross_entropy(mg.cast(z, "float32") if kind == "cast" else z, y))
            loss = losses[0] if len(losses) == 1 else losses[0] + losses[1]
            norm = mg.nn.ClipGradByGlobalNorm(1.0) if clip else None
            around(getattr(mg.optimizer, optimizer)(0.1, grad_clip=norm)).minimize(loss)
        finally:
            mg.set_default_dtype("float32")
    return main, loss, feeds


def compiled(main, on, every=False):
    strategy = mg.static.BuildStrategy.all() if every else mg.static.BuildStrategy()
    strategy.fuse_linear_cross_entropy = on
    return mg.static.CompiledProgram(main, build_strategy=strategy)


def reports(made, every=False, place=None, sizes=None):
    """The memory without the flag and with it."""
    main, loss, feeds = made
    sizes = sizes or {name: v.shape for name, v in feeds.items()}
    return [compiled(main, on, every).memory_report(sizes, [loss], place) for on in (False, True)]


def planned(*args, **kwargs):
    return [report.planned for report in reports(*args, **kwargs)]


def check(made, rows, *args, room=0, **kwargs):
    """What is needed at one time is no more, but for the losses of the rows, which are there earlier.

    What is planned besides is how blocks fit: a thousandth, and small ones, which share no memory.
    room: bytes by which the workspaces of other products may differ.
    """
    off, on = reports(made, *args, **kwargs)
    assert on.live <= off.live + 8 * rows + 4096 + room, (off.live / MIB, on.live / MIB)
    assert on.planned <= off.planned * 1.001 + ALL_SMALL + room, (off.planned / MIB, on.planned / MIB)
