"""Every name of Paddle's static API that is promised, called with all of Paddle's arguments in Paddle's order."""

from __future__ import annotations

import inspect
from typing import Any

import minigraph as paddle
from minigraph import static

UNARY = ["exp", "log", "sqrt", "rsqrt", "square", "abs", "sign", "tanh", "sin", "cos"]
BINARY = ["add", "subtract", "multiply", "divide", "pow", "maximum", "minimum", "equal", "not_equal", "less_than",
          "less_equal", "greater_than", "greater_equal"]  # fmt: skip


class Names:
    """Variables to call functions with."""

    def __init__(self) -> None:
        self.x, self.y = static.data("x", [2, 3]), static.data("y", [2, 3])
        self.w, self.bias = static.create_parameter([3, 4]), static.create_parameter([4], is_bias=True)
        self.b, self.i = static.data("b", [2, 3], "bool"), static.data("i", [2], "int64")
        self.label = static.data("label", [2, 1], "int64")
        self.scale, self.shift = static.create_parameter([3]), static.create_parameter([3])
        self.loss = paddle.mean(paddle.matmul(self.x, self.w))


def calls(v: Names) -> dict[str, dict[str, Any]]:
    """Path -> all of Paddle's arguments, in Paddle's order."""
    x, y, n = v.x, v.y, None
    lr = {"learning_rate": 0.1}
    end = {"last_epoch": -1, "verbose": False}
    tail = {"parameters": n, "weight_decay": 0.1, "grad_clip": paddle.nn.ClipGradByGlobalNorm(1.0)}
    attrs = {"weight_attr": n, "bias_attr": n, "name": n}
    betas = {"beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8}
    reduce = {"x": x, "axis": [1], "keepdim": True, "name": n}
    table: dict[str, dict[str, Any]] = {name: {"x": x, "name": n} for name in UNARY}
    table |= {name: {"x": x, "y": y, "name": n} for name in BINARY}
    table |= {f"logical_{name}": {"x": v.b, "y": v.b, "out": n, "name": n} for name in ("and", "or", "xor")}
    table |= {f"nn.functional.{name}": {"x": x, "name": n} for name in ("relu", "silu", "tanh", "sigmoid")}
    table |= {f"nn.{name}": {"name": n} for name in ("ReLU", "SiLU", "Silu", "Tanh", "Sigmoid")}
    table |= {
        f"nn.initializer.Xavier{k}": {"fan_in": 3, "fan_out": 4, "gain": 1.0, "name": n} for k in ("Normal", "Uniform")
    }
    table |= {
        f"nn.initializer.Kaiming{k}": {"fan_in": 3, "negative_slope": 0.0, "nonlinearity": "relu"}
        for k in ("Normal", "Uniform")
    }
    return table | {
        "logical_not": {"x": v.b, "out": n, "name": n},
        "enable_static": {}, "in_dynamic_mode": {}, "set_default_dtype": {"d": "float32"}, "get_default_dtype": {},
        "seed": {"seed": 7}, "CPUPlace": {},
        "ParamAttr": {"name": n, "initializer": n, "learning_rate": 1.0, "regularizer": n, "trainable": True,
                      "do_model_average": True, "need_clip": True},
        "matmul": {"x": x, "y": v.w, "transpose_x": False, "transpose_y": False, "name": n},
        "clip": {"x": x, "min": 0.0, "max": 1.0, "name": n},
        "where": {"condition": v.b, "x": x, "y": y, "name": n},
        "sum": {"x": x, "axis": -1, "dtype": "float64", "keepdim": True, "name": n},
        "mean": reduce, "max": reduce, "min": reduce,
        "argmax": {"x": x, "axis": 0, "keepdim": True, "dtype": "int32", "name": n},
        "reshape": {"x": x, "shape": [3, 2], "name": n}, "transpose": {"x": x, "perm": [1, 0], "name": n},
        "squeeze": {"x": v.label, "axis": 1, "name": n}, "unsqueeze": {"x": x, "axis": 0, "name": n},
        "flatten": {"x": x, "start_axis": 0, "stop_axis": 1, "name": n},
        "concat": {"x": [x, y], "axis": 1, "name": n}, "stack": {"x": [x, y], "axis": 1, "name": n},
        "split": {"x": x, "num_or_sections": [1, -1], "axis": 1, "name": n},
        "expand": {"x": v.label, "shape": [2, 3], "name": n}, "tile": {"x": x, "repeat_times": [2, 1], "name": n},
        "gather": {"x": x, "index": v.i, "axis": 0, "name": n}, "cast": {"x": x, "dtype": "float64"},
        "full": {"shape": [2], "fill_value": 1.5, "dtype": "float64", "name": n},
        "zeros": {"shape": [2], "dtype": "int64", "name": n}, "ones": {"shape": [2], "dtype": n, "name": n},
        "arange": {"start": 0, "end": 4, "step": 2, "dtype": "int64", "name": n},
        "tril": {"x": x, "diagonal": 0, "name": n}, "triu": {"x": x, "diagonal": 1, "name": n},
        "cumsum": {"x": x, "axis": 1, "dtype": n, "name": n},
        "static.Program": {}, "static.Scope": {}, "static.global_scope": {}, "static.default_main_program": {},
        "static.default_startup_program": {},
        "static.program_guard": {"main_program": static.Program(), "startup_program": static.Program()},
        "static.data": {"name": "new", "shape": [None, -1, 2], "dtype": "int64", "lod_level": 0},
        "static.InputSpec": {"shape": [None, 2], "dtype": "float32", "name": "spec"},
        "static.create_parameter": {"shape": [2], "dtype": "float32", "name": n, "attr": n, "is_bias": False,
                                    "default_initializer": n},
        "static.append_backward": {"loss": v.loss, "parameter_list": [v.w], "no_grad_set": {x}, "callbacks": n},
        "static.gradients": {"targets": [v.loss], "inputs": [v.w], "target_gradients": n, "no_grad_set": n},
        "static.Executor": {"place": paddle.CPUPlace()}, "static.BuildStrategy": {},
        "static.CompiledProgram": {"program_or_graph": static.Program(), "build_strategy": static.BuildStrategy()},
        "static.scope_guard": {"scope": static.Scope()}, "static.cpu_places": {"device_count": 2},
        "static.cuda_places": {"device_ids": [0]}, "static.name_scope": {"prefix": n},
        "static.Print": {"input": x, "first_n": 0, "message": "m", "summarize": 3, "print_tensor_name": True,
                         "print_tensor_type": True, "print_tensor_shape": True, "print_tensor_layout": True,
                         "print_tensor_lod": True, "print_phase": "both"},
        "static.nn.fc": {"x": x, "size": 3, "num_flatten_dims": 1, "weight_attr": n, "bias_attr": False,
                         "activation": "tanh", "name": n},
        "static.amp.fp16_guard": {}, "base.unique_name.guard": {"new_generator": "prefix_"},
        "nn.Linear": {"in_features": 3, "out_features": 2, **attrs}, "nn.GELU": {"approximate": True, "name": n},
        "nn.Softmax": {"axis": -1, "name": n},
        "nn.Dropout": {"p": 0.5, "axis": n, "mode": "upscale_in_train", "name": n},
        "nn.LayerNorm": {"normalized_shape": [3], "epsilon": 1e-5, **attrs},
        "nn.Embedding": {"num_embeddings": 3, "embedding_dim": 2, "padding_idx": n, "sparse": False, "weight_attr": n,
                         "name": n},
        "nn.LayerList": {"sublayers": [paddle.nn.ReLU()]}, "nn.MSELoss": {"reduction": "mean"},
        "nn.CrossEntropyLoss": {"weight": n, "ignore_index": -100, "reduction": "mean", "soft_label": False, "axis": -1,
                                "use_softmax": True, "label_smoothing": 0.0, "name": n},
        "nn.initializer.Constant": {"value": 1.0}, "nn.initializer.Assign": {"value": [1.0], "name": n},
        "nn.initializer.Normal": {"mean": 0.0, "std": 1.0, "name": n},
        "nn.initializer.TruncatedNormal": {"mean": 0.0, "std": 1.0, "a": -2.0, "b": 2.0, "name": n},
        "nn.initializer.Uniform": {"low": -1.0, "high": 1.0, "name": n},
        "nn.ClipGradByGlobalNorm": {"clip_norm": 1.0, "group_name": "default_group", "auto_skip_clip": False},
        "nn.ClipGradByNorm": {"clip_norm": 1.0}, "nn.ClipGradByValue": {"max": 1.0, "min": -1.0},
        "nn.functional.gelu": {"x": x, "approximate": True, "name": n},
        "nn.functional.softmax": {"x": x, "axis": -1, "dtype": "float64", "name": n},
        "nn.functional.log_softmax": {"x": x, "axis": -1, "dtype": n, "name": n},
        "nn.functional.dropout": {"x": x, "p": 0.5, "axis": n, "training": True, "mode": "upscale_in_train", "name": n},
        "nn.functional.layer_norm": {"x": x, "normalized_shape": [3], "weight": v.scale, "bias": v.shift,
                                     "epsilon": 1e-5, "name": n},
        "nn.functional.embedding": {"x": v.i, "weight": v.w, "padding_idx": 0, "sparse": False, "name": n},
        "nn.functional.cross_entropy": {
            "input": x, "label": v.label, "weight": v.scale, "ignore_index": -1, "reduction": "sum",
            "soft_label": False, "axis": -1, "use_softmax": True, "label_smoothing": 0.1, "name": n},
        "nn.functional.softmax_with_cross_entropy": {
            "logits": x, "label": v.label, "soft_label": False, "ignore_index": -100, "numeric_stable_mode": True,
            "return_softmax": True, "axis": -1},
        "nn.functional.mse_loss": {"input": x, "label": y, "reduction": "sum", "name": n},
        "nn.functional.square_error_cost": {"input": x, "label": y},
        "nn.functional.linear": {"x": x, "weight": v.w, "bias": v.bias, "name": n},
        "optimizer.SGD": lr | tail | {"multi_precision": False, "name": n},
        "optimizer.Momentum": lr | {"momentum": 0.9, "parameters": n, "use_nesterov": True, "weight_decay": n,
                                    "grad_clip": n, "multi_precision": False, "rescale_grad": 1.0,
                                    "use_multi_tensor": False, "name": n},
        "optimizer.Adam": lr | betas | tail | {"lazy_mode": False, "multi_precision": False, "use_multi_tensor": False,
                                               "name": n},
        "optimizer.AdamW": lr | betas | {"parameters": n, "weight_decay": 0.1, "lr_ratio": n,
                                         "apply_decay_param_fun": n, "grad_clip": n, "lazy_mode": False,
                                         "multi_precision": False, "name": n},
        "optimizer.lr.NoamDecay": {"d_model": 8, "warmup_steps": 2, **lr, **end},
        "optimizer.lr.StepDecay": {**lr, "step_size": 2, "gamma": 0.5, **end},
        "optimizer.lr.MultiStepDecay": {**lr, "milestones": [2, 3], "gamma": 0.5, **end},
        "optimizer.lr.ExponentialDecay": {**lr, "gamma": 0.5, **end},
        "optimizer.lr.PolynomialDecay": {**lr, "decay_steps": 3, "end_lr": 0.0, "power": 2.0, "cycle": True, **end},
        "optimizer.lr.CosineAnnealingDecay": {**lr, "T_max": 3, "eta_min": 0.0, **end},
        "optimizer.lr.LinearWarmup": {**lr, "warmup_steps": 3, "start_lr": 0.0, "end_lr": 0.1, **end},
        "regularizer.L1Decay": {"coeff": 0.1}, "regularizer.L2Decay": {"coeff": 0.1},
    }  # fmt: skip


def test_every_name_takes_the_arguments_of_paddle() -> None:
    names, wrong = Names(), []
    for path, arguments in calls(names).items():
        found: Any = paddle
        for part in path.split("."):
            found = getattr(found, part)
        try:
            found(**arguments)
            taken = list(inspect.signature(found).parameters)[: len(arguments)]
            if taken != list(arguments):
                wrong.append(f"{path} takes {taken}, Paddle {list(arguments)}")
        except Exception as problem:
            wrong.append(f"{path}: {type(problem).__name__} {problem}")
    assert not wrong, "\n".join(wrong)
