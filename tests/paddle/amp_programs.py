"""Mixed precision: which operators get 16 bits, what is cast, what a decorated optimizer has, how the loss scale moves.

Paddle's CPU multiplies no 16-bit matrices: programs are cast and read, and those that run have all in float32.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.paddle.programs import raised, started

TYPES = ("float16", "bfloat16", "float32", "float64")


def name_of(lib: Any, v: Any) -> str:
    return next(name for name in TYPES if v.dtype == getattr(lib, name))


def lists(lib: Any, dtype: str = "float16", **custom: Any) -> Any:
    """The lists; without those operators that Paddle's CPU lacks, which are all."""
    found = lib.static.amp.AutoMixedPrecisionLists(dtype=dtype, **custom)
    found.unsupported_list = set(custom.get("custom_black_list", ()))
    return found


def cast(lib: Any, body: Callable[[], Any], level: str, dtype: str, custom: Any) -> tuple[Any, Any]:
    """What `body` gives, and the program after it was cast."""
    main, startup = lib.static.Program(), lib.static.Program()
    with lib.static.program_guard(main, startup), lib.utils.unique_name.guard():
        made = body()
        lib.static.amp.cast_model_to_fp16(
            main, lists(lib, dtype, **custom), False, getattr(lib, dtype), level
        )
    return made, main


def casts(program: Any) -> Any:
    """How many casts there are to each type, and what they read: the data and parameters."""
    block = program.global_block()
    into, read = [], []
    for op in block.ops:
        if op.type == "cast":
            into.append(str(block.var(op.output("Out")[0]).dtype).rsplit(".", 1)[-1].lower())
            read.append(op.input("X")[0])
    short = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
    into = [short.get(t, t) for t in into]
    known = {"x", "words", *(p.name for p in program.all_parameters())}
    return {t: into.count(t) for t in sorted(set(into))}, len(read) - len(set(read)), sum(n in known for n in read)


def functions(lib: Any) -> dict[str, Callable[[Any], Any]]:
    """Operators of one value of two axes, as users write them."""
    F = lib.nn.functional
    return {
        "relu": F.relu, "leaky_relu": F.leaky_relu, "tanh": lib.tanh, "sigmoid": F.sigmoid, "sign": lib.sign,
        "scale": lambda h: lib.scale(h, 0.5), "add": lambda h: lib.add(h, h),
        "subtract": lambda h: lib.subtract(h, h), "multiply": lambda h: lib.multiply(h, h),
        "divide": lambda h: lib.divide(h, h), "maximum": lambda h: lib.maximum(h, h),
        "minimum": lambda h: lib.minimum(h, h), "reshape": lambda h: lib.reshape(h, [-1]),
        "transpose": lambda h: lib.transpose(h, [1, 0]), "concat": lambda h: lib.concat([h, h]),
        "stack": lambda h: lib.stack([h, h]), "split": lambda h: lib.split(h, 2)[0], "slice": lambda h: h[1:],
        "dropout": lambda h: F.dropout(h, 0.5), "gather": lambda h: lib.gather(h, lib.full([2], 1, "int64")),
        "matmul": lambda h: lib.matmul(h, h, transpose_y=True), "exp": lib.exp, "log": lib.log,
        "log2": lib.log2, "rsqrt": lib.rsqrt, "reciprocal": lib.reciprocal, "square": lib.square,
        "pow": lambda h: lib.pow(h, 3.0), "tan": lib.tan, "sum": lib.sum, "mean": lib.mean,
        "prod": lib.prod, "cumsum": lambda h: lib.cumsum(h, 0), "softmax": F.softmax,
        "log_softmax": F.log_softmax, "softplus": F.softplus, "sqrt": lib.sqrt, "sin": lib.sin,
    }  # fmt: skip


def product(lib: Any) -> Any:
    return lib.nn.Linear(8, 8)(lib.static.data("x", [4, 8]))


LISTED = (  # what both have by one name
    "matmul fused_gemm_epilogue acos asin atanh cosh cumsum erfinv exp expm1 log log10 log2 log_softmax pow reciprocal"
    " reduce_mean reduce_prod reduce_sum rsqrt sigmoid_cross_entropy_with_logits sinh softmax softplus square tan"
    " softmax_with_cross_entropy concat dropout elementwise_add elementwise_div elementwise_max elementwise_min"
    " elementwise_mul elementwise_sub gather leaky_relu relu scale sigmoid sign slice split stack tanh"
)


def classes(paddle: Any) -> Any:
    """{operator: the lists that name it}"""
    found = paddle.static.amp.AutoMixedPrecisionLists()
    sets = {"white": found.white_list, "black": found.black_list, "gray": found.gray_list}
    return {name: [kind for kind, names in sets.items() if name in names] for name in LISTED.split()}


def types_o1(paddle: Any) -> Any:
    """{operator: its type behind a product, its type behind an exponential, casts}"""

    def behind(function: Callable[[Any], Any], first: str) -> Any:
        def body() -> Any:
            h = product(paddle)
            return function(paddle.exp(h) if first == "black" else h)

        made, program = cast(paddle, body, "O1", "float16", {})
        return name_of(paddle, made), casts(program)

    return {name: [behind(f, first) for first in ("white", "black")] for name, f in functions(paddle).items()}


MOVING = "relu tanh scale add reshape concat matmul softmax log_softmax dropout"  # losses and sums differ, docs 053


def types_o2(paddle: Any) -> Any:
    found, chosen = {}, functions(paddle)
    for name, dtype in itertools.product(MOVING.split(), ("float16", "bfloat16")):
        made, program = cast(paddle, lambda f=chosen[name]: f(product(paddle)), "O2", dtype, {})
        parameters = [(list(p.shape), name_of(paddle, p)) for p in program.all_parameters()]
        found[f"{name} {dtype}"] = name_of(paddle, made), casts(program), parameters
    return found


def custom_lists(paddle: Any) -> Any:
    """What custom lists and names of variables do to two layers."""

    def body() -> Any:
        h = paddle.nn.Linear(8, 8, weight_attr=paddle.ParamAttr(name="first"))(paddle.static.data("x", [4, 8]))
        a = paddle.nn.functional.relu(h)
        b = paddle.nn.functional.softmax(a)
        return h, a, b, paddle.nn.Linear(8, 2)(b)

    found = []
    for custom in (
        {}, {"custom_black_list": {"matmul_v2"}}, {"custom_black_list": {"relu"}}, {"custom_white_list": {"softmax"}},
        {"custom_white_list": {"softmax"}, "custom_black_list": {"relu"}}, {"custom_black_varnames": {"first"}},
    ):  # fmt: skip
        made, program = cast(paddle, body, "O1", "float16", custom)
        found.append(([name_of(paddle, v) for v in made], casts(program)))
    clash = {"custom_white_list": {"softmax"}, "custom_black_list": {"softmax"}}
    return found, raised(lambda: lists(paddle, **clash))


def a_shared_value(paddle: Any) -> Any:
    """Data and an activation that several operators read in another type are cast once."""

    def body() -> Any:
        x = paddle.static.data("x", [4, 8])
        a, b = paddle.nn.Linear(8, 8)(x), paddle.nn.Linear(8, 8)(x)
        wide = paddle.exp(a) + paddle.log(a) + paddle.square(a)
        return paddle.matmul(wide, b, transpose_y=True), paddle.matmul(wide, a, transpose_y=True)

    return [casts(cast(paddle, body, "O1", dtype, {})[1]) for dtype in ("float16", "bfloat16")]


def o2_parameters(paddle: Any) -> Any:
    """Norms keep scale and bias in float32."""

    def body() -> Any:
        h = paddle.nn.LayerNorm(8)(paddle.nn.Linear(8, 8)(paddle.static.data("x", [4, 8])))
        return paddle.nn.Linear(8, 2)(h)

    _, program = cast(paddle, body, "O2", "bfloat16", {})
    return {p.name.partition("_0")[0] + str(list(p.shape)): name_of(paddle, p) for p in program.all_parameters()}


def minimized(lib: Any, optimizer: Any, **facts: Any) -> Any:
    """A decorated optimizer that has minimized a layer's mean: all of it in float32."""
    x = lib.static.data("x", [2, 3])
    layer = lib.nn.Linear(3, 2, lib.nn.initializer.Constant(0.5))
    loss = lib.mean(layer(x))
    amp = lib.static.amp
    decorated = amp.decorate(
        optimizer, amp.AutoMixedPrecisionLists(custom_black_list={"matmul_v2", "elementwise_add"}), **facts
    )
    return loss, decorated, decorated.minimize(loss)


def decorated(paddle: Any) -> Any:
    """What `decorate` returns has these, and `minimize` gives this."""
    loss, optimizer, result = minimized(paddle, paddle.optimizer.Adam(0.1), init_loss_scaling=128.0)
    scale = optimizer.get_loss_scaling()
    methods = (
        "amp_init apply_gradients apply_optimize backward get_loss_scaling get_scaled_loss minimize"
    )
    parameters = loss.block.program.all_parameters()
    return {
        "methods": [m for m in methods.split() if callable(getattr(optimizer, m))],
        "kind": type(optimizer).__name__, "name": scale.name, "type": name_of(paddle, scale),
        "shape": list(scale.shape), "persistable": scale.persistable, "stop_gradient": scale.stop_gradient,
        "updates": [op.type for op in result[0]], "pairs": sorted([(p.name, g.name) for p, g in result[1]]),
        "parameters": sorted(p.name for p in parameters),
        "scaled": name_of(paddle, optimizer.get_scaled_loss()),
        "kept": sorted(v.name for v in loss.block.vars.values() if v.persistable and "steps" in v.name),
        "operators": sorted(op.type for op in loss.block.ops if op.type in (
            "check_finite_and_unscale", "update_loss_scaling")),
    }  # fmt: skip


def unscaled(paddle: Any) -> Any:
    """bfloat16 that asks for a moving scale gets none; float16 with a fixed scale of 1 has none."""
    found = []
    for facts in (
        {"dtype": "bfloat16", "use_dynamic_loss_scaling": True},
        {"use_dynamic_loss_scaling": False, "init_loss_scaling": 1.0},
        {"use_dynamic_loss_scaling": False, "init_loss_scaling": 8.0},
        {"dtype": "bfloat16", "init_loss_scaling": 8.0, "use_dynamic_loss_scaling": True},
        {"dtype": "bfloat16", "init_loss_scaling": 8.0},
    ):  # fmt: skip
        main, startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(main, startup), paddle.utils.unique_name.guard():
            loss, optimizer, _ = minimized(paddle, paddle.optimizer.SGD(0.1), **facts)
            exe = started(paddle)
            ones = {"x": np.ones((2, 3), "float32")}
            scale = exe.run(main, ones, [optimizer.get_loss_scaling(), optimizer.get_scaled_loss()])
            types = {op.type for op in main.global_block().ops}
            found.append(([float(v.reshape(())) for v in scale], "check_finite_and_unscale" in types,
                          "update_loss_scaling" in types, optimizer.get_scaled_loss() is loss))  # fmt: skip
    return found


SETTINGS = (
    {"incr_every_n_steps": 2, "decr_every_n_nan_or_inf": 1, "incr_ratio": 2.0, "decr_ratio": 0.5},
    {"incr_every_n_steps": 3, "decr_every_n_nan_or_inf": 2, "incr_ratio": 4.0, "decr_ratio": 0.25},
    {"incr_every_n_steps": 1, "decr_every_n_nan_or_inf": 3, "incr_ratio": 1.5, "decr_ratio": 0.8},
    {"incr_every_n_steps": 4, "decr_every_n_nan_or_inf": 1, "incr_ratio": 10.0, "decr_ratio": 0.1},
)
ORDERS = ("gggggggg", "gbgbggbb", "bbbbbbbb", "ggbggbgggbbg")


def loss_scales(paddle: Any) -> Any:
    """Scale, counters, and parameters of SGD or states of Adam after each good or bad step."""
    found = []
    for settings, order, kind in itertools.product(SETTINGS, ORDERS, ("SGD", "Adam")):
        main, startup = paddle.static.Program(), paddle.static.Program()
        guards = paddle.static.program_guard(main, startup), paddle.utils.unique_name.guard()
        with guards[0], guards[1], paddle.static.scope_guard(paddle.static.Scope()):
            optimizer = getattr(paddle.optimizer, kind)(0.1)
            minimized(paddle, optimizer, init_loss_scaling=4.0, **settings)
            exe, rows = started(paddle), []
            names = ["loss_scaling_0", "num_good_steps_0", "num_bad_steps_0"]
            states = ["linear_0.w_0_moment1_0", "linear_0.w_0_beta1_pow_acc_0"]  # Paddle keeps the latter in float32,
            names += states if kind == "Adam" else ["linear_0.w_0"]  # which costs parameters some digits
            for i, step in enumerate(order):
                value = np.inf if step == "b" and i % 2 else np.nan if step == "b" else 1.0 + i
                exe.run(main, {"x": np.full((2, 3), value, "float32")}, [])
                scope = paddle.static.global_scope()
                rows.append([float(np.array(scope.find_var(name).get_tensor()).reshape(-1)[0]) for name in names])
            found.append(rows)
    return found
