"""Random programs in float32 that end in one number, to be cast and differentiated."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from minigraph.errors import ProgramError
from minigraph.program import Program, Variable, unique_name
from minigraph.program.backward import append_backward
from minigraph.static.amp import cast_model_to_fp16
from minigraph.types import FLOATS, bfloat16, float16, float32
from tests.support import random_programs
from tests.support.random_programs import _Net

LEVELS = [("O1", "float16"), ("O1", "bfloat16"), ("O2", "float16"), ("O2", "bfloat16"), ("OD", "bfloat16")]


class MixedProgram(_Net):
    """A program of `random_programs` in float32, whose loss is the mean of what would be fetched.

    refusal  why it has no gradients: a layer overwrote what one reads, or the loss depends on no parameter
    results  names of what is fetched: the values that the program shows, the loss, gradients of parameters
    """

    refusal = ""

    def emit(self, op_type: str, *inputs: Variable, **attrs: Any) -> Variable:
        if attrs.get("dtype") == "float64":
            attrs["dtype"] = "float32"
        return super().emit(op_type, *inputs, **attrs)

    def finish(self, bare: bool) -> None:
        self.choose = lambda weights: "inference"
        super().finish(bare)
        shown = [self.block.var(n) for n in self.fetches] or [next(reversed(self.block.vars.values()))]
        self.loss = self.g.reduce_mean(next((v for v in shown if v.dtype == float32), self.pool[-1]))

    def cast(self, level: str, dtype: str) -> None:
        cast_model_to_fp16(self.program, None, False, dtype, level)

    def differentiate(self) -> None:
        try:
            pairs = append_backward(self.loss)
        except ProgramError as problem:
            self.refusal, pairs = problem.fact, []
        self.results = list(dict.fromkeys([*self.fetches, self.loss.name, *(g.name for _, g in pairs)]))

    def given(self) -> dict[str, np.ndarray]:
        """Feeds and parameters as both 16-bit types hold them, in the types of the program."""
        arrays = {**self.values, **self.feeds}
        return {
            n: a.astype(bfloat16).astype(float16).astype(self.block.var(n).dtype) if a.dtype in FLOATS else a
            for n, a in arrays.items()
        }


def mixed_program(seed: int, level: str = "", dtype: str = "") -> MixedProgram:
    """The program of `seed` with gradients, cast before where a level is given; the same for each level."""
    lifted, random_programs.float64 = random_programs.float64, float32
    try:
        with unique_name.guard():
            net = MixedProgram(random.Random(seed), seed)
            for i in range(net.r.randint(2, 7)):
                net.r = random.Random(f"{seed}:{i}")
                net.layer(False)
            net.r = random.Random(f"{seed}:end")
            net.finish(False)
    finally:
        random_programs.float64 = lifted
    assert isinstance(net.program, Program)
    if level:
        net.cast(level, dtype)
    net.differentiate()
    return net
