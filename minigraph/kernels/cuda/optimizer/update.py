"""Parameter updates on a GPU, one parameter or all of them: bind functions of update operators.

A kernel's arithmetic is a trace of the loop that the CPU runs (kernels/updates.py), printed as C++ with every
operation rounded by itself. Numbers of the step that depend on powers of beta are computed ahead, in
double, by a kernel with one thread for each parameter, which advances the powers too. Where a new value does
not take the place of the old one, the old one is copied first; kernels work in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from minigraph.kernels.cuda.elementwise.pointwise import compute_type
from minigraph.kernels.cuda.record.binder import Binder, blocks_for
from minigraph.kernels.cuda.record.buffer import CUDA_TYPES, Buffer, Words
from minigraph.kernels.cuda.record.tensors import (
    ARENA_CHUNK,
    MARGIN,
    STRUCT_BYTES,
    THREADS,
    Tensors,
    chosen_mode,
    close_width,
    launch_over,
    tensor_source,
)
from minigraph.kernels.cuda.record.views import in_rows
from minigraph.kernels.trace import Symbol, leading_to, trace_loop, trace_numbers
from minigraph.kernels.updates import PLAIN, SHARED, Update, slots_of, update_of
from minigraph.types import float64

from .optimizer import NORM_CHUNK, norm_types, squares
from .paged import paged_and_others, record_paged

CHUNK = ARENA_CHUNK  # elements of a block: one access of 16 bytes for each thread and column
STEP_BYTES = 16
LARGE = 1 << 14  # elements of a tensor, on average
GROUP, GROUPED = 1 << 19, 1 << 21  # elements that get a launch of their own; of an update that is taken apart at all

Slots = Mapping[str, Any]
Lists = dict[str, list[Buffer]]


def _bind(op_type: str, binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """One step of an update operator, single or fused."""
    slots, update = slots_of(op_type), update_of(op_type, attrs)
    given = {s: b if isinstance(b, list) else [b] for s, b in ins.items() if b is not None and b != []}
    results: Lists = {}
    for slot in slots.updated:
        if slot in given:
            wanted = outs.get(f"{slot}Out") or [None] * len(given[slot])
            results[slot] = [
                to or binder.scratch(b.shape, b.dtype)
                for b, to in zip(given[slot], wanted if isinstance(wanted, list) else [wanted], strict=True)
            ]
            for b, to in zip(given[slot], results[slot], strict=True):
                binder.copy(to, b)
    for part in paged_and_others(binder, update, given, results):
        _Step(binder, op_type, update, _picked(given, part), _picked(results, part), attrs).record()


def _picked(lists: Lists, part: Sequence[int]) -> Lists:
    """What these parameters have in each slot."""
    return {slot: own if slot in SHARED else [own[i] for i in part] for slot, own in lists.items()}


class _Step:
    """The launches of one update operator."""

    def __init__(
        self, binder: Binder, op_type: str, update: Update, given: Lists, results: Lists, attrs: Slots
    ) -> None:
        self.binder, self.update, self.given, self.results, self.attrs = binder, update, given, results, attrs
        self.rows = _rows(given["Grad"])
        self.mode = chosen_mode(binder, len(given["Param"]), len(results) + 2 + len(self.rows))
        self.params, self.rate = given["Param"], given["LearningRate"][0]
        self.compute = compute_type(self.params[0].dtype)
        self.real = float64 if self.compute == "double" else np.dtype("float32")
        self.skip, self.scale = (given.get(s, [None])[0] for s in ("SkipUpdate", "GradScale"))
        hyper = {name: float(v) if type(v) is float else v for name, v in attrs.items()}
        self.hyper = {name: v for name, v in hyper.items() if isinstance(v, (float, bool))}
        traced = trace_numbers(update.numbers, ("rate", *update.powers), **self.hyper)
        moving = {"rate", *update.powers}
        self.prepared = [n for n in traced if isinstance(n, Symbol) and n.given & moving]
        self.places = [self.prepared.index(n) if n in self.prepared else None for n in traced]
        fixed = update.numbers(1.0, *(0.5 for _ in update.powers), **self.hyper)
        self.fixed = [float(v) for v, place in zip(fixed, self.places, strict=True) if place is None]
        self.named = sorted(set().union(*(n.given for n in self.prepared)) - moving)  # attributes that they need
        waits = self.scale is not None or not binder.outside.isdisjoint(map(id, given["Grad"]))  # for all, or for none
        self.groups = [range(len(self.params))] if waits else ready_first([p.size for p in self.params])

    def record(self) -> None:
        sizes = [p.size for p in self.params]
        states = [self.results[s] for s in self.update.states]
        if self.mode == "unified":
            self.binder.managed += [b for column in states for b in column]
        master = [self.results["MasterParam"]] if "MasterParam" in self.results else []
        known = self._prepare() if self.update.powers else None
        adapted = self.update.finish is not None
        scratch = [[self.binder.scratch(p.shape, self.real) for p in self.params]] if adapted else []
        columns = [self.results["Param"], self.given["Grad"], *states, *scratch, *master, *self.rows]
        on_host = {id(b) for b in self.binder.paged}
        self.paged = [number for number, column in enumerate(columns) if id(column[0]) in on_host]
        count = len(self.places) - adapted
        self._launch(self.update.loop, Tensors(columns, sizes), known, count, scratch_last=adapted)
        if adapted:
            weights = master[0] if master else self.results["Param"]
            self._finish(Tensors([weights, scratch[0]], sizes), master)

    def _finish(self, pairs: Tensors, master: list[list[Buffer]]) -> None:
        """Steps of the size that the norms of parameters and directions give."""
        assert self.update.finish is not None
        binder = self.binder
        sums, starts = squares(binder, pairs, self.mode)
        step_sizes = binder.scratch((len(self.params),), self.real)
        types = {**norm_types(pairs), "L": CUDA_TYPES[self.rate.dtype], "R": self.compute, "COLUMNS": 2}
        source = tensor_source("optimizer/norms.cu", {**types, "CHUNK": NORM_CHUNK, "WAY": 1, "WIDTH": 1})
        table = binder.table([], starts)[1]
        binder.launch_source(source, "ratios", len(self.params), THREADS, sums, table, self.rate, step_sizes)
        directions = pairs.columns[1]
        columns = [self.results["Param"], directions, *master]
        defines = {
            **self._types(), "G": self.compute, "UPDATE": 1, "KNOWN": 1, "LOAD_NUMBERS": "k[0] = sizes_of[tensor];",
            "NUMBERS_FROM": f"const {self.compute}* sizes_of",
        } | ({"MASTER": 1} if master else {})  # fmt: skip
        guard, fault = binder.guard(b for column in columns for b in column)
        launch_over(
            binder, "optimizer/update.cu", "update", Tensors(columns, pairs.sizes), self.mode, CHUNK, step_sizes,
            self._skip(),
            self.rate, self.real.type(0), *fault, defines=defines | guard,
            generated=_step_function(self.update.finish, "gp", 1),
        )  # fmt: skip

    def _prepare(self) -> Buffer:
        """Record what computes the numbers of the step for each parameter."""
        binder, powers = self.binder, [self.results[s] for s in self.update.powers]
        total = len(self.params)
        known = binder.scratch((total, len(self.prepared)), self.real)
        betas = [f"beta{i + 1}" for i in range(len(powers))]
        defines = {
            **self._types(), "PREPARE": 1, "POWERS": len(powers), "PREPARED": len(self.prepared),
            "BETAS": ", ".join(f"s_{beta}" for beta in betas),
        }  # fmt: skip
        named = sorted({*self.named, *betas})
        defines |= {
            "ATTRIBUTES": "".join(f", double s_{n}" for n in named),
            "ATTRIBUTE_NAMES": "".join(f", s_{n}" for n in named), "COLUMNS": 1, "CHUNK": CHUNK,
        }  # fmt: skip
        generated = self._numbers_function(named)
        guard, fault = binder.guard(b for column in powers for b in column)
        defines |= guard
        rest = known, self._skip(), *(np.float64(self.attrs[n]) for n in named), *fault
        if total > 1 and self.mode not in STRUCT_BYTES:
            table, = binder.table([b for column in powers for b in column])
            source = tensor_source("optimizer/update.cu", {**defines, "WAY": 0, "WIDTH": 1}, generated)
            grid = blocks_for(total, THREADS)
            binder.launch_source(source, "prepare", grid, THREADS, table, np.int64(total), self.rate, *rest)
            return known
        width = 1 if total == 1 else close_width(total, (STRUCT_BYTES[self.mode] - MARGIN) // (8 * len(powers)))
        source = tensor_source("optimizer/update.cu", {**defines, "WAY": 1, "WIDTH": width}, generated)
        for first in range(0, total, width):
            part = range(first, min(first + width, total))
            words: list[Buffer | int] = []
            for column in powers:
                words += [*(column[i] for i in part), *[0] * (width - len(part))]
            struct, grid = Words([*words, len(part), first]), blocks_for(len(part), THREADS)
            binder.launch_source(source, "prepare", grid, THREADS, struct, self.rate, *rest)
        return known

    def _launch(
        self, loop: Callable[..., None], tensors: Tensors, known: Buffer | None, count: int, scratch_last: bool
    ) -> None:
        """Record the update of all elements."""
        decay = self.attrs.get("regularization_coeff", 0.0)
        constants = [f"c{i}" for i in range(len(self.fixed))]
        loads, fixed = [], iter(constants)
        for j, place in enumerate(self.places[:count]):
            source = f"known[tensor * {len(self.prepared)} + {place}]" if known else f"made[{place}]"
            loads.append(f"k[{j}] = {next(fixed) if place is None else source};")
        named = [] if known else self.named
        if known:
            numbers_from: list[str] = [f"const {self.compute}* known"]
        else:
            numbers_from = ["const L* learning_rate", *(f"double s_{n}" for n in named)]
            made = "numbers(double(up(*learning_rate)), nullptr, made" + "".join(f", s_{n}" for n in named) + ");"
            loads = [f"{self.compute} made[{max(1, len(self.prepared))}];", made, *loads]
        numbers_from += [f"{self.compute} {c}" for c in constants]
        defines = {
            **self._types(), "UPDATE": 1, "KNOWN": max(1, count), "LOAD_NUMBERS": " ".join(loads),
            "NUMBERS_FROM": ", ".join(numbers_from),
        }  # fmt: skip
        defines |= {"MASTER": 1} if "MasterParam" in self.results else {}
        defines |= {"SCALE": 1} if self.scale is not None else {}
        defines |= {"DECAY": 1} if decay else {}
        defines |= {"ROWS": 1} if self.rows else {}
        arrays = ["g", "p", *self.update.states, *(["r"] if scratch_last else [])]
        generated = _step_function(loop, arrays, count) + ("" if known else self._numbers_function(named))
        args = [known] if known else [self.rate, *(np.float64(self.attrs[n]) for n in named)]
        args += [self.real.type(v) for v in self.fixed]
        guard, fault = self.binder.guard(b for column in self.results.values() for b in column)
        defines |= guard
        skip = self._skip()
        args += [skip, self.scale or self.rate, self.real.type(decay), *fault]
        reads = (skip,) if known is None else (known, skip)

        def launch(tensors: Tensors, first: int, mode: str, groups: Sequence[range] | None = None) -> None:
            launch_over(
                self.binder, "optimizer/update.cu", "update", tensors, mode, self._chunk(), *args, defines=defines,
                generated=generated, groups=groups, reads=reads, first=first,
            )  # fmt: skip

        if self.paged:
            record_paged(self.binder, tensors, self.paged, partial(launch, mode="struct4k"))
        else:
            launch(tensors, 0, self.mode, self.groups)

    def _chunk(self) -> int:
        """Elements of a block: twice as many where a block looks its tensor up in a table and tensors are large."""
        large = sum(p.size for p in self.params) >= LARGE * len(self.params)
        return 2 * CHUNK if large and self.mode in ("table", "unified") else CHUNK

    def _types(self) -> dict[str, Any]:
        scale = self.scale or self.rate
        types = {
            "T": CUDA_TYPES[self.params[0].dtype], "G": CUDA_TYPES[self.given["Grad"][0].dtype], "C": self.compute,
            "L": CUDA_TYPES[self.rate.dtype], "F": CUDA_TYPES[scale.dtype], "PACK": STEP_BYTES // self.real.itemsize,
        }  # fmt: skip
        return types | ({"SKIP": 1} if self.skip is not None else {})

    def _skip(self) -> Buffer:
        """The flag that stops the update; any buffer where there is none, it is not read."""
        return self.skip or self.rate

    def _numbers_function(self, named: Sequence[str]) -> str:
        """C++ of the numbers that depend on the rate and the powers."""
        lines: list[str] = []
        powers = {slot: f"powers[{i}]" for i, slot in enumerate(self.update.powers)}
        if self.prepared:
            names = {**powers, **{n: f"s_{n}" for n in named}}
            lines += _statements(leading_to(self.prepared), names, "double")
            lines += [f"k[{i}] = C({names.get(n.name, n.name)});" for i, n in enumerate(self.prepared)]
        parameters = "".join(f", double s_{n}" for n in named)
        body = "\n    ".join(lines)
        return (
            "static __device__ __forceinline__ void numbers(double rate, const double* powers, C* k"
            f"{parameters})\n{{\n    {body}\n}}\n"
        )


def _rows(grads: Sequence[Buffer]) -> list[list[int]]:
    """Two columns: elements of a gradient's rows, 0 where it lies in one piece, and those between two; or none."""
    if all(b.steps is None for b in grads):
        return []
    found = [(0, 0) if b.steps is None else in_rows(b) for b in grads]
    assert None not in found, "runtime/cuda/strided.py looks for that"
    return [[row for row, _ in filter(None, found)], [step - row for row, step in filter(None, found)]]


def ready_first(sizes: Sequence[int]) -> list[range]:
    """Numbers of tensors in groups that are updated one after the other, those of the last layers first.

    Their gradients are there first, so they are updated beside the products of the layers before. Larger updates, whose
    tensors the L2 cache does not hold, stay whole: they would take bandwidth from products that need it
    (bench/results/studies/grouped_updates.json).
    """
    before = sum(sizes)
    if before > GROUPED:
        return [range(len(sizes))]
    groups, end, inside = [], len(sizes), 0
    for i in reversed(range(len(sizes))):
        before, inside = before - sizes[i], inside + sizes[i]
        if inside >= GROUP <= before:
            groups.append(range(i, end))
            end, inside = i, 0
    return [*groups, range(end)]


CUDA_NAMES = {"sqrt": "root"}


def _statements(steps: Sequence[Symbol], names: Mapping[str, str], type: str) -> list[str]:
    """One C++ statement for each operation of a trace."""
    lines = []
    for step in steps:
        operands = [
            names.get(o.name, o.name) if isinstance(o, Symbol) else f"{type}({o!r})" for o in step.operands
        ]
        function = CUDA_NAMES.get(step.operation, step.operation)
        lines.append(f"const {type} {step.name} = {function}({', '.join(operands)});")
    return lines


def _step_function(loop: Callable[..., None], arrays: Sequence[str], count: int) -> str:
    """C++ of one element's update: x[0] is the parameter, the others are its states."""
    steps, changed = trace_loop(loop, arrays, [f"k{j}" for j in range(count)])
    names = {name: "g" if i == 0 else f"x[{i - 1}]" for i, name in enumerate(arrays)}
    names |= {f"k{j}": f"k[{j}]" for j in range(count)}
    lines = _statements(steps, names, "C") + [f"{names[n]} = {value.name};" for n, value in changed.items()]
    body = "\n    ".join(lines)
    return f"static __device__ __forceinline__ void step(C g, C* x, const C* k)\n{{\n    {body}\n}}\n"


globals().update({f"{prefix}{name}": partial(_bind, f"{prefix}{name}") for name in PLAIN for prefix in ("", "fused_")})
