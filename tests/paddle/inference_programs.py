"""Inference models in files and bytes, `paddle.save` and `paddle.load`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.paddle.programs import raised, started

X = np.arange(6, dtype="float32").reshape(2, 3)


def trained(package: Any) -> Any:
    """x, out, loss and an Executor, after one step."""
    constant = package.nn.initializer.Constant
    x, y = package.static.data("x", [None, 3]), package.static.data("y", [None, 1])
    hidden = package.static.nn.fc(x, 4, activation="relu", weight_attr=constant(0.1))
    hidden = package.nn.functional.dropout(hidden, 0.5)
    out = package.static.nn.fc(hidden, 1, weight_attr=constant(0.2), bias_attr=constant(0.5))
    loss = package.mean((out - y) ** 2)
    package.optimizer.SGD(0.0).minimize(loss)
    exe = started(package)
    exe.run(feed={"x": X, "y": np.ones((2, 1), "float32")}, fetch_list=[loss])
    return x, out, loss, exe


def model_in_files(paddle: Any, folder: Path) -> Any:
    x, out, _, exe = trained(paddle)
    prefix = str(folder / "model" / "net")
    (folder / "model").mkdir()
    paddle.static.save_inference_model(prefix, [x], [out], exe)
    with paddle.static.scope_guard(paddle.static.Scope()):
        program, feeds, fetches = paddle.static.load_inference_model(prefix, exe)
        values = exe.run(program, feed={feeds[0]: X}, fetch_list=fetches)
    return feeds, [list(v.shape) for v in fetches], values


def model_in_bytes(paddle: Any, folder: Path) -> Any:
    x, out, _, exe = trained(paddle)
    static = paddle.static
    program = static.serialize_program([x], [out])
    weights = static.serialize_persistables([x], [out], exe)
    static.save_to_file(str(folder / "net.pdmodel"), program)
    static.save_to_file(str(folder / "net.pdiparams"), weights)
    same = static.load_from_file(str(folder / "net.pdmodel")) == program
    with static.scope_guard(static.Scope()):
        read = static.deserialize_program(program)
        static.deserialize_persistables(read, weights, exe)
    with static.scope_guard(static.Scope()):
        loaded, feeds, fetches = static.load_inference_model(str(folder / "net"), exe)
        return same, type(program).__name__, exe.run(loaded, feed={feeds[0]: X}, fetch_list=fetches)


def inputs_in_another_order(paddle: Any, folder: Path) -> Any:
    a, b = paddle.static.data("a", [2]), paddle.static.data("b", [2])
    exe = started(paddle)
    paddle.static.save_inference_model(str(folder / "net"), [b, a], [a - b, a * b], exe)
    program, feeds, fetches = paddle.static.load_inference_model(str(folder / "net"), exe)
    feed = {"a": np.array([5, 6], "float32"), "b": np.array([1, 2], "float32")}
    return feeds, exe.run(program, feed=feed, fetch_list=fetches)


def refusals(paddle: Any, folder: Path) -> Any:
    x, out, _, exe = trained(paddle)
    static, prefix = paddle.static, str(folder / "net")
    return [
        raised(lambda: static.save_inference_model(prefix, ["x"], [out], exe)),
        raised(lambda: static.save_inference_model(prefix, [x], ["o"], exe)),
        raised(lambda: static.save_inference_model(str(folder), [x], [out], exe)),
        raised(lambda: static.normalize_program(1, [x], [out])),
        raised(lambda: static.normalize_program(static.default_main_program(), "x", [out])),
        raised(lambda: static.save_to_file(prefix, "text")),
    ]  # fmt: skip


def states(paddle: Any, folder: Path) -> Any:
    trained(paddle)
    main = paddle.static.default_main_program()
    path = str(folder / "state.pdparams")
    before = main.state_dict("param")
    paddle.save(before, path)
    state = {name: np.array(value) for name, value in paddle.load(path).items()}
    for v in main.all_parameters():
        v.set_value(np.zeros(v.shape, "float32"))
    main.set_state_dict(paddle.load(path))
    again = [np.array(v.get_value()) for v in main.all_parameters()]
    return sorted(state), [list(state[name].shape) for name in sorted(state)], again


def other_data(paddle: Any, folder: Path) -> Any:
    path = str(folder / "o.bin")
    paddle.save({"a": 1, "b": [1.5, "x", np.ones(2)], "c": {"d": None, "e": True}}, path)
    loaded = paddle.load(path, return_numpy=True)
    return loaded, raised(lambda: paddle.load(str(folder / "none")))
