"""Arguments of `Executor.run`: nested fetches, updates among them, pruning, feeds in lists, tensors."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from tests.paddle.programs import raised, started


def model(package: Any) -> tuple[Any, ...]:
    """out, loss, another loss, what minimize returned, the weight, an Executor."""
    static = package.static
    x, z = static.data("x", [None, 1]), static.data("z", [None, 1])
    one = package.nn.initializer.Constant(1.0)
    w = package.create_parameter([1, 1], "float32", name="w", default_initializer=one)
    out = package.matmul(x, w) * 2.0
    loss, other = package.mean(out), package.mean(z)
    minimized = package.optimizer.SGD(0.125).minimize(loss)
    return out, loss, other, minimized, w, started(package)


def fed() -> dict[str, np.ndarray]:
    return {"x": np.ones((2, 1), "float32"), "z": np.ones((2, 1), "float32")}


def fetches(paddle: Any) -> Any:
    out, loss, _, minimized, w, exe = model(paddle)
    lists = [
        loss, [loss], (loss, out), [[loss, out]], [[loss], [out]], [(loss, out.name)], [loss, minimized],
        [loss, minimized[0]], [loss, [minimized[0][0]]], [loss, minimized[1][0]],
    ]  # fmt: skip
    return [(exe.run(feed=fed(), fetch_list=f), np.array(w.get_value())) for f in lists]


def pruning(paddle: Any) -> Any:
    _, loss, other, minimized, w, exe = model(paddle)
    lists = [[loss], [other], [loss, minimized], [other, minimized]]
    return [(exe.run(feed=fed(), fetch_list=f, use_prune=True), np.array(w.get_value())) for f in lists]


def feeds_in_lists(paddle: Any) -> Any:
    _, loss, _, _, _, exe = model(paddle)
    main = paddle.static.default_main_program()
    test = main.clone(for_test=True)
    return [
        exe.run(test, feed=[fed()], fetch_list=[loss]), exe.run(test, feed=(fed(),), fetch_list=[loss]),
        raised(lambda: exe.run(test, feed=[], fetch_list=[loss])) != "",
        raised(lambda: exe.run(test, feed=[fed(), fed()], fetch_list=[loss])) != "",
    ]  # fmt: skip


def tensors(paddle: Any) -> Any:
    out, loss, _, _, _, exe = model(paddle)
    test = paddle.static.default_main_program().clone(for_test=True)
    (value,) = exe.run(test, feed=fed(), fetch_list=[out], return_numpy=False)
    again = exe.run(test, feed={"x": value, "z": value}, fetch_list=[loss])
    return value.shape(), value.lod(), np.array(value), again


def what_is_no_program(paddle: Any) -> Any:
    out, *_, exe = model(paddle)
    static = paddle.static
    with static.program_guard(static.Program(), static.Program()):
        nothing = raised(lambda: exe.run(fetch_list=[out])) != ""
    return [nothing, raised(lambda: exe.run("main")) != "", raised(lambda: exe.train_from_dataset()) != ""]


def what_is_empty(paddle: Any) -> Any:
    """What runs return, and how often each warned."""
    static = paddle.static
    exe, found = static.Executor(), []
    static.data("x", [None, 1])
    x = np.ones((2, 1), "float32")
    runs = [
        exe.run, lambda: exe.run(feed={"x": x}), lambda: exe.run(static.default_startup_program()),
        lambda: exe.run(static.Program()), lambda: exe.run(static.CompiledProgram(static.Program())),
    ]  # fmt: skip
    for run in runs:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            found.append((run(), len(warned)))
    return found
