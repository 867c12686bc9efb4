"""Records the public names of Paddle: `python -m tests.paddle.record_names` where paddlepaddle==2.6.2 is installed.

Writes minigraph/paddle_names/paddle_2_6_2.json. A namespace that says in `__all__` what is public is taken at its word;
of the others every name that is a class or a function of Paddle counts, and of classes every public member.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

COMMA = ",\n"
PAGE = Path(__file__).parents[2] / "minigraph" / "paddle_names" / "paddle_2_6_2.json"
SAID = (
    "", "amp", "device", "incubate", "io", "linalg", "metric", "nn", "nn.functional", "nn.initializer", "optimizer",
    "optimizer.lr", "regularizer", "static", "static.nn", "utils", "utils.unique_name",
)  # fmt: skip
FOUND = ("base", "base.framework", "framework", "reader", "static.amp")
CLASSES = {
    "Variable": "static.Variable", "Program": "static.Program", "Block": "base.framework.Block",
    "Operator": "base.framework.Operator", "Executor": "static.Executor", "BuildStrategy": "static.BuildStrategy",
    "ExecutionStrategy": "static.ExecutionStrategy", "Layer": "nn.Layer", "Optimizer": "optimizer.Optimizer",
}  # fmt: skip
MODULES = (  # that users name, although no `__all__` has them
    "amp audio autograd base callbacks dataset device distributed distribution fft framework geometric hapi hub"
    " incubate inference io jit linalg metric nn onnx optimizer profiler quantization reader regularizer signal sparse"
    " static sysconfig tensor text utils version vision"
)
BESIDES = {
    "": MODULES + " CustomPlace IPUPlace XPUPlace get_cudnn_version get_device set_device is_compiled_with_cinn"
    " is_compiled_with_cuda is_compiled_with_custom_device is_compiled_with_distribute is_compiled_with_ipu"
    " is_compiled_with_rocm is_compiled_with_xpu inverse cholesky",
    "base": "backward core data_feeder dygraph executor framework initializer io layers reader unique_name",
    "nn": "clip functional initializer quant utils", "device": "cuda xpu", "framework": "core",
    "static": "Operator Parameter Scope amp io nn", "optimizer": "lr",
    "tensor": "array_length array_read array_write create_array create_tensor",
    "utils": "cpp_extension dlpack download unique_name",
    "BuildStrategy": "fuse_resunit",  # of 3.x
    "ExecutionStrategy": "use_cuda", "Variable": "grad pin_memory tolist",  # of tensors in dynamic mode
}  # fmt: skip


def reached(root: Any, path: str) -> Any:
    """`paddle.nn.functional` for nn.functional."""
    for name in path.split(".") if path else ():
        root = getattr(root, name)
    return root


def is_of_paddle(value: Any) -> bool:
    """A class or a function that Paddle defines, not one that it imported from elsewhere."""
    shaped = inspect.isclass(value) or inspect.isroutine(value)
    return shaped and (getattr(value, "__module__", None) or "paddle").startswith("paddle")


def names(paddle: Any) -> dict[str, list[str]]:
    """{namespace: its public names in order}"""
    found = {path: set(reached(paddle, path).__all__) for path in SAID} | {"tensor": set()}
    for path in FOUND:
        space = reached(paddle, path)
        found[path] = {n for n in dir(space) if not n.startswith("_") and is_of_paddle(getattr(space, n))}
    for name, path in CLASSES.items():
        found[name] = {n for n in dir(reached(paddle, path)) if not n.startswith("_")}
    for path, more in BESIDES.items():
        found[path] |= set(more.split())
    return {path: sorted(found[path]) for path in sorted(found)}


def main() -> None:
    import paddle  # pyright: ignore[reportMissingImports]  # is there in a job of its own

    paddle.enable_static()
    rows = [f'    "{path}": {json.dumps(" ".join(row))}' for path, row in names(paddle).items()]
    head = f'{{\n  "paddle": "{paddle.__version__}",\n  "made_by": "python -m tests.paddle.record_names",\n'
    PAGE.write_text(f'{head}  "names": {{\n{COMMA.join(rows)}\n  }}\n}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
