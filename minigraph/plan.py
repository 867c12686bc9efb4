"""Plan: a Program made ready to run for one feed signature on a CPU.

With the feeds' shapes known, all shapes are: types are inferred once more, the life of every value
is computed, and values whose kernels can write into a given array share buffers that live as long
as the Plan, so a step allocates next to nothing. A run is then a loop over bound steps.

    value   one version of a variable; a step that updates `w` in place reads one, writes the next
    root    the value whose memory a view shows; its life covers the lives of its views
    buffer  an array of bytes that values with disjoint lives share
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .errors import FeedError, KernelError, MinigraphError, UninitializedError
from .program import Operator, Program, describe_call
from .scope import Scope
from .types import TensorType, bfloat16, float16, float32

LOW_PRECISION = frozenset({float16, bfloat16})


@dataclass
class Value:
    """One version of a variable during a run."""

    name: str
    type: TensorType
    producer: int  # step that writes it, -1 for feeds and persistables
    persistable: bool = False
    last_use: int = -1
    root: int = -1  # index of the value whose memory this one shows; itself if none
    buffer: int | None = None


@dataclass
class Step:
    """One bound kernel call."""

    op: Operator
    kernel: Callable[..., Any]
    inputs: list[Any]  # value index, list of them, a stand-in array or None, per input slot
    outputs: list[Any]  # value index or list of them or None, per output slot
    attrs: dict[str, Any]
    out: list[np.ndarray | None] | None  # planned arrays per output slot, if the kernel takes `out`
    in_place: list[int | None] = field(default_factory=list)  # per output slot: value whose array is updated
    stored: list[tuple[int, str]] = field(default_factory=list)  # persistables written: value, name
    freed: list[int] = field(default_factory=list)  # values nobody reads after this step


class Plan:
    """Steps and buffers of `program` for feeds of the given types."""

    def __init__(
        self, program: Program, feeds: Mapping[str, TensorType], fetches: Sequence[str], prune: bool = False
    ) -> None:
        self.program, self.fetches = program, tuple(fetches)
        self.values: list[Value] = []
        self.current: dict[str, int] = {}
        self.feeds = {name: self._new_value(name, type) for name, type in feeds.items()}
        self.persistables: dict[str, int] = {}
        self.steps: list[Step] = []
        self.checked = False
        self.random = False
        for op in pruned_ops(program, self.fetches) if prune else program.ops:
            self._add_step(op)
        self.fetched = [self._read(name) for name in self.fetches]
        self._lives()
        self.buffers = _assign_buffers(self.values, self.steps)

    # building

    def _new_value(self, name: str, type: TensorType, producer: int = -1, persistable: bool = False) -> int:
        index = len(self.values)
        self.values.append(Value(name, type, producer, persistable, root=index))
        self.current[name] = index
        return index

    def _read(self, name: str) -> int:
        """The present value of a variable; persistables come from the Scope at their first use."""
        if name in self.current:
            return self.current[name]
        v = self.program.vars[name]
        if v.persistable:
            self.persistables[name] = self._new_value(name, v.type, persistable=True)
            return self.persistables[name]
        raise FeedError(f"{v} has no value: it is not fed and no operator that runs before writes it", site=v.site)

    def _add_step(self, op: Operator) -> None:
        opdef, position = op.opdef, len(self.steps)
        inputs: list[Any] = []
        types: dict[str, list[TensorType]] = {}
        for slot in opdef.inputs:
            indices = [self._read(v.name) for v in op.inputs.get(slot.name, ())]
            if not indices:
                inputs.append(None)
                continue
            types[slot.name] = [self.values[i].type for i in indices]
            if slot.name in opdef.no_need_buffer:
                stand_ins = [_stand_in(t) for t in types[slot.name]]
                inputs.append(stand_ins if slot.variadic else stand_ins[0])
                continue
            for i in indices:
                self.values[i].last_use = position
            inputs.append(indices if slot.variadic else indices[0])
        try:
            inferred = opdef.infer_types(types, op.attrs)
        except MinigraphError as error:
            raise error.at(_describe(op, types), op.site) from None
        step = Step(op, opdef.cpu_kernel, inputs, [], dict(op.attrs), None)
        for slot in opdef.outputs:
            variables = op.outputs.get(slot.name, [])
            indices, in_place = [], None
            for v, t in zip(variables, inferred[slot.name] if variables else (), strict=True):
                source = opdef.inplace.get(slot.name)
                if source and v.persistable and v.name in op.input(source):
                    in_place = self.current[v.name]
                index = self._new_value(v.name, t, position, v.persistable)
                indices.append(index)
                if v.persistable:
                    step.stored.append((index, v.name))
            step.outputs.append((indices if slot.variadic else indices[0]) if indices else None)
            step.in_place.append(in_place)
        viewed = next((i for i in inputs if isinstance(i, int)), None)
        if "view" in opdef.traits and viewed is not None:
            for i in _flat(step.outputs):
                self.values[i].root = self.values[viewed].root
        self._bind(step, types)
        self.steps.append(step)

    def _bind(self, step: Step, types: dict[str, list[TensorType]]) -> None:
        """Arguments that a kernel takes besides slots and attributes."""
        injected = step.op.opdef.injected
        if "needs" in injected:
            step.attrs["needs"] = frozenset(s for s, vs in step.op.outputs.items() if vs)
        if "rng" in injected:
            self.random = True
        low = any(t.dtype in LOW_PRECISION for ts in types.values() for t in ts) or any(
            self.values[i].type.dtype in LOW_PRECISION for i in _flat(step.outputs)
        )
        if low:
            step.kernel = _in_float32(step.kernel, [self._types(o) for o in step.outputs])
        elif "out" in injected:
            step.out = [None] * len(step.outputs)

    def _types(self, output: Any) -> Any:
        if isinstance(output, list):
            return [self.values[i].type for i in output]
        return None if output is None else self.values[output].type

    def _lives(self) -> None:
        """last_use of every root covers its views; fetched values live to the end."""
        end = len(self.steps)
        for i in self.fetched:
            self.values[i].last_use = end
        for value in reversed(self.values):
            root = self.values[value.root]
            root.last_use = max(root.last_use, value.last_use, value.producer)
        for i, value in enumerate(self.values):
            if value.root == i and value.producer >= 0 and value.last_use < end and not value.persistable:
                self.steps[value.last_use].freed.append(i)
            elif value.root != i and value.last_use < end:
                self.steps[max(value.last_use, value.producer)].freed.append(i)
        for position, step in enumerate(self.steps):  # a view that is read later keeps the old value
            step.in_place = [
                i if i is not None and self.values[self.values[i].root].last_use <= position else None
                for i in step.in_place
            ]

    # running

    def run(self, feeds: Mapping[str, np.ndarray], scope: Scope, seed: int) -> list[np.ndarray]:
        """Run all steps and return the fetched arrays."""
        env: list[Any] = [None] * len(self.values)
        for name, index in self.feeds.items():
            env[index] = feeds[name]
        for name, index in self.persistables.items():
            env[index] = self._from_scope(scope, name)
        step_number = scope.steps[self.program.id]
        if self.random:
            scope.steps[self.program.id] += 1
        with np.errstate(all="ignore"):
            for step in self.steps:
                self._run_step(step, env, scope, (seed, step.op.number, step_number))
        self.checked = True
        return [self._fetch(env, i) for i in self.fetched]

    def _run_step(self, step: Step, env: list[Any], scope: Scope, rng: tuple[int, int, int]) -> None:
        args = [
            env[i] if type(i) is int else [env[j] if type(j) is int else j for j in i] if type(i) is list else i
            for i in step.inputs
        ]
        attrs = step.attrs
        if step.out is not None:
            out = [env[i] if i is not None else o for o, i in zip(step.out, step.in_place, strict=True)]
            attrs = {**attrs, "out": tuple(out)}
        if "rng" in step.op.opdef.injected:
            attrs = {**attrs, "rng": rng}
        try:
            results = step.kernel(*args, **attrs)
        except Exception as problem:
            raise self._failure(step, problem) from problem
        if len(step.outputs) == 1 or not isinstance(results, tuple):
            results = (results,)
        for index, result in zip(step.outputs, results, strict=True):
            if type(index) is int:  # NumPy turns 0-d results into scalars
                env[index] = result if type(result) is np.ndarray else np.asarray(result)
            elif index is not None:
                for i, r in zip(index, result, strict=True):
                    env[i] = r
        if not self.checked:
            self._check_results(step, env, args)
        for index, name in step.stored:
            array = env[index]
            if array is not scope.arrays.get(name):
                owned = array.base is None and array.flags.writeable and not _is_input(array, args)
                scope.write(name, array if owned else array.copy())
                env[index] = scope.arrays[name]
        for i in step.freed:
            env[i] = None

    def _check_results(self, step: Step, env: list[Any], args: list[Any]) -> None:
        """In the first run: every kernel returns what the operator's inference promised, in memory of its own."""
        for i in _flat(step.outputs):
            value, array = self.values[i], env[i]
            if not isinstance(array, np.ndarray):
                array = env[i] = np.asarray(array)
            if array.shape != value.type.shape or array.dtype != value.type.dtype:
                raise KernelError(
                    f"kernel wrote {value.name} as {array.dtype}{list(array.shape)}, inferred was {value.type}",
                    call=step.op.call(), site=step.op.site,
                )  # fmt: skip
            shared = value.root == i and value.buffer is None and not value.persistable
            if shared and any(np.may_share_memory(array, a) for a in _arrays(args)):
                raise KernelError(
                    f"kernel returned an input's memory as {value.name} without the trait view",
                    call=step.op.call(), site=step.op.site,
                )  # fmt: skip

    def _failure(self, step: Step, problem: Exception) -> Exception:
        if isinstance(problem, MinigraphError):
            return problem.at(step.op.call(), step.op.site)
        if isinstance(problem, MemoryError):
            return KernelError(f"out of memory: {problem}", call=step.op.call(), site=step.op.site)
        return KernelError(f"{type(problem).__name__}: {problem}", call=step.op.call(), site=step.op.site)

    def _from_scope(self, scope: Scope, name: str) -> np.ndarray:
        v, array = self.program.vars[name], scope.arrays.get(name)
        if array is None:
            raise UninitializedError(
                f"{v} has no value in the scope", site=v.site,
                hint="run the startup program first: exe.run(startup_program)",
            )  # fmt: skip
        if array.shape != v.shape or array.dtype != v.dtype:
            raise UninitializedError(f"{v} is {array.dtype}{list(array.shape)} in the scope", site=v.site)
        return array

    def _fetch(self, env: list[Any], index: int) -> np.ndarray:
        """A copy, unless the array belongs to nobody else."""
        value, array = self.values[index], env[index]
        owned = value.producer >= 0 and value.buffer is None and not value.persistable and value.root == index
        twice = self.fetched.count(index) > 1
        return array if owned and array.base is None and not twice else array.copy()


def pruned_ops(program: Program, fetches: Sequence[str]) -> list[Operator]:
    """The operators on which the fetched values depend."""
    needed, kept = set(fetches), []
    for op in reversed(program.ops):
        if any(name in needed for name in op.output_arg_names) and op.role != "optimize":
            kept.append(op)
            needed.update(op.input_arg_names)
    return kept[::-1]


def _assign_buffers(values: list[Value], steps: list[Step]) -> list[np.ndarray]:
    """Give each value that a kernel can write in place a buffer, shared where lives do not overlap."""
    sizes: list[int] = []
    free: list[int] = []
    expiring: dict[int, list[int]] = {}
    owner: dict[int, int] = {}  # root -> buffer
    wishes: list[tuple[Step, int, int]] = []
    for position, step in enumerate(steps):
        for slot, index in enumerate(step.outputs):
            if step.out is None or not isinstance(index, int) or values[index].persistable:
                continue
            value = values[index]
            buffer = _inherited(step, slot, index, values, owner, position)
            if buffer is None:
                buffer = _best_fit(free, sizes, value.type.nbytes)
            owner[index] = buffer
            value.buffer = buffer
            expiring.setdefault(value.last_use, []).append(index)
            wishes.append((step, slot, index))
        for index in expiring.pop(position, ()):
            if owner[index] not in (owner[i] for i in _flat(step.outputs) if i in owner and i != index):
                free.append(owner[index])
    buffers = [np.empty(size, np.uint8) for size in sizes]
    for step, slot, index in wishes:
        t = values[index].type
        assert step.out is not None
        step.out[slot] = buffers[owner[index]][: t.nbytes].view(t.dtype).reshape(t.shape)
    return buffers


def _inherited(
    step: Step, slot: int, index: int, values: list[Value], owner: dict[int, int], position: int
) -> int | None:
    """The buffer of the input that this output may overwrite, if nobody reads that input later."""
    opdef = step.op.opdef
    source = opdef.inplace.get(opdef.outputs[slot].name)
    if source is None:
        return None
    i = step.inputs[opdef.input_names.index(source)]
    if not isinstance(i, int):
        return None
    value = values[i]
    same = value.type == values[index].type
    dies = value.root == i and i in owner and value.last_use == position
    shown = [values[j].root for j in _flat(step.inputs) if isinstance(j, int)]
    alone = shown.count(i) == 1  # a second input in this memory would be overwritten before it is read
    return owner[i] if same and dies and alone else None


def _best_fit(free: list[int], sizes: list[int], nbytes: int) -> int:
    """The smallest free buffer that is large enough; else the largest one grown, or a new one."""
    fitting = [b for b in free if sizes[b] >= nbytes]
    if fitting:
        best = min(fitting, key=lambda b: (sizes[b], b))
    elif free:
        best = max(free, key=lambda b: (sizes[b], b))
        sizes[best] = nbytes
    else:
        sizes.append(nbytes)
        return len(sizes) - 1
    free.remove(best)
    return best


def _stand_in(type: TensorType) -> np.ndarray:
    """An array with the shape and type of a value that is not read; it holds one zero."""
    return np.broadcast_to(np.zeros((), type.dtype), type.shape)


def _in_float32(kernel: Callable[..., Any], types: list[Any]) -> Callable[..., Any]:
    """16-bit floats are storage: compute in float32, round the results once."""

    def up(x: Any) -> Any:
        if isinstance(x, list):
            return [up(v) for v in x]
        return x.astype(float32) if x is not None and x.dtype in LOW_PRECISION else x

    def down(x: Any, t: Any) -> Any:
        if isinstance(t, list):
            return [down(v, s) for v, s in zip(x, t, strict=True)]
        return None if t is None else np.asarray(x).astype(t.dtype, copy=False)

    def run(*args: Any, **attrs: Any) -> Any:
        results = kernel(*[up(a) for a in args], **attrs)
        if len(types) == 1:
            return down(results, types[0])
        return tuple(down(r, t) for r, t in zip(results, types, strict=True))

    return run


def _describe(op: Operator, types: Mapping[str, Sequence[TensorType]]) -> str:
    """The call with the types of this run."""
    return describe_call(op.type, {
        s: [f"{v.name}: {t}" for v, t in zip(op.inputs[s], ts, strict=True)] for s, ts in types.items()
    })  # fmt: skip


def _arrays(args: Sequence[Any]) -> Iterator[np.ndarray]:
    for a in args:
        yield from a if isinstance(a, list) else () if a is None else (a,)


def _is_input(array: np.ndarray, args: Sequence[Any]) -> bool:
    return any(array is a for a in args)


def _flat(outputs: Sequence[Any]) -> list[int]:
    return [i for o in outputs if o is not None for i in (o if isinstance(o, list) else [o])]
