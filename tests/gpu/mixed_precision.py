"""GPU checks of mixed precision: trainings near the CPU's, steps that overflow, gradients of several types in lists."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

import numpy as np

import minigraph as mg
from minigraph import nn
from minigraph.types import CUDAPlace
from tests.gpu.check import Check
from tests.support.mixed_training import Training, feeds

EPSILON = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
STEPS = 12


def checks() -> Iterator[Check]:
    for model, level, dtype in itertools.product(("mlp", "attention"), ("O1", "O2"), EPSILON):
        yield Check(f"amp/curve/{model}-{level}-{dtype}", partial(_curve, model, level, dtype), product=True)
    for level, fused, clipped in itertools.product(("O1", "O2"), (False, True), (False, True)):
        name = f"amp/overflow/{level}-{'fused' if fused else 'plain'}{'-clipped' if clipped else ''}"
        yield Check(name, partial(_overflow, level, fused, clipped), product=True)


def _facts(level: str, dtype: str) -> dict[str, object]:
    return {"level": level, "dtype": dtype, "init_loss_scaling": 256.0 if dtype == "float16" else None}


def _curve(model: str, level: str, dtype: str) -> None:
    """Losses of a captured, fused step follow those of float32 on the CPU by roundings of the type."""
    plain = Training(model).curve(STEPS)
    found = Training(model, _facts(level, dtype), place=CUDAPlace(0)).compile().curve(STEPS)
    allowed = 4 * EPSILON[dtype] * (1 + np.arange(STEPS)) * np.maximum(plain, plain.mean())
    assert (np.abs(found - plain) <= allowed).all(), f"{np.max(np.abs(found - plain) / allowed):.3g} of what is allowed"


def _overflow(level: str, fused: bool, clipped: bool) -> None:
    """The bad step changes the scale and the counter of good steps, and no other bit; the next one trains again.

    Parameters of 16 bits are their float32 copies, rounded.
    """
    clip = nn.ClipGradByGlobalNorm(0.5) if clipped else None
    t = Training("mlp", _facts(level, "float16"), lambda: mg.optimizer.AdamW(0.01, grad_clip=clip), CUDAPlace(0))
    (t.compile() if fused else t).start()
    steps = list(feeds("mlp", 5))
    for feed in steps[:3]:  # the second run captures, the third launches
        t.step(feed)
    before = t.states()
    t.step({"x": steps[3]["x"] * 1e5, "y": steps[3]["y"]})
    after = t.states()
    changed = {n for n in before if before[n].tobytes() != after[n].tobytes()}
    assert changed == {"loss_scaling_0", "num_good_steps_0"}, changed
    assert after["loss_scaling_0"] == 0.5 * before["loss_scaling_0"] and after["num_good_steps_0"] == 0
    t.step(steps[4])
    last = t.states()
    trained = {n for n, x in last.items() if x.tobytes() != after[n].tobytes()}
    assert len(trained) > len(before) / 2 and t.number("num_good_steps") == 1
    copies = {n.removesuffix("_fp32_master_0"): x for n, x in last.items() if n.endswith("_fp32_master_0")}
    assert len(copies) == (6 if level == "O2" else 0)
    assert all(last[n].tobytes() == x.astype(last[n].dtype).tobytes() for n, x in copies.items())
