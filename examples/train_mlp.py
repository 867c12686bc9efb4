"""Train an MLP on handwritten digits, look at the program before and after fusion, save it and predict.

    python examples/train_mlp.py                    fused, float32
    python examples/train_mlp.py --no-fuse          the same loss curve without the rewrite
    python examples/train_mlp.py --dtype float64    the two curves agree to 1e-10

out/report.html says that relu was not fused, and why; one word in mlp() mends that.

The data are the 1797 images of 8 x 8 pixels that come with scikit-learn.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
import numpy as np
from sklearn.datasets import load_digits
from tqdm import tqdm

import minigraph as mg

BATCH = 64
VALIDATION = 360  # images that training never sees


def main() -> None:
    options = parse_arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    mg.enable_static()
    mg.set_default_dtype(options.dtype)
    training, validation = load_data(options.dtype)

    network = mg.static.Program("mlp")
    startup = mg.static.Program("mlp_startup")
    network.random_seed = startup.random_seed = options.seed
    with mg.static.program_guard(network, startup):
        images = mg.static.data("images", [None, 64])
        digits = mg.static.data("digits", [None, 1], "int64")
        scores, watched = mlp(images)
        loss = mg.nn.functional.cross_entropy(scores, digits)
        inference = network.clone(for_test=True)  # before minimize: forward only, dropout off
        rate = mg.optimizer.lr.CosineAnnealingDecay(3e-3, T_max=options.epochs)
        mg.optimizer.AdamW(rate, weight_decay=0.01).minimize(loss)

    strategy = mg.static.BuildStrategy()
    strategy.fuse_gemm_epilogue = options.fuse
    strategy.debug_graphviz_path = str(options.out / "mlp.dot")  # mlp_before.dot and mlp_after.dot
    compiled = mg.static.CompiledProgram(network, build_strategy=strategy)

    exe = mg.static.Executor(mg.CPUPlace())
    exe.run(startup)
    shuffle = np.random.default_rng(options.seed)
    history: list[tuple[float, float]] = []  # mean training loss and validation accuracy of each epoch
    start = time.perf_counter()
    progress = tqdm(range(options.epochs), unit="epoch", disable=None)  # silent where no terminal reads it
    for _ in progress:
        losses, zeros = [], []
        for x, y in batches(*training, shuffle):
            value, looked_at = exe.run(compiled, feed={"images": x, "digits": y}, fetch_list=[loss, watched])
            losses.append(float(value))
            zeros.append(np.mean(looked_at <= 0))
        rate.step()
        accuracy = evaluate(exe, inference, scores.name, *validation)
        history.append((float(np.mean(losses)), accuracy))
        progress.set_postfix(loss=f"{history[-1][0]:.4f}", accuracy=f"{accuracy:.1%}")
    seconds = time.perf_counter() - start

    print(compiled.explain())
    write_dumps(options.out, compiled)
    compiled.report(options.out / "report.html", {"images": [BATCH, 64], "digits": [BATCH, 1]}, place=mg.CPUPlace())
    write_history(options.out, history)
    save_and_reload(options.out, exe, inference, scores.name, *validation)
    print(f"{options.epochs} epochs in {seconds:.1f} s, validation accuracy {history[-1][1]:.2%}")
    print(f"relu gave {np.mean(zeros):.0%} zeros in the last epoch")
    print(f"in {options.out}/: {', '.join(sorted(path.name for path in options.out.iterdir()))}")
    print(f"open {options.out}/report.html in a browser: every rewrite, and what was refused, with reasons")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fuse", action=argparse.BooleanOptionalAction, default=True, help="fuse_gemm_epilogue")
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for what is written")
    return parser.parse_args()


def load_data(dtype: str) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """(training images and digits, validation images and digits), pixels from 0 to 1."""
    pixels, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(pixels))
    images, digits = (pixels[order] / 16).astype(dtype), digits[order].astype("int64")[:, None]
    return (images[VALIDATION:], digits[VALIDATION:]), (images[:VALIDATION], digits[:VALIDATION])


def mlp(images: mg.Variable) -> tuple[mg.Variable, mg.Variable]:
    """64 pixels -> (10 scores, what tells how many zeros relu gives)."""
    x = mg.nn.functional.gelu(mg.nn.Linear(64, 256)(images))
    x = mg.nn.Dropout(0.2)(x)
    before = mg.nn.Linear(256, 128)(x)
    after = mg.nn.functional.relu(before)
    watched = before  # `after` tells the same, and lets relu be fused
    return mg.nn.Linear(128, 10)(after), watched


def batches(
    images: np.ndarray, digits: np.ndarray, shuffle: np.random.Generator
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """All images once, in random order; the last batch is smaller."""
    order = shuffle.permutation(len(images))
    for start in range(0, len(images), BATCH):
        chosen = order[start : start + BATCH]
        yield images[chosen], digits[chosen]


def evaluate(
    exe: mg.static.Executor, program: mg.static.Program, scores: str, images: np.ndarray, digits: np.ndarray
) -> float:
    """The share of images whose highest score is the right digit's."""
    feed = {"images": images, "digits": digits}
    (values,) = exe.run(program, feed=feed, fetch_list=[scores])
    return float(np.mean(values.argmax(axis=1) == digits[:, 0]))


def save_and_reload(
    out: Path, exe: mg.static.Executor, program: mg.static.Program, scores: str, images: np.ndarray, digits: np.ndarray
) -> None:
    """Weights to a file and back into an empty scope; both predict the same."""
    mg.static.save(program, str(out / "mlp"))
    trained = evaluate(exe, program, scores, images, digits)
    with mg.static.scope_guard(mg.static.Scope()):
        mg.static.load(program, str(out / "mlp"))
        reloaded = evaluate(exe, program, scores, images, digits)
    if reloaded != trained:
        raise SystemExit(f"reloaded weights reach {reloaded:.2%}, the trained ones {trained:.2%}")
    print(f"reloaded weights predict {reloaded:.2%} of {len(images)} validation images right")


def write_dumps(out: Path, compiled: mg.static.CompiledProgram) -> None:
    (out / "before.txt").write_text(f"{compiled.before}\n", encoding="utf-8")
    (out / "after.txt").write_text(f"{compiled.after}\n", encoding="utf-8")
    (out / "diff.txt").write_text(f"{compiled.diff()}\n", encoding="utf-8")


def write_history(out: Path, history: list[tuple[float, float]]) -> None:
    """loss_accuracy.csv, and the same as a picture."""
    rows = [f"{epoch},{loss!r},{accuracy!r}" for epoch, (loss, accuracy) in enumerate(history, 1)]
    (out / "loss_accuracy.csv").write_text("\n".join(["epoch,loss,accuracy", *rows, ""]), encoding="utf-8")
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, left = plt.subplots(figsize=(7, 4))
    right = left.twinx()
    epochs = range(1, len(history) + 1)
    left.semilogy(epochs, [loss for loss, _ in history], color="tab:blue")
    right.plot(epochs, [accuracy for _, accuracy in history], color="tab:orange")
    left.set(xlabel="epoch", ylabel="training loss (blue)")
    right.set(ylabel="validation accuracy (orange)", ylim=(0.8, 1.0))
    figure.tight_layout()
    figure.savefig(out / "loss_accuracy.png", dpi=150)


if __name__ == "__main__":
    main()
