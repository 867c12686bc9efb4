"""Attention over keys that lie in two parts, joined by LogSumExp: one step of ring attention.

    python examples/ring_attention.py

A ring of GPUs holds K and V in parts and passes them on; here both halves are on one device. Result and gradients
are those of attention over all keys.
"""

from __future__ import annotations

import numpy as np

import minigraph as mg

B, S, H, D = 2, 64, 4, 16


def joined(first, second):
    """Attention over the keys of two parts, each given as (out [B, S, H, D], lse [B, H, S])."""
    (out1, lse1), (out2, lse2) = first, second
    share = mg.nn.functional.sigmoid(lse1 - lse2)  # of the first part: exp(lse1) / (exp(lse1) + exp(lse2))
    share = mg.unsqueeze(mg.transpose(share, [0, 2, 1]), -1)
    return out1 * share + out2 * (1 - share)


def whole(q, k, v):
    return mg.ops.memory_efficient_attention(q, k, v)


def in_halves(q, k, v):
    parts = zip(mg.split(k, 2, axis=1), mg.split(v, 2, axis=1), strict=True)
    return joined(*(mg.ops.memory_efficient_attention(q, *part, return_lse=True) for part in parts))


def results(attention, feed):
    """The result for `feed`, and the gradients of the sum of its squares."""
    main = mg.static.Program()
    with mg.static.program_guard(main, mg.static.Program()):
        inputs = [mg.static.data(name, array.shape, array.dtype.name) for name, array in feed.items()]
        for x in inputs:
            x.stop_gradient = False
        out = attention(*inputs)
        gradients = mg.static.gradients(mg.sum(out * out), inputs)
    return mg.static.Executor().run(main, feed, [out, *gradients])


def main() -> None:
    rng = np.random.default_rng(0)
    feed = {name: rng.normal(size=(B, S, H, D)) for name in "qkv"}
    for name, a, b in zip(("out", "dq", "dk", "dv"), results(whole, feed), results(in_halves, feed), strict=True):
        error = np.abs(a - b).max()
        print(f"{name:3} differs by {error:.1e}")
        assert error < 1e-12


if __name__ == "__main__":
    main()
