"""Memory of attention's forward and backward as planned for an H200, counted as bench/gpu_attention.py counts it."""

from __future__ import annotations

import pytest

from bench.gpu_attention import JOBS, AttentionRow, Job, planned_memory, program_of
from minigraph.kernels.cuda.record.buffer import owner
from minigraph.runtime.cuda.bind import bind_program

MIB = 2**20
CUDNN = 195  # MiB beside inputs and gradients that cuDNN takes at (4, 16, 4096, 128)


def test_memory_is_linear_in_the_sequence_and_at_most_cudnns():
    rows = {int(r["title"].split("x")[2]): r for r in planned_memory()}
    assert sorted(rows) == [1 << n for n in range(10, 17)]
    assert rows[4096]["beside_gradients_MiB"] <= CUDNN
    for size, row in rows.items():
        for counted in ("MiB", "beside_gradients_MiB", "scratch_MiB"):
            assert row[counted] / size == pytest.approx(rows[4096][counted] / 4096, rel=1e-4)


@pytest.mark.parametrize("local", [0, 2])
@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.title)
@pytest.mark.parametrize("shape", [(4, 16, 4096, 128), (2, 8, 1024, 64), (3, 5, 777, 40)])
def test_what_is_counted_is_what_the_plan_has_beside_the_inputs(shape, job, local):
    row = AttentionRow("bfloat16", shape, local=local)
    program, names = program_of(row, job)
    bound = bind_program(program, {}, names)
    results = {id(owner(bound.buffers[i])): bound.buffers[i].nbytes for i in bound.schedule.fetched}
    assert sum(results.values()) == row.results(job) * MIB
    assert bound.arena_bytes >= sum(results.values())
    inputs = {id(b) for b in bound.outside.values()}
    assert len(inputs) == 3 + job.training + 2 * job.alone + (local > 0)
    assert not inputs & {id(b) for b, _ in bound.offsets}


def test_the_gradients_are_three_of_the_four_results():
    row = AttentionRow("float32", (2, 3, 5, 8))
    assert row.results(Job(True)) - 3 * row.one == row.results(Job(False)) == row.one == 2 * 3 * 5 * 8 * 4 / MIB
