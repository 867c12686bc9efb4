"""Train GPT-2's architecture on the source text of Python's standard library, and let it write Python.

    python examples/train_gpt.py                  2 layers, about a minute on a CPU
    python examples/train_gpt.py --size gpt2      124 million parameters, for one GPU, with --amp=O2 in bfloat16
    python examples/train_gpt.py --no-fuse        the same curve without rewrites
    python examples/train_gpt.py --amp=O1 --amp-dtype=float16      mixed precision, see docs/mixed_precision.md
    python examples/train_gpt.py --resume         go on from the last checkpoint in --out

It prints bits per byte of files that training never sees, beside what lzma needs for them.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from python_text import Vocabulary, lzma_bits, python_source, vocabulary
from tqdm import tqdm

import minigraph as mg
from minigraph.nn import functional as F

CHECKED = 16  # batches of a validation


@dataclass
class Size:
    """A network, and what is fed to it: `accumulate` batches make one update."""

    layers: int
    heads: int
    width: int
    block: int
    batch: int
    vocabulary: int
    steps: int
    rate: float
    accumulate: int = 1
    dropout: float = 0.0
    megabytes: float = 1.0


SIZES = {
    "laptop": Size(2, 4, 64, 64, 16, 1024, 600, 3e-3),
    "small": Size(6, 6, 384, 256, 16, 4096, 3000, 1e-3, dropout=0.1, megabytes=8.0),
    "gpt2": Size(12, 12, 768, 1024, 8, 50257, 5000, 6e-4, accumulate=8, dropout=0.1, megabytes=32.0),
}
NETWORK = ("layers", "heads", "width", "block", "vocabulary")  # what a checkpoint fits, with TYPES
TYPES = ("dtype", "amp", "amp_dtype")
DATA = ("batch", "accumulate", "megabytes", "dropout", "steps", "rate")  # what makes it go on with the same curve


def main() -> None:
    options, size = parse_arguments()
    place = mg.CUDAPlace(0) if mg.cuda.is_available() else mg.CPUPlace()
    if options.amp is None:
        large = options.size == "gpt2" and options.dtype == "float32" and place != mg.CPUPlace()
        options.amp = "O2" if large else "O0"
    if options.amp != "O0" and place == mg.CPUPlace():
        print(f"--amp={options.amp} on a CPU is for trying: it computes {options.amp_dtype} in float32 and rounds")
    mg.enable_static()
    mg.set_default_dtype(options.dtype)
    training, validation = python_source(int(size.megabytes * 1e6), options.text)
    words = vocabulary(training, size.vocabulary)
    size.vocabulary = len(words)
    parts = [words.encode(text) for text in (training, validation)]
    for name, part in zip(("training", "validation"), parts, strict=True):
        if len(part) <= size.block * size.batch:
            raise SystemExit(
                f"the {name} text has {len(part)} numbers, a batch needs {size.batch} blocks of {size.block} and one"
                " more: give more text, or smaller --block and --batch"
            )
    try:
        training_run = Training(options, size, parts, place)
    except mg.MinigraphError as problem:
        raise SystemExit(f"no such network: {problem}") from None
    if options.resume:
        training_run.resume()
    training_run.run(words)
    bits, packed = training_run.history[-1]["bits"], lzma_bits(training, validation)
    print(f"validation: {bits:.3f} bits per byte after {training_run.step} steps; lzma needs {packed:.3f}")
    print(f"sampled:\n{sample(training_run, words, 'def ', options.sample)}")
    plot(options.out / "train_gpt.png", training_run.history, packed)


def parse_arguments() -> tuple[argparse.Namespace, Size]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=list(SIZES), default="laptop")
    for name, kind in Size.__annotations__.items():
        parser.add_argument(f"--{name}", type=float if kind == "float" else int, help="instead of that of --size")
    parser.add_argument("--fuse", action=argparse.BooleanOptionalAction, default=True, help="BuildStrategy.all()")
    parser.add_argument("--recompute", action="store_true", help="less memory, more time")
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    amp = {"choices": ["O0", "OD", "O1", "O2"], "type": str.upper}
    parser.add_argument("--amp", **amp, help="level of mixed precision; O2 for --size=gpt2 on a GPU, else O0: none")
    parser.add_argument("--amp-dtype", choices=["bfloat16", "float16"], default="bfloat16", help="of --amp")
    parser.add_argument("--text", type=Path, help="a file to learn instead of the standard library")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --out")
    parser.add_argument("--stop", type=int, help="stop after so many steps, with a checkpoint")
    parser.add_argument("--check", type=int, default=100, help="steps from one validation and checkpoint to the next")
    parser.add_argument("--sample", type=int, default=200, help="numbers that are drawn at the end")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for what is written")
    options = parser.parse_args()
    chosen = {name: value for name in Size.__annotations__ if (value := getattr(options, name)) is not None}
    for name, value in {**chosen, "check": options.check, "stop": options.stop or 1}.items():
        if value < 0 or (value == 0 and name != "dropout"):
            parser.error(f"--{name} must be positive, is {value}")
    if options.dtype == "float64" and options.amp not in (None, "O0"):
        parser.error(f"--amp={options.amp} casts float32 to {options.amp_dtype}; it cannot go with --dtype=float64")
    options.out.mkdir(parents=True, exist_ok=True)
    return options, Size(**{**asdict(SIZES[options.size]), **chosen})


def gpt(size: Size, words: mg.Variable) -> mg.Variable:
    """Scores [rows, vocabulary] of the number behind each of `words` [batch, block]."""
    drawn = mg.ParamAttr(initializer=mg.nn.initializer.Normal(0.0, 0.02))
    table = mg.nn.Embedding(size.vocabulary, size.width, weight_attr=drawn)
    places = mg.nn.Embedding(size.block, size.width, weight_attr=drawn)
    x = F.dropout(table(words) + places(mg.arange(size.block)), size.dropout)
    layer = mg.nn.TransformerEncoderLayer(
        size.width, size.heads, 4 * size.width, size.dropout, lambda x: F.gelu(x, True), normalize_before=True,
        attn_dropout=0.0, act_dropout=0.0, weight_attr=drawn,
    )  # fmt: skip
    causal = mg.triu(mg.full([size.block, size.block], -math.inf), 1)
    hidden = mg.nn.TransformerEncoder(layer, size.layers, mg.nn.LayerNorm(size.width))(x, causal)
    return mg.matmul(mg.reshape(hidden, [-1, size.width]), table.weight, transpose_y=True)


class Training:
    """A network on its way: programs, place in the data, and what was measured."""

    def __init__(self, options: argparse.Namespace, size: Size, parts: list[np.ndarray], place: Any) -> None:
        self.options, self.size, self.place, self.step = options, size, place, 0
        self.history: list[dict[str, float]] = []
        self.loader = mg.io.DataLoader(
            Blocks(parts[0], size.block), batch_size=size.batch, shuffle=True, drop_last=True, seed=options.seed
        )
        self.batches = endless(self.loader)
        self.checked = list(mg.io.DataLoader(Blocks(parts[1], size.block), batch_size=size.batch, drop_last=True))
        self.checked = self.checked[:CHECKED]
        self.network, startup = mg.static.Program("gpt"), mg.static.Program("gpt_startup")
        self.network.random_seed = startup.random_seed = options.seed
        with mg.static.program_guard(self.network, startup), mg.utils.unique_name.guard():
            words = mg.static.data("words", [size.batch, size.block + 1], "int64")
            losses = F.cross_entropy(gpt(size, words[:, :-1]), mg.reshape(words[:, 1:], [-1]), reduction="none")
            self.loss = mg.mean(losses)
            self.minimize()
            self.test, self.losses = self.network.clone(for_test=True), losses.name
        strategy = mg.static.BuildStrategy.all() if options.fuse else mg.static.BuildStrategy()
        strategy.recompute = options.recompute
        self.compiled = mg.static.CompiledProgram(self.network, strategy)
        self.exe = mg.static.Executor(place)
        self.exe.prepare(self.compiled, fetch_list=[self.loss])  # a GPU's kernels are compiled meanwhile
        self.exe.run(startup)

    def minimize(self) -> None:
        """AdamW with warm-up and cosine, clipped; matrices decay; `accumulate` batches make an update."""
        size = self.size
        warm = max(1, size.steps // 20)
        cosine = mg.optimizer.lr.CosineAnnealingDecay(size.rate, max(1, size.steps - warm), eta_min=size.rate / 10)
        self.rate = mg.optimizer.lr.LinearWarmup(cosine, warm, size.rate / warm, size.rate * (1 + 1e-9))
        decays = {p.name for p in self.network.all_parameters() if len(p.shape) > 1}
        adamw = mg.optimizer.AdamW(
            self.rate, beta2=0.95, weight_decay=0.1, apply_decay_param_fun=decays.__contains__,
            grad_clip=mg.nn.ClipGradByGlobalNorm(1.0),
        )  # fmt: skip
        self.optimizer = mg.static.amp.decorate(adamw, level=self.options.amp, dtype=self.options.amp_dtype)
        merged = mg.incubate.optimizer.GradientMergeOptimizer(self.optimizer, size.accumulate)
        (merged if size.accumulate > 1 else self.optimizer).minimize(self.loss)

    def run(self, words: Vocabulary) -> None:
        """Train to the last step, with a validation and a checkpoint now and then."""
        size, options = self.size, self.options
        per_step = size.batch * size.block * size.accumulate
        work = flops_per_token(self.network, size) * per_step
        peak = measured_peak(self.exe, options.dtype, 512 if self.place == mg.CPUPlace() else 8192)
        report = self.compiled.memory_report(fetch_list=[self.loss], place=self.place)
        memory = (report.planned + report.persistable) / 2**20
        last, pace, times = min(size.steps, options.stop or size.steps), "", []
        progress = tqdm(total=last, initial=self.step, unit="step", disable=None)  # silent where no terminal reads it
        while self.step < last:
            start = time.perf_counter()
            values = [self.trained() for _ in range(size.accumulate)]
            self.rate.step()
            self.step += 1
            times.append(time.perf_counter() - start)
            self.history.append({"step": self.step, "loss": float(np.mean(values))})
            progress.update()
            seconds = float(np.median(times[-20:]))
            pace = f"{per_step / seconds:.0f} tokens/s, {memory:.0f} MiB, {work / seconds / peak:.0%} of peak"
            progress.set_postfix_str(f"loss {self.history[-1]['loss']:.3f}, {pace}", refresh=False)
            if self.step % options.check == 0 or self.step == last:
                self.history[-1]["bits"] = self.validate(words)
                self.save()
        progress.close()
        print(f"at the end {pace}" if pace else "no step was left")
        if "bits" not in self.history[-1]:
            self.history[-1]["bits"] = self.validate(words)

    def trained(self) -> float:
        """The loss of the next batch, from which the network has learned."""
        (loss,) = self.exe.run(self.compiled, {"words": next(self.batches)}, [self.loss])
        return float(loss)

    def validate(self, words: Vocabulary) -> float:
        """Bits for each byte of the validation blocks."""
        nats = length = 0.0
        for (batch,) in self.checked:
            (losses,) = self.exe.run(self.test, {"words": batch}, [self.losses])
            nats += float(losses.sum(dtype="float64"))
            length += float(words.lengths[batch[:, 1:]].sum())
        return nats / math.log(2) / length

    def save(self) -> None:
        """The state as files of this step; then train_gpt.json, which names them; then older files go."""
        out, name = self.options.out, f"gpt-{self.step}"
        mg.static.save(self.network, str(out / name))
        facts = {
            "checkpoint": name, "step": self.step, "size": asdict(self.size), "seed": self.options.seed,
            **self.types(), "data": self.loader.state_dict(), "history": self.history,
        }  # fmt: skip
        written = out / "train_gpt.json.new"
        written.write_text(json.dumps(facts), encoding="utf-8")
        written.replace(out / "train_gpt.json")
        for path in out.glob("gpt-*.*"):
            if path.stem != name:
                path.unlink()

    def resume(self) -> None:
        """Go on from the last checkpoint; SystemExit where it is none of this network and this data."""
        path = self.options.out / "train_gpt.json"
        if not path.exists():
            raise SystemExit(f"there is no checkpoint in {self.options.out}: {path.name} is missing")
        facts = json.loads(path.read_text(encoding="utf-8"))
        own = {**asdict(self.size), "seed": self.options.seed, **self.types()}
        kept = {**facts["size"], "amp": "O0", "amp_dtype": None, **facts}
        for what, names in (("network", (*NETWORK, *TYPES)), ("training", (*DATA, "seed"))):
            other = [f"{name} is {kept[name]}, not {own[name]}" for name in names if kept[name] != own[name]]
            if other:
                raise SystemExit(f"{path} is of another {what}: {'; '.join(other)}. Nothing was changed")
        mg.static.load(self.network, str(self.options.out / facts["checkpoint"]))
        self.loader.load_state_dict(facts["data"])
        self.step, self.history = facts["step"], facts["history"]

    def types(self) -> dict[str, str | None]:
        """In which types the network computes: what its checkpoint holds depends on them."""
        chosen = {name: getattr(self.options, name) for name in TYPES}
        return {**chosen, "amp_dtype": None if chosen["amp"] == "O0" else chosen["amp_dtype"]}


class Blocks(mg.io.Dataset):
    """Blocks of `length` numbers, each with the one behind it."""

    def __init__(self, numbers: np.ndarray, length: int) -> None:
        self.numbers, self.length = numbers, length

    def __getitem__(self, index: int) -> np.ndarray:
        return self.numbers[index * self.length : (index + 1) * self.length + 1]

    def __len__(self) -> int:
        return (len(self.numbers) - 1) // self.length


def endless(loader: mg.io.DataLoader) -> Iterator[np.ndarray]:
    """Batches of blocks, epoch after epoch."""
    while True:
        for (words,) in loader:
            yield words


def flops_per_token(network: mg.static.Program, size: Size) -> float:
    """Operations of forward and backward, products only (Chowdhery and others, PaLM, arXiv:2204.02311, appendix B)."""
    products = sum(math.prod(p.shape) for p in network.all_parameters() if len(p.shape) > 1) - size.block * size.width
    return 6 * products + 12 * size.layers * size.width * size.block


def measured_peak(exe: mg.static.Executor, dtype: str, n: int) -> float:
    """Operations in a second that one large product reaches here; shares of peak are shares of this."""
    program = mg.static.Program("peak")
    with mg.static.program_guard(program, mg.static.Program()):
        x = y = mg.full([n, n], 0.5, dtype)
        for _ in range(8):
            y = mg.matmul(y, x) * (1 / n)
        total = mg.sum(y)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        exe.run(program, fetch_list=[total])
        times.append(time.perf_counter() - start)
    return 8 * 2 * n**3 / min(times)


def sample(training: Training, words: Vocabulary, start: str, count: int) -> str:
    """`start` and what the network writes behind it, drawn with its probabilities at temperature 0.8."""
    size = training.size
    program = mg.static.Program("sample")
    with mg.static.program_guard(program, mg.static.Program()), mg.utils.unique_name.guard():
        given = mg.static.data("given", [1, size.block], "int64")
        scores = gpt(size, given)
    program = program.clone(for_test=True)
    training.optimizer.amp_init(training.place, test_program=program, use_fp16_test=True)
    rng = np.random.default_rng(training.options.seed)
    numbers = words.encode(start).tolist()
    for _ in range(count):
        seen = numbers[-size.block :]
        feed = {"given": np.array([seen + [0] * (size.block - len(seen))])}
        (rows,) = training.exe.run(program, feed, [scores.name])
        weights = rows[len(seen) - 1].astype("float64") / 0.8
        weights = np.exp(weights - weights.max())
        numbers.append(int(rng.choice(len(weights), p=weights / weights.sum())))
    return words.decode(numbers)


def plot(path: Path, history: list[dict[str, float]], packed: float) -> None:
    """The loss of training, and bits per byte of validation beside lzma's."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    left.plot([h["step"] for h in history], [h["loss"] for h in history])
    left.set(xlabel="step", ylabel="training loss, nats for each number")
    checked = [h for h in history if "bits" in h]
    right.plot([h["step"] for h in checked], [h["bits"] for h in checked], marker="o")
    right.axhline(packed, color="tab:gray", linestyle="--", label="lzma")
    right.set(xlabel="step", ylabel="validation, bits per byte")
    right.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
