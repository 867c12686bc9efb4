"""The tables of figures in bench/README.md and README.md, made from bench/results.

`python -m bench.figures` rewrites both. bench/README.md has every row, README.md the eight of HEADLINES.
A row names the file that it comes from. The best peer is the fastest arm of another framework in the same run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from .harness import RESULTS

README, BENCH_README = (folder / "README.md" for folder in (Path(__file__).parents[1], Path(__file__).parent))
BEGIN, END = "<!-- figures: made by python -m bench.figures -->", "<!-- end of figures -->"
PEERS = ("torch", "compile", "jax", "liger")
HOST_US = 20  # asked for: what one run() may keep the host
ATTENTION_PEERS = ("naive", "efficient", "flash", "cudnn")
PR_281 = ("float32 256x1x1024x32", "float32 1x1x1024x32", "float32 1x1x4096x32")
HALVES = tuple(f"{dtype} {shape}" for dtype in ("bfloat16", "float16") for shape in ("4x16x4096", "2x16x16384"))
ATTENTION_ROWS = (*PR_281, *HALVES)
HEADLINES = {  # title of a row -> what README calls it
    "MLP 784-1024-1024-10, batch 256, AdamW, TF32": "training step of an MLP 784-1024-1024-10, batch 256, TF32",
    "MLP 4 x 4096, GELU(tanh), batch 8192, bfloat16, AdamW": "training step of an MLP 4 x 4096, batch 8192, bfloat16",
    "MultiFCLayer 768, 64 x 128, forward + backward, TF32":
        "Paddle's MultiFCLayer, 768 wide, 8,192 rows, both ways, TF32",
    "GPT-2 124 M, batch 16 x 1024, bfloat16, AdamW": "training step of GPT-2, 124 million, 16 x 1024 words, bfloat16",
    "attention bfloat16 4x16x4096x128 causal, forward + backward":
        "causal attention, 4 x 16 heads of 128, length 4096, both ways, bfloat16",
    "V 128256, H 4096, 4096 rows": "last layer and its loss, 128,256 classes, 4,096 rows",
    "AdamW, GPT-2, 148 tensors, 124 M": "AdamW on the parameters of GPT-2, 124 million",
    "MLP step on 2 cores": "training step of the first MLP on 2 cores of a CPU, float32",
}  # fmt: skip
SECTIONS = {  # file of results -> heading
    "gpu_steps": "Whole steps on a GPU",
    "gpu_gpt2": "GPT-2 in mixed precision, level O2",
    "gpu_attention": "Attention",
    "gpu_optimizers": "Parameter updates",
    "gpu_linear_cross_entropy": "The last layer and its loss",
    "compile_time": "Passes and plans",
    "mlp_cpu": "A step on a CPU",
    "optimizer_cpu": "Parameter updates on a CPU",
}
GPT2 = {"GPT-2 124 M, batch 16 x 1024, bfloat16, AdamW": {"ms": 25.0, "MiB": 4800.0, "MiB, recompute": 3000.0}}
RECOMPUTE, FIRST_STEP = 1.25, 2.5  # of the step without it; seconds
TUNED = ("autotuned", "tuned")
SHARES = {"layer norm, 1024-4096": 0.85, "500 tensors": 0.7}  # of the best peer's time, by parts of titles


class Figure(NamedTuple):
    """One row: what was timed, our time, that with autotune, the best peer's, what was asked for; in `unit`.

    tired   our time and the best peer's when the card had no rest (turns.py)
    """

    title: str
    ours: float
    tuned: float | None
    peer: float | None
    peer_name: str
    asked: float | None
    unit: str
    file: str
    tired: tuple[float, float | None] | None = None


def results(name: str, card: str = "") -> dict[str, Any]:
    """A file of results, of an H200 unless a folder for another card is named."""
    path = RESULTS / card / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def median(figure: Any) -> float:
    return float(figure["median"] if isinstance(figure, dict) else figure)


def best_peer(times: dict[str, Any]) -> tuple[float | None, str]:
    """(time, name) of the fastest arm whose name begins with a peer's."""
    found = [(median(t), name) for name, t in times.items() if name.split(",")[0].split()[0] in PEERS]
    return min(found, default=(None, "-"))


def from_times(file: str, asked: dict[str, float], *ours: str, card: str = "") -> Iterator[Figure]:
    """Rows with `milliseconds`; our figure is that of the first arm of `ours` which a row has."""
    for row in results(file, card).get("rows", ()):
        times = row.get("milliseconds", {})
        wanted = row.get("asked") or next((a for part, a in asked.items() if part in row["title"]), None)
        arm = next((a for a in ours if a in times), None)
        if arm is not None:
            tuned = next((median(times[a]) for a in TUNED if a in times), None)
            peer, name = best_peer(times)
            share = next((s for part, s in SHARES.items() if part in row["title"]), None)
            if share and peer is not None:
                wanted = share * peer
            load = row.get("milliseconds_without_rest")
            tired = (median(load[arm]), best_peer(load)[0]) if load else None
            yield Figure(row["title"], median(times[arm]), tuned, peer, name, wanted, "ms", f"{file}.json", tired)


def steps(card: str = "") -> Iterator[Figure]:
    """Times of whole steps, what they need in memory beside inputs, parameters and states, and the host's time."""
    yield from from_times("gpu_steps", {}, "captured", card=card)
    for row in results("gpu_steps", card).get("rows", ()):
        mib = {arm: x for arm, x in row.get("peak_with_workspaces_mib", {}).items() if x is not None}
        peer, name = best_peer(mib)
        if "captured" in mib and peer is not None:
            title = f"{row['title']}: peak of a step"
            yield Figure(title, mib["captured"], mib.get("autotuned"), peer, name, peer, "MiB", "gpu_steps.json")
        host = row.get("host_microseconds_per_run", {})
        if "captured" in host:
            title = f"{row['title']}: the host's time for a step"
            yield Figure(title, median(host["captured"]), None, *best_peer(host), HOST_US, "us", "gpu_steps.json")


def gpt2(card: str = "") -> Iterator[Figure]:
    """A step, also with recompute, and what it needs in memory beside what lasts; first steps in new processes."""
    found, file = results("gpu_gpt2", card), "gpu_gpt2.json"
    for row in found.get("rows", ()):
        asked = GPT2.get(row["title"], {})
        for suffix in ("", ", recompute"):
            arm, peer = f"minigraph{suffix}", best_peer(row["milliseconds"])
            ours, load = median(row["milliseconds"][arm]), row["milliseconds_without_rest"]
            wanted = asked.get(f"ms{suffix}", RECOMPUTE * median(row["milliseconds"]["minigraph"]))
            tired = (median(load[arm]), best_peer(load)[0])
            yield Figure(f"{row['title']}{suffix}", ours, None, *peer, wanted, "ms", file, tired)
            mib = {name: peaks[1] for name, peaks in row["peak_mib"].items() if peaks[1] is not None}
            title = f"{row['title']}{suffix}: peak of a step"
            yield Figure(title, mib[arm], None, *best_peer(mib), asked.get(f"MiB{suffix}"), "MiB", file)
    first = found.get("first_step_seconds", {})
    peers = {name: seconds for name, seconds in first.items() if ", " not in name and not isinstance(seconds, str)}
    for arm, how in (("minigraph", "plan prepared"), ("minigraph, not prepared", "plan not prepared")):
        if arm in first:
            title = f"first step of GPT-2 124 M in a new process, nothing compiled before, {how}"
            yield Figure(title, first[arm], None, *best_peer(peers), FIRST_STEP, "s", file)


def attention(card: str = "") -> Iterator[Figure]:
    """Asked for: half the time of PyTorch's memory-efficient kernel in float32, cuDNN's time in 16 bits."""
    for row in results("gpu_attention", card).get("rows", ()):
        times = row.get("milliseconds", {})
        peers = {name: median(times[name]) for name in ATTENTION_PEERS if name in times}
        if not peers or not any(row["title"].startswith(shown) for shown in ATTENTION_ROWS):
            continue
        asked = peers.get("cudnn") or (peers["naive"] if "1x1x" in row["title"] else 0.5 * peers["efficient"])
        best = min(peers, key=peers.__getitem__)
        job = {"fwd+bwd": "forward + backward"}.get(row["job"], row["job"])
        title = f"attention {row['title']}, {job}"
        ours = median(times["minigraph"])
        yield Figure(title, ours, None, peers[best], f"torch, {best}", asked, "ms", "gpu_attention.json")
        kept = row.get("beside_gradients_MiB", {})
        if row["job"] == "fwd+bwd" and "cudnn" in kept:
            title += ", beside inputs and gradients"
            theirs = kept["cudnn"]
            yield Figure(title, kept["minigraph"], None, theirs, "torch, cudnn", theirs, "MiB", "gpu_attention.json")


def heads_and_updates(card: str = "") -> Iterator[Figure]:
    """Parameter updates, and the last layer with its loss."""
    asked = {"148 tensors": 0.87, "1,000 tensors": 0.012, "SGD": 0.63}
    yield from from_times("gpu_optimizers", asked, "fused", "fused struct32k", card=card)
    asked = {"8192 rows": 36.5, "1024 rows": 5.0, "4096 rows": 17.5, "the step": 3.3}
    yield from from_times("gpu_linear_cross_entropy", asked, "minigraph", card=card)


def figures() -> Iterator[Figure]:
    yield from steps()
    yield from gpt2()
    yield from attention()
    first = results("gpu_steps").get("first_step_seconds", {})
    for kind, asked in (("cold", 1.5), ("warm", 0.5)):
        name = f"{kind} cache"
        ours = first.get(f"minigraph, {name}")
        peers = [(s, n.split(",")[0]) for n, s in first.items() if n.endswith(name) and "minigraph" not in n]
        if ours is not None:
            title = f"first step of the MLP in a new process, {name}"
            yield Figure(title, ours, None, *min(peers), asked, "s", "gpu_steps.json")
    yield from heads_and_updates()
    for row in results("compile_time").get("rows", ()):
        title = f"passes and plan of {row['operators']:,} operators"
        yield Figure(title, row["seconds"], None, None, "-", row["asked"], "s", "compile_time.json")
    if built := results("compile_time").get("updates"):
        title = "building the fused update of 1,000 tensors"
        yield Figure(title, built["seconds"], None, None, "-", built["asked"], "s", "compile_time.json")
    if built := results("compile_time").get("optimizer"):
        title = f"AdamW of {built['tensors']:,} tensors: minimize, passes and plan"
        yield Figure(title, built["seconds"], None, None, "-", built["asked"], "s", "compile_time.json")
    for file, title, ours, bar in (
        ("mlp_cpu", "MLP step on 2 cores", "minigraph fused", "torch"),
        ("optimizer_cpu", "AdamW over 1.9 million parameters on 2 cores", "fused", "torch fused"),
    ):
        times = results(file).get("milliseconds", {})
        if times:
            yield Figure(title, median(times[ours]), None, *best_peer(times), median(times[bar]), "ms", f"{file}.json")


def number(x: float | None) -> str:
    return "-" if x is None else f"{x:.3g}" if x < 100 else f"{x:.0f}"


def tables() -> str:
    """Every row in Markdown, a section for each file, with the marks around them."""
    rows, lines = list(figures()), [BEGIN]
    for file, heading in SECTIONS.items():
        heads = "| | minigraph | `autotune` | asked | best peer | | without rest, and peer |"
        lines += ["", f"### {heading}: `{file}.json`", "", heads, "|---|---|---|---|---|---|---|"]
        for f in (f for f in rows if f.file == f"{file}.json"):
            met = "" if f.asked is None or min(f.ours, f.tuned or f.ours) <= f.asked else " (missed)"
            tired = ", ".join(map(number, f.tired)) if f.tired else "-"
            lines.append(
                f"| {f.title}, {f.unit} | {number(f.ours)} | {number(f.tuned)} | {number(f.asked)}{met} |"
                f" {number(f.peer)} | {f.peer_name} | {tired} |"
            )
    return "\n".join([*lines, *on_an_h100(), "", END])


def headlines() -> str:
    """The rows of HEADLINES in Markdown, with the marks around them."""
    return "\n".join([BEGIN, *_shown(figures()), END])


def on_an_h100() -> list[str]:
    """The rows of HEADLINES that ran on an H100, under a heading."""
    card = "h100"
    rows = [*steps(card), *gpt2(card), *attention(card), *heads_and_updates(card)]
    return ["", f"### README's rows on an H100: `{card}/`", "", *_shown(rows)]


def _shown(rows: Iterable[Figure]) -> list[str]:
    """Those of HEADLINES as a table."""
    found = {f.title: f for f in rows}
    lines = ["| | minigraph | best peer | |", "|---|---|---|---|"]
    for f, shown in ((found[title], shown) for title, shown in HEADLINES.items() if title in found):
        lines.append(f"| {shown} | {number(f.ours)} {f.unit} | {number(f.peer)} {f.unit} | {f.peer_name} |")
    return lines


def pages() -> dict[Path, str]:
    """{page: the part of it that is made here}"""
    return {README: headlines(), BENCH_README: tables()}


def main() -> int:
    for page, made in pages().items():
        text = page.read_text(encoding="utf-8")
        before, _, rest = text.partition(BEGIN)
        _, _, after = rest.partition(END)
        page.write_text(before + made + after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
