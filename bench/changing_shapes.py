"""Training with feeds that change their shape: 500 steps, each on one of 50 sizes, drawn at random.

    python -m bench.changing_shapes --place cpu --peers torch
    python -m bench.changing_shapes --place gpu --model block --peers torch,compile

mlp     784-1024-1024-10 with AdamW, batches of 1 to 256 rows
block   a block of GPT-2, width 768, 12 heads, with AdamW, 4 texts of 1 to 1,024 places, float32 in TF32

On a GPU products are TF32; that the arms compute the same is seen on 10 steps without it, before. Every arm runs in a
process of its own, from arrays of the host, which are made before the clock starts, and fetches the loss of each
step; its kernels and library calls are in place (one step of the largest size came before). What counts is the time
of all 500 steps, and the median of a size that was new and of one that had been there. Memory is the peak of the
process (of the card on a GPU) beside that of a process that ran the largest size alone.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from .harness import machine, not_installed, now, versions, write_report

STEPS, SIZES = 500, 50
LARGEST = {"mlp": 256, "block": 1024}
WIDTH, HEADS, TEXTS = 768, 12, 4
COMPARED = 10  # losses of two arms without TF32; later ones part, since training on noise doubles what is rounded
TOLERANCE = 1e-3  # of these, relative to the first loss
Step = Callable[[np.ndarray, np.ndarray], float]


def sizes(model: str, steps: int = STEPS) -> np.ndarray:
    rng = np.random.default_rng(0)
    known = rng.choice(np.arange(1, LARGEST[model] + 1), SIZES, replace=False)
    known[0] = LARGEST[model]
    return rng.choice(known, steps)


def feeds(model: str) -> Callable[[int], tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(1)
    if model == "mlp":
        x, y = rng.random((256, 784), np.float32), rng.integers(0, 10, (256, 1))
        return lambda n: (x[:n].copy(), y[:n].copy())
    x, y = (rng.standard_normal((TEXTS, 1024, WIDTH)).astype(np.float32) for _ in range(2))
    return lambda n: (x[:, :n].copy(), y[:, :n].copy())


def weights(model: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Weight [in, out] and bias of each linear layer, in the order of their use."""
    rng, w = np.random.default_rng(2), WIDTH
    shapes = ((784, 1024), (1024, 1024), (1024, 10)) if model == "mlp" else ((w, 3 * w), (w, w), (w, 4 * w), (4 * w, w))
    return [(rng.normal(size=s, scale=s[0] ** -0.5).astype(np.float32), np.zeros(s[1], np.float32)) for s in shapes]


def network(model: str) -> tuple[list[Any], Any]:
    """(linear layers in the order of their use, loss) in the default program, which trains them."""
    import minigraph as mg

    layers = [mg.nn.Linear(*w.shape) for w, _ in weights(model)]
    if model == "mlp":
        x, y = mg.static.data("x", [None, 784]), mg.static.data("y", [None, 1], "int64")
        h = x
        for layer in layers[:-1]:
            h = mg.nn.functional.relu(layer(h))
        loss = mg.nn.functional.cross_entropy(layers[-1](h), y)
    else:
        x, y = (mg.static.data(name, [TEXTS, None, WIDTH]) for name in "xy")
        norms = [mg.nn.LayerNorm(WIDTH) for _ in range(2)]
        parts = mg.split(layers[0](norms[0](x)), 3, axis=-1)
        q, k, v = (mg.reshape(part, [TEXTS, -1, HEADS, WIDTH // HEADS]) for part in parts)
        attended = mg.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = x + layers[1](mg.reshape(attended, [TEXTS, -1, WIDTH]))
        out = h + layers[3](mg.nn.functional.gelu(layers[2](norms[1](h)), approximate=True))
        loss = mg.mean(mg.square(out - y))
    mg.optimizer.AdamW(1e-3, weight_decay=0.01).minimize(loss)
    return layers, loss


def minigraph_step(model: str, place: str, precise: bool = False) -> Step:
    import minigraph as mg

    mg.enable_static()
    if place == "gpu":
        mg.set_float32_matmul_precision("highest" if precise else "high")
    layers, loss = network(model)
    exe = mg.static.Executor(mg.CUDAPlace(0) if place == "gpu" else mg.CPUPlace())
    exe.run(mg.static.default_startup_program())
    for layer, pair in zip(layers, weights(model), strict=True):
        for parameter, value in zip((layer.weight, layer.bias), pair, strict=True):
            mg.static.global_scope().find_var(parameter.name).get_tensor().set(value)
    program = mg.static.CompiledProgram(
        mg.static.default_main_program(), build_strategy=mg.static.BuildStrategy.all()
    )

    def step(x: np.ndarray, y: np.ndarray) -> float:
        return float(exe.run(program, {"x": x, "y": y}, [loss])[0])

    return step


def torch_step(model: str, place: str, compiled: bool, precise: bool = False) -> Step:
    import torch
    from torch.nn import functional as f

    device = "cuda" if place == "gpu" else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = not precise
    layers = torch.nn.ModuleList(torch.nn.Linear(*w.shape) for w, _ in weights(model))
    for layer, (w, b) in zip(layers, weights(model), strict=True):
        layer.weight.data, layer.bias.data = torch.from_numpy(w.T.copy()), torch.from_numpy(b)
    norms = torch.nn.ModuleList(torch.nn.LayerNorm(WIDTH) for _ in range(2 * (model == "block")))
    parts = torch.nn.ModuleList([layers, norms]).to(device)
    optimizer = torch.optim.AdamW(parts.parameters(), 1e-3, weight_decay=0.01, fused=True)

    def forward(x: Any, y: Any) -> Any:
        if model == "mlp":
            for layer in layers[:-1]:
                x = f.relu(layer(x))
            return f.cross_entropy(layers[-1](x), y[:, 0])
        heads = [p.unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in layers[0](norms[0](x)).chunk(3, -1)]
        h = x + layers[1](f.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))
        return (h + layers[3](f.gelu(layers[2](norms[1](h)), approximate="tanh")) - y).square().mean()

    run = torch.compile(forward, dynamic=True) if compiled else forward

    def step(x: np.ndarray, y: np.ndarray) -> float:
        loss = run(*(torch.from_numpy(a).to(device) for a in (x, y)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def child(arm: str, model: str, place: str, steps: int, precise: bool = False) -> dict[str, Any]:
    """What one process found in so many steps after one of the largest size; `precise` without TF32."""
    if arm == "minigraph":
        step = minigraph_step(model, place, precise)
    else:
        step = torch_step(model, place, arm == "compile", precise)
    given, largest = feeds(model), LARGEST[model]
    batch = given(largest)
    start = time.perf_counter()
    losses, new, old, seen = [step(*batch)], [], [], {largest}
    first = time.perf_counter() - start
    for n in map(int, sizes(model, steps)):
        batch = given(n)
        start = time.perf_counter()
        losses.append(step(*batch))
        (old if n in seen else new).append(time.perf_counter() - start)
        seen.add(n)
    new_ms, old_ms = (round(statistics.median(some or [0]) * 1e3, 4) for some in (new, old))
    return {
        "first_s": round(first, 3), "all_s": round(sum(new + old), 4), "new_ms": new_ms, "old_ms": old_ms,
        "losses": [round(x, 5) for x in losses[:COMPARED]], "mib": round(memory(arm, place), 1),
        "versions": versions(), "gpu": card() if place == "gpu" and arm == "minigraph" else None,
    }  # fmt: skip


def card() -> str:
    """The name of the GPU."""
    import cupy

    return cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()


def memory(arm: str, place: str) -> float:
    """MiB at the peak: of this process, or of what it has of the card."""
    if place == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if arm == "minigraph":
        import cupy

        return cupy.get_default_memory_pool().total_bytes() / 2**20
    import torch

    return torch.cuda.max_memory_reserved() / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.changing_shapes", description=__doc__)
    parser.add_argument("--place", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--model", choices=tuple(LARGEST), default="mlp")
    parser.add_argument("--peers", default="", help="torch,compile")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--precise", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options.child, options.model, options.place, options.steps, options.precise)))
        return
    peers = [p for p in options.peers.split(",") if p]
    if absent := not_installed(peers):
        raise SystemExit(f"changing_shapes cannot run: {absent}")
    arms = ["minigraph", *peers]

    def ask(arm: str, steps: int, *more: str) -> dict[str, Any]:
        words = ["--child", arm, "--place", options.place, "--model", options.model, "--steps", str(steps), *more]
        made = subprocess.run(
            [sys.executable, "-m", "bench.changing_shapes", *words], check=True, stdout=subprocess.PIPE, text=True
        )
        return json.loads(made.stdout.splitlines()[-1])

    check({arm: ask(arm, COMPARED, "--precise")["losses"] for arm in arms})
    found: dict[str, list[dict[str, Any]]] = {arm: [] for arm in arms}
    alone = {arm: ask(arm, 0)["mib"] for arm in arms}
    for turn in range(options.rounds):
        for arm in arms if turn % 2 else reversed(arms):
            found[arm].append(ask(arm, STEPS))
    rows = {arm: {key: statistics.median(run[key] for run in runs) for key in ("first_s", "all_s", "new_ms", "old_ms",
                  "mib")} | {"mib_largest_alone": alone[arm]} for arm, runs in found.items()}  # fmt: skip
    report = {
        "bench": f"changing_shapes_{options.place}_{options.model}",
        "command": f"python -m bench.changing_shapes {' '.join(sys.argv[1:])}",
        "date": now(), "machine": machine(), "gpu": found["minigraph"][0]["gpu"],
        "versions": {k: v for runs in found.values() for k, v in runs[0]["versions"].items()},
        "rows": rows, "runs": found,
    }  # fmt: skip
    write_report(report)
    for arm, row in rows.items():
        print(f"{arm:10} {row}")


def check(found: dict[str, list[float]]) -> None:
    """All arms have the same losses as long as these can be compared."""
    first = found["minigraph"]
    for arm, losses in found.items():
        worst = max(abs(a - b) for a, b in zip(first, losses, strict=True))
        if worst > TOLERANCE * abs(first[0]):
            raise SystemExit(f"minigraph and {arm} do not compute the same: losses differ by {worst:.2g}")


if __name__ == "__main__":
    main()
