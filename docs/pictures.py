"""The pictures of README and of kernels.md: minigraph's own drawings, made into SVG by Graphviz.

    python docs/pictures.py        needs `dot`: apt-get install graphviz, brew install graphviz

A layer with gelu and its gradients, before and after `fuse_gemm_epilogue`; the launches of AdamW,
before and after `fuse_all_optimizer_ops`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import minigraph as mg
from minigraph.ir.dot import to_dot

FOLDER = Path(__file__).parent / "pictures"


def drawings() -> dict[str, str]:
    """{name of a picture: its text in DOT}"""
    main = mg.static.Program("layer")
    with mg.static.program_guard(main, mg.static.Program()), mg.base.unique_name.guard():
        x = mg.static.data("x", [None, 64])
        out = mg.nn.functional.gelu(mg.nn.Linear(64, 256)(x))
        out_grad = mg.static.data("out@GRAD", [None, 256])
        parameters = main.all_parameters()
        grads = mg.static.gradients([out], parameters, [out_grad])
    strategy = mg.static.BuildStrategy(fuse_gemm_epilogue=True)
    after = mg.static.CompiledProgram(main, strategy).program_for([out, *grads])
    return {"before": to_dot(main), "after": to_dot(after, main), **updates()}


def updates() -> dict[str, str]:
    """The launches that update two linear layers."""
    main = mg.static.Program("updates")
    with mg.static.program_guard(main, mg.static.Program()), mg.base.unique_name.guard():
        x, y = mg.static.data("x", [None, 784]), mg.static.data("y", [None, 1], "int64")
        h = mg.nn.functional.gelu(mg.nn.Linear(784, 1024)(x))
        loss = mg.nn.functional.cross_entropy(mg.nn.Linear(1024, 10)(h), y)
        mg.optimizer.AdamW(1e-3).minimize(loss)
    made = {}
    for name, fused in ("update_before", False), ("update_after", True):
        strategy = mg.static.BuildStrategy(fuse_all_optimizer_ops=fused)
        kernels = mg.static.CompiledProgram(main, strategy).kernels({"x": [256, 784], "y": [256, 1]}, [loss])
        made[name] = kernels.of("adamw", "fused_adamw").to_dot()
    return made


def svg(dot: str) -> str:
    """A drawing as SVG, without Graphviz' version and comments: it is the same on every machine that has its fonts."""
    command = [shutil.which("dot") or "dot", "-Tsvg"]
    made = subprocess.run(command, input=dot, capture_output=True, text=True, check=True)
    return re.sub(r"<!--.*?-->\n?", "", made.stdout, flags=re.DOTALL)


def main() -> int:
    if shutil.which("dot") is None:
        print("dot is not there: install Graphviz (apt-get install graphviz)", file=sys.stderr)
        return 1
    for name, dot in drawings().items():
        (FOLDER / f"{name}.svg").write_text(svg(dot), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
