"""The wheel minigraph-kernels: machine code of the kernels of README's rows, so that their first step compiles nothing.

    python -m bench.shipped_kernels [--gpus h200,a100] [--rows mlp]     writes dist/minigraph_kernels-*.whl

Needs NVRTC and no GPU. minigraph finds the package where it is installed (kernels/cuda/record/compile.py). For programs
of your own: `minigraph compile train.py --out minigraph_kernels`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import minigraph as mg
from minigraph.kernels.cuda.record.bindings import nvrtc

from .gpt2 import Network, row
from .gpu_gpt2 import SIZES
from .gpu_steps import ROWS, StepRow
from .gpu_steps_arms import built, cast

ROOT = Path(__file__).parent.parent
PROJECT = """
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"
[project]
name = "minigraph-kernels"
version = "{version}"
description = "Machine code of minigraph's kernels for {gpus}, by CUDA {cuda}"
requires-python = ">=3.11"
[tool.setuptools.packages.find]
include = ["minigraph_kernels"]
[tool.setuptools.package-data]
minigraph_kernels = ["*"]
"""


def rows() -> Iterator[StepRow]:
    """README's steps, and the small GPT whose first step is measured."""
    yield from ROWS
    yield row("first", "first", Network(12, 768, 12, 16))
    for name, (title, network) in SIZES.items():
        yield row(name, title, network)


def ship(one: StepRow, gpu: str, folder: Path) -> int:
    """Write the kernels of a row's step and of its start-up program; how many."""
    made = built(mg, one, one.drop)
    batch = cast(one.batch(np.random.default_rng(0)), mg.types.as_dtype(one.dtype))
    steps: list[tuple[Any, dict[str, Any]]] = [(made.main, batch), (made.startup, {})]
    count = 0
    for program, feed in steps:
        compiled = mg.static.CompiledProgram(program, build_strategy=mg.static.BuildStrategy.all())
        count += compiled.kernels(feed, [], gpu=gpu).compile(folder)
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", default="h200,a100")
    parser.add_argument("--rows", default="", help="those whose name begins so")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "minigraph_kernels"
        package.mkdir()
        (package / "__init__.py").write_text('"""Machine code that minigraph looks for by name."""\n')
        for gpu in asked.gpus.split(","):
            for one in rows():
                if one.name.startswith(asked.rows):
                    print(f"{gpu} {one.name}: {ship(one, gpu, package)} kernels", flush=True)
        major = nvrtc().nvrtcVersion()[1]
        text = PROJECT.format(version=f"{mg.__version__}+cuda{major}", gpus=asked.gpus, cuda=major)
        (Path(folder) / "pyproject.toml").write_text(text)
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(ROOT / "dist")]
        subprocess.run([*pip, folder], check=True)


if __name__ == "__main__":
    main()
