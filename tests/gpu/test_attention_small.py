"""The small GPU checks of attention launch all of its kernels, as their names say. No GPU is needed to see it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from minigraph.kernels.cuda import attention
from minigraph.kernels.cuda.record.call import every_call
from minigraph.kernels.cuda.record.calls import Launch
from minigraph.kernels.cuda.record.compile import read_source
from minigraph.runtime.cuda.bind import BoundProgram, bind_program
from tests.gpu import attention_small
from tests.gpu.attention_small import Case
from tests.support import opcheck

GROUPS = attention_small.groups()


def bound(case: Case) -> Iterator[BoundProgram]:
    for call in attention_small.calls(case.inputs, case.dtype, True, **case.attrs):
        program, _, outputs = opcheck.built(call.as_dtype(case.dtype))
        types = {name: opcheck.type_of(x) for name, x in opcheck.feed_of(call.as_dtype(case.dtype)).items()}
        yield bind_program(program, types, [v.name for vs in outputs.values() for v in vs])


@pytest.mark.parametrize("name", GROUPS)
def test_cases_go_to_the_kernels_that_they_are_named_after(name):
    for case in GROUPS[name]:
        for program in bound(case):
            assert any(note.startswith(f"computed by {case.kernel}") for _, note in program.binder.notes), case.attrs


CLUSTER = re.compile(r"#define CLUSTER [2-9]")
BOUNDS = r"(?:OF_CLUSTER |__(?:cluster_dims|launch_bounds)__\([^)]*\) )*"
KERNEL = re.compile(rf'extern "C" __global__ (?:void )?{BOUNDS}(?:void )?(\w+)\(')


def test_every_kernel_is_launched_and_every_split():
    rooms = Path(attention.__file__).parent
    names = [f"attention/{path.relative_to(rooms).as_posix()}" for path in sorted(rooms.glob("*/*.cu"))]
    texts = [read_source(name) for name in names]
    launches = [
        c for cases in GROUPS.values() for case in cases for program in bound(case)
        for c in every_call(program.binder.calls) if isinstance(c, Launch)
    ]  # fmt: skip
    assert len(names) == 8
    for name, text in zip(names, texts, strict=True):
        kernels = KERNEL.findall(text)
        assert len(kernels) == text.count("__global__")
        own = [c for c in launches if text in c.source]
        assert kernels and set(kernels) <= {c.function for c in own}, name  # two files may be one source
        for kernel in (k for k in kernels if "hopper" not in name and re.search("forward|query_grad|key_grad", k)):
            assert any(c.function == kernel and (c.grid[1] > 1 or CLUSTER.search(c.source)) for c in own), kernel


def test_forward_on_hopper_is_launched_in_pairs_and_with_tiles_that_are_cut():
    found = set()
    for case in (c for name, cases in GROUPS.items() if name.startswith("wgmma") for c in cases):
        program = next(bound(case))
        (source,) = {c.source for c in program.binder.calls if isinstance(c, Launch)}
        pair, banded = ("#define PAIR 2\n" in source), ("#define BANDED 1\n" in source)
        cut = any(a.ndim == 3 and a[..., 3].max() >= 0 for table in program.binder.tables for a in table.arrays)
        found.add((case.inputs["Q"].shape[-1], pair, banded, cut))
    for d in (64, 128, 192, 256):
        assert {(d, False, False, False), (d, False, True, False), (d, False, True, True)} <= found
        assert (d, d == 128, False, True) in found
    assert (128, True, False, False) in found


def test_they_are_the_checks_of_attention_for_the_sanitizer():
    checks = list(attention_small.checks())
    assert len(checks) == len(GROUPS)
    assert all(c.sanitize for c in checks)
