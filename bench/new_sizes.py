"""What a new size of the feeds costs the host before the first call of a GPU plan: 50 sizes of two training steps.

    python -m bench.new_sizes

The programs and sizes are those of bench/changing_shapes.py, in TF32. Plans are bound for an H200, which need not be
there: calls recorded, memory laid out, the streams of the captured graph assigned; no addresses. Of several ways to
compute the same only the first is recorded, as where the library says at once that it has what it takes.

alone     each plan is made as if the program had no other
together  each plan knows those before it, the one for the largest size first

Both arms take turns size by size. What counts is the time of this process, and the median over all sizes but the first
WARM_UP. `arena` is the largest arena of all plans over that of the largest size alone.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import minigraph as mg
from minigraph.kernels.cuda.record.workspace import Algorithm, settling
from minigraph.program.garbage import without_collection
from minigraph.runtime.cuda.bind import BoundProgram, bind_program
from minigraph.runtime.cuda.sizes import Siblings
from minigraph.types import TensorType

from .changing_shapes import LARGEST, feeds, network, sizes
from .harness import machine, now, versions, write_report

SETTLED = settling(lambda product: Algorithm(0, b"the first"))
WARM_UP = 5  # sizes: what Python and the package keep is there


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """(milliseconds of this process, result)."""
    start = time.process_time()
    made = work()
    return (time.process_time() - start) * 1e3, made


def measured(model: str) -> dict[str, Any]:
    """Milliseconds for each new size of one model, in both arms."""
    mg.enable_static()
    with mg.static.program_guard(mg.static.Program(), mg.static.Program()), mg.base.unique_name.guard():
        _, loss = network(model)
        compiled = mg.static.CompiledProgram(
            mg.static.default_main_program(), build_strategy=mg.static.BuildStrategy.all()
        )
    program = compiled.program_for((loss.name,), place=mg.CUDAPlace(0))
    given, siblings = feeds(model), Siblings()
    plans: list[BoundProgram] = []
    arms: dict[str, list[float]] = {"alone": [], "together": []}
    streams: dict[str, list[float]] = {"alone": [], "together": []}
    for n in dict.fromkeys([LARGEST[model], *map(int, sizes(model))]):
        types = {name: TensorType(a.shape, a.dtype) for name, a in zip("xy", given(n), strict=True)}
        room = plans[0].arena_bytes if plans else 0
        for arm, known in (("alone", None), ("together", siblings)):
            with without_collection():  # as the Executor does
                ms, one = timed(lambda t=types, r=room, k=known: bind_program(
                    program, t, [loss.name], tf32=True, settling=SETTLED, room=r, siblings=k))  # fmt: skip
                arms[arm].append(ms)
                streams[arm].append(timed(one.streams)[0])
            if known is not None:
                plans.append(one)
                siblings.keep(one.schedule, one.layout)
    row: dict[str, Any] = {"plans": len(plans), "calls": len(plans[0].order)}
    for arm in arms:
        row[f"{arm}_ms"] = round(statistics.median(arms[arm][WARM_UP:]), 3)
        row[f"{arm}_streams_ms"] = round(statistics.median(streams[arm][WARM_UP:]), 3)
    row["layouts"] = len({id(plan.layout) for plan in plans})
    row["arena"] = round(max(plan.arena_bytes for plan in plans) / plans[0].arena_bytes, 4)
    return row | {"each_ms": {arm: [round(ms, 3) for ms in found] for arm, found in arms.items()}}


def main() -> None:
    rows = {model: measured(model) for model in LARGEST}
    report = {
        "bench": "new_sizes", "command": "python -m bench.new_sizes",
        "date": now(), "machine": machine(),
        "versions": versions(), "rows": rows,
    }  # fmt: skip
    write_report(report)
    for model, row in rows.items():
        print(model, {key: value for key, value in row.items() if key != "each_ms"})


if __name__ == "__main__":
    sys.exit(main())
