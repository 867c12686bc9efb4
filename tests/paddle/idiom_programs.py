"""What stands around programs: devices, scopes, flags, readers, names, values of variables."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.paddle.programs import raised, started


def ask_the_build(paddle: Any) -> Any:
    core = paddle.base.core
    return {
        "device": paddle.get_device(), "set": str(paddle.set_device("cpu")).startswith(("Place", "CPU")),
        "none": [paddle.is_compiled_with_rocm(), paddle.is_compiled_with_xpu(), core.is_compiled_with_xpu(),
                 paddle.is_compiled_with_custom_device("npu"), paddle.is_compiled_with_cinn()],
        "mode": [paddle.in_dynamic_mode(), paddle.base.in_dygraph_mode(), paddle.framework.in_dynamic_mode()],
        "unknown": raised(lambda: paddle.set_device("tpu")),
    }  # fmt: skip


def device_guard(paddle: Any) -> Any:
    x = paddle.static.data("x", [2])
    with paddle.static.device_guard("cpu"):
        y = x * 2.0
    with paddle.static.device_guard("gpu:0"), paddle.static.device_guard(None):
        y = y + 1.0

    def guarded() -> None:
        with paddle.static.device_guard("tpu"):
            pass

    return started(paddle).run(feed={"x": np.ones(2, "float32")}, fetch_list=[y]), raised(guarded)


def global_variables(paddle: Any) -> Any:
    v = paddle.static.create_global_var([2, 3], 1.5, "float32", persistable=True, force_cpu=True, name="v")
    n = paddle.static.create_global_var([1], 7, "int64", persistable=True)
    exe = started(paddle)
    return [v.name, list(v.shape), v.persistable, v.stop_gradient, exe.run(fetch_list=[v, n])]


def parameters(paddle: Any) -> Any:
    ones = paddle.nn.initializer.Constant(1.0)
    named = paddle.create_parameter([3, 2], "float32", name="named", default_initializer=ones)
    other = paddle.create_parameter([3], "float32", is_bias=True)
    return named.name, started(paddle).run(fetch_list=[named, other])


def values_of_variables(paddle: Any) -> Any:
    v = paddle.static.create_global_var([2, 2], 0.5, "float32", persistable=True, name="v")
    x = paddle.static.data("x", [None, 2])
    started(paddle)
    before = np.array(v.get_value())
    v.set_value(np.array([[1, 2], [3, 4]], "float32"))
    tensor = v.get_value()
    return {
        "before": before, "after": np.array(v.get_value()), "shape": tensor.shape(), "lod": tensor.lod(),
        "wrong shape": raised(lambda: v.set_value(np.zeros((3, 2), "float32"))), "no value": raised(x.get_value),
        "facts": [v.element_size(), v.lod_level, v.dim(), v.ndimension(), v.ndim, v.is_parameter],
    }  # fmt: skip


def size_and_clone(paddle: Any) -> Any:
    x = paddle.static.data("x", [None, 3])
    fixed = paddle.static.data("fixed", [4, 2])
    feed = {"x": np.ones((5, 3), "float32"), "fixed": np.ones((4, 2), "float32")}
    return started(paddle).run(feed=feed, fetch_list=[x.size(), fixed.size(), x.clone()])


def clones_have_gradients(paddle: Any) -> Any:
    x = paddle.static.data("x", [3])
    x.stop_gradient = False
    (grad,) = paddle.static.gradients([(x.clone() * x).sum()], [x])
    return started(paddle).run(feed={"x": np.array([1, 2, 3], "float32")}, fetch_list=[grad])


def scope_variables(paddle: Any) -> Any:
    scope = paddle.static.global_scope()
    made = scope.var("made").get_tensor()
    made.set(np.arange(3, dtype="int64"), paddle.CPUPlace())
    again = scope.find_var("made").get_tensor()
    return [np.array(again), again.shape(), again.lod(), scope.find_var("other") is None]


def flags(paddle: Any) -> Any:
    paddle.set_flags({"FLAGS_eager_delete_tensor_gb": 1.5})
    changed = paddle.get_flags(["FLAGS_eager_delete_tensor_gb", "FLAGS_check_nan_inf"])
    paddle.set_flags({"FLAGS_eager_delete_tensor_gb": 0.0})
    return [
        changed, paddle.get_flags("FLAGS_eager_delete_tensor_gb"), raised(lambda: paddle.set_flags({"FLAGS_x": 1})),
        raised(lambda: paddle.get_flags(["FLAGS_x"])),
    ]  # fmt: skip


def batches(paddle: Any) -> Any:
    def reader() -> Any:
        yield from range(5)

    return [
        list(paddle.batch(reader, 2)()), list(paddle.batch(reader, 2, drop_last=True)()),
        list(paddle.batch(reader, batch_size=7)()), raised(lambda: list(paddle.batch(reader, 0)())),
    ]  # fmt: skip


def readers(paddle: Any) -> Any:
    def one() -> Any:
        yield from range(5)

    def two() -> Any:
        for i in range(3):
            yield i, -i

    r = paddle.reader
    return {
        "chain": list(r.chain(one, one)()), "compose": list(r.compose(two, two)()),
        "loose": list(r.compose(one, two, check_alignment=False)()), "firstn": list(r.firstn(one, 2)()),
        "map": list(r.map_readers(lambda a, b: a * b, one, one)()), "buffered": list(r.buffered(one, 2)()),
        "cache": list(r.cache(one)()), "shuffle": sorted(r.shuffle(one, 3)()),
        "xmap": list(r.xmap_readers(lambda a: a * 2, one, 2, 3, order=True)()),
        "unequal": raised(lambda: list(r.compose(one, two)())),
    }  # fmt: skip


def unique_names(paddle: Any) -> Any:
    names = paddle.utils.unique_name
    first = names.generate("a"), names.generate("a")
    with names.guard("pre_"):
        inside = names.generate("a")
    with names.guard():
        return first, inside, names.generate("a")


def versions(paddle: Any) -> Any:
    require = paddle.utils.require_version
    return [
        raised(lambda: require("2.0")), raised(lambda: require("2.1.0", "2.7")), raised(lambda: require("2.7")),
        raised(lambda: require(2)), raised(lambda: paddle.utils.try_import("no_such_module")),
    ]  # fmt: skip


def older_places(paddle: Any) -> Any:
    base = paddle.base
    main, startup = base.Program(), base.Program()
    with base.program_guard(main, startup):
        x = paddle.static.data("x", [2, 2])
        y = paddle.mean(paddle.static.nn.fc(x, 2, weight_attr=paddle.nn.initializer.Constant(0.5)))
    exe = base.Executor(base.CPUPlace())
    exe.run(startup)
    (value,) = exe.run(main, feed={"x": np.ones((2, 2), "float32")}, fetch_list=[y])
    same = base.framework.default_main_program() is paddle.static.default_main_program()
    return [value, same, base.core.is_compiled_with_rocm(), base.framework.grad_var_name("x")]
