"""GPU checks of runs with a fault: a Scope keeps what it has, and the next run is as if that one never came."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np

import minigraph as mg
from minigraph.errors import KernelError
from minigraph.program import Program, program_guard
from minigraph.program.builder import Builder
from minigraph.program.scope import Scope
from minigraph.program.unique_name import guard
from minigraph.runtime.executor import Executor
from minigraph.static import BuildStrategy, CompiledProgram
from tests.gpu.check import PLACE, Check, each
from tests.support.update_nets import LEVELS, OPTIMIZERS, Clip

ROWS, WORDS, CLASSES = 12, 9, 4
GOOD, BAD_LABEL, BAD_ID = 0, 1, 2
ORDER = (GOOD, GOOD, BAD_LABEL, GOOD, GOOD, BAD_ID, BAD_LABEL, GOOD, BAD_ID, GOOD)
F = mg.nn.functional


def checks() -> Iterator[Check]:
    for name in OPTIMIZERS:
        for level in LEVELS:
            run, judged = partial(nothing_is_lost, name, level), name in ("AdamW", "Lamb") and level is not None
            yield Check(f"faults/{name}/{level or 'for-loop'}", run, sanitize=judged, product=True)
    for run in (modes, all_passes, low_precision, with_flags, two_updates, after_the_update, nothing_to_store):
        yield Check(f"faults/{run.__name__}", run, sanitize=run is two_updates, product=True)
    for run in (indices, positions_of_nothing):
        yield Check(f"faults/{run.__name__}", run, sanitize=True)


class Net:
    """Words and labels in, a loss out; the program also counts its runs and keeps a moving mean."""

    def __init__(self, optimizer: Any, dtype: str = "float32", flag: bool = False) -> None:
        self.main, self.startup, self.flag = Program("main"), Program("startup"), flag
        self.main.random_seed = self.startup.random_seed = 3
        with guard(), program_guard(self.main, self.startup):
            mg.set_default_dtype(dtype)
            ids, label = mg.static.data("ids", [ROWS], "int64"), mg.static.data("label", [ROWS, 1], "int64")
            words = F.embedding(ids, mg.static.create_parameter([WORDS, 16], dtype))
            hidden = F.gelu(mg.nn.Linear(16, 33)(words))
            loss = F.cross_entropy(mg.nn.Linear(33, CLASSES)(hidden), label)
            if flag:
                optimizer._set_auxiliary_var("found_inf", mg.static.data("found", [1], "bool"))
            optimizer.minimize(loss)
            block = self.main.global_block()
            for name, shape, dtype_of in (("count", [1], "int64"), ("mean", [33], dtype)):
                for b in (block, self.startup.global_block()):
                    b.create_var(name, shape, dtype_of, persistable=True, stop_gradient=True)
                first = self.startup.global_block().var(name)
                Builder(self.startup.global_block()).fill_constant(
                    shape=tuple(shape), value=0, dtype=dtype_of, out={"Out": first}
                )
            g, count, mean = Builder(block), block.var("count"), block.var("mean")
            g.scale(count, bias=1.0, out={"Out": count})
            share = g.scale(g.reduce_mean(hidden, axis=(0,)), scale=0.1)
            g.elementwise_add(g.scale(mean, scale=0.9), share, out={"Out": mean})
            mg.set_default_dtype("float32")
        self.loss = loss.name

    def feed(self, number: int, kind: int = GOOD) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(number)
        feed = {"ids": rng.integers(0, WORDS, ROWS), "label": rng.integers(0, CLASSES, (ROWS, 1))}
        if kind == BAD_LABEL:
            feed["label"][5] = CLASSES
        if kind == BAD_ID:
            feed["ids"][7] = -1
        return feed | ({"found": np.array([number % 3 == 1])} if self.flag else {})


def trained(made: Any, strategy: BuildStrategy | None, fetch: bool, order: Any) -> tuple[dict[str, np.ndarray], list]:
    """What the Scope holds after the runs, and the messages of those that failed."""
    exe, scope, messages = Executor(PLACE), Scope(), []
    exe.run(made.startup, scope=scope)
    program = CompiledProgram(made.main, build_strategy=strategy)
    number = 0
    for kind in order:
        try:
            exe.run(program, made.feed(number, kind), [made.loss] if fetch else [], scope=scope)
        except KernelError as error:
            messages.append(str(error))
        number += kind == GOOD
    try:
        scope.look_at_faults()
    except KernelError as error:
        messages.append(str(error))
    return {name: scope.read(name) for name in scope.list_names()}, messages


def agree(made: Any, strategy: BuildStrategy | None, order: Any = ORDER) -> None:
    """Runs with faults among others leave what the others alone leave, with and without fetches."""
    expected, _ = trained(made, strategy, True, [kind for kind in order if kind == GOOD])
    for fetch in (True, False):
        found, messages = trained(made, strategy, fetch, order)
        count = sum(kind != GOOD for kind in order) if fetch else 1
        assert len(messages) == count, f"{len(messages)} messages instead of {count}"
        assert all("value" in m and "at row" in m for m in messages), messages
        apart = [name for name in expected if found[name].tobytes() != expected[name].tobytes()]
        assert not apart, f"{apart} differ, with fetches: {fetch}"


def nothing_is_lost(name: str, level: str | None) -> None:
    """Of any optimizer, at any level."""
    agree(Net(OPTIMIZERS[name]()), BuildStrategy(**({level: True} if level else {})))


def modes(names: Iterable[str] = ("Adam", "Lamb")) -> None:
    """However kernels learn their addresses."""
    fused = {LEVELS[-1]: True}
    each(
        (f"{name} {mode}", partial(agree, Net(OPTIMIZERS[name]()), BuildStrategy(multi_tensor_mode=mode, **fused)))
        for name in names
        for mode in ("table", "struct4k", "struct32k", "arena", "unified")
    )


def all_passes() -> None:
    """The loss and its gradient as one kernel; clipped gradients; without capture."""
    every, eager = BuildStrategy.all(), BuildStrategy.all()
    eager.allow_cuda_graph_capture = False
    each(
        [("all", partial(agree, Net(OPTIMIZERS["AdamW"]()), every)),
         ("clip", partial(agree, Net(OPTIMIZERS["Momentum"](grad_clip=Clip(0.5))), every)),
         ("eager", partial(agree, Net(OPTIMIZERS["AdamW"]()), eager))]
    )  # fmt: skip


def low_precision() -> None:
    """16-bit parameters with copies in float32."""
    each(
        (f"{dtype} {level}", partial(agree, Net(OPTIMIZERS["AdamW"](multi_precision=True), dtype), strategy))
        for dtype in ("float16", "bfloat16")
        for level, strategy in (("for-loop", None), ("all", BuildStrategy.all()))
    )


def with_flags(names: Iterable[str] = ("SGD", "AdamW", "Lamb")) -> None:
    """Beside a flag of the program's own that skips updates."""
    for name in names:
        for level in LEVELS:
            agree(Net(OPTIMIZERS[name](), flag=True), BuildStrategy(**({level: True} if level else {})))


class Two:
    """Two losses with an optimizer each; the second loss reads what the first update wrote."""

    def __init__(self) -> None:
        self.main, self.startup = Program("main"), Program("startup")
        self.main.random_seed = self.startup.random_seed = 3
        with guard(), program_guard(self.main, self.startup):
            x = mg.static.data("x", [ROWS, 16])
            first, second = (mg.static.data(name, [ROWS, 1], "int64") for name in ("first", "second"))
            a, b = (mg.static.create_parameter([16, CLASSES], "float32", name=name) for name in "ab")
            OPTIMIZERS["AdamW"](parameters=[a]).minimize(F.cross_entropy(mg.matmul(x, a), first))
            loss = F.cross_entropy(mg.matmul(x, b) * mg.mean(a), second)
            OPTIMIZERS["Adam"](parameters=[b]).minimize(loss)
        self.loss = loss.name

    def feed(self, number: int, kind: int = GOOD) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(number)
        feed = {name: rng.integers(0, CLASSES, (ROWS, 1)) for name in ("first", "second")}
        if kind != GOOD:
            feed["first" if kind == BAD_LABEL else "second"][3] = -7
        return feed | {"x": rng.normal(size=(ROWS, 16)).astype("float32")}


def two_updates() -> None:
    """A fault stops all updates of its run, as on a CPU: also that which is done before the second loss is."""
    made = Two()
    agree(made, None, [GOOD, BAD_LABEL, GOOD, GOOD, BAD_LABEL, BAD_LABEL, GOOD])
    agree(made, BuildStrategy.all(), [GOOD, BAD_LABEL, GOOD, GOOD, BAD_LABEL, BAD_LABEL, GOOD])
    order = [GOOD, GOOD, GOOD, BAD_ID]
    before, _ = trained(made, None, True, order[:-1])
    after, messages = trained(made, None, True, order)
    assert len(messages) == 1, messages
    kept = {name for name in after if after[name].tobytes() == before[name].tobytes()}
    assert kept == set(after), kept


def after_the_update() -> None:
    """What is wrong with values that are read after the update is said; that run changes nothing, the next ones do."""
    made = Net(OPTIMIZERS["AdamW"]())
    with program_guard(made.main, made.startup):
        block, first = made.main.global_block(), made.startup.global_block()
        g = Builder(block)
        for b in (block, first):
            b.create_var("last", [33], "float32", persistable=True, stop_gradient=True)
        Builder(first).fill_constant(shape=(33,), value=0, out={"Out": first.var("last")})
        old = g.reshape(block.var("last"), shape=(33, 1))  # read later: the new value is copied at the end
        g.elementwise_add(block.var("last"), block.var("mean"), out={"Out": block.var("last")})
        g.tanh(old)
        late = mg.static.data("late", [2], "int64")
        F.one_hot(late, 3)
    feed = made.feed

    def fed(number: int, kind: int = GOOD) -> dict[str, np.ndarray]:
        number += 2 * (number > 1 and not late_is_wrong)  # what remains of the runs where two are wrong
        return feed(number, kind) | {"late": np.array([0, 1 + (number in (2, 3) and late_is_wrong) * 5])}

    made.feed = fed
    late_is_wrong = False
    expected, _ = trained(made, None, False, [GOOD] * 4)
    late_is_wrong = True
    for fetch, count in ((False, 1), (True, 2)):
        found, messages = trained(made, None, fetch, [GOOD] * 6)
        assert len(messages) == count and all("value 6 at row 1" in m for m in messages), messages
        assert all(found[name].tobytes() == x.tobytes() for name, x in expected.items()), fetch
    agree(made, None, [GOOD, BAD_LABEL, BAD_ID, GOOD, BAD_LABEL])


class Empty:
    """What is stored after the last kernels that may report has no elements: nobody asks for faults there."""

    def __init__(self) -> None:
        self.main, self.startup = Program("main"), Program("startup")
        self.main.random_seed = self.startup.random_seed = 3
        with guard(), program_guard(self.main, self.startup):
            x, label = mg.static.data("x", [ROWS, 16]), mg.static.data("label", [ROWS, 1], "int64")
            a, b = (mg.static.create_parameter([n, CLASSES], "float32", name=f"w{n}") for n in (16, 0))
            OPTIMIZERS["AdamW"](parameters=[a]).minimize(F.cross_entropy(mg.matmul(x, a), label))
            empty = mg.matmul(mg.static.data("empty", [ROWS, 0]), b)
            loss = F.cross_entropy(empty, mg.static.data("other", [ROWS, 1], "int64"))
            OPTIMIZERS["SGD"](parameters=[b]).minimize(loss)
        self.loss = loss.name

    def feed(self, number: int, kind: int = GOOD) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(number)
        feed = {name: rng.integers(0, CLASSES, (ROWS, 1)) for name in ("label", "other")}
        feed["label"][5] += CLASSES * (kind != GOOD)
        return feed | {"x": rng.normal(size=(ROWS, 16)).astype("float32"), "empty": np.zeros((ROWS, 0), "float32")}


def nothing_to_store() -> None:
    """A fault ends with its run, also where what is stored after it has no elements."""
    agree(Empty(), None)
    agree(Empty(), BuildStrategy.all())


def indices() -> None:
    """An index out of range stops whatever is stored after it."""
    block = Program("indices").global_block()
    w, last = (block.create_var(n, s, "float64", persistable=True) for n, s in (("w", (5, 4)), ("last", (3, 4))))
    ids = block.create_var("ids", (3,), "int64", is_data=True)
    g = Builder(block)
    g.elementwise_add(w, g.reduce_sum(g.gather(w, ids)), out={"Out": w})
    g.assign(g.gather(w, ids), out={"Out": last})
    exe, scope = Executor(PLACE), Scope()
    scope.write("w", np.arange(20.0).reshape(5, 4))
    for i, kind in enumerate((GOOD, GOOD, BAD_ID, GOOD, BAD_ID)):
        before = {name: scope.read(name) for name in scope.list_names()}
        failed = False
        try:
            exe.run(block.program, {"ids": np.array([i % 4, -5, 5 if kind else 0])}, ["last"], scope=scope)
        except KernelError:
            failed = True
        same = all(np.array_equal(scope.read(name), x) for name, x in before.items()) and bool(before)
        assert failed == (kind == BAD_ID) == (same and i > 0), (i, failed, same)


def _ones(*shape: int) -> np.ndarray:
    return np.ones(shape, "float32")


def _index(*values: int) -> np.ndarray:
    return np.array(values, "int64")


POSITIONS = (
    ("gather", (_ones(4, 0), _index(9)), {}), ("gather", (_ones(4, 0), _index(3, -5)), {}),
    ("gather", (_ones(0, 4), _index(9)), {"axis": 1}), ("gather", (_ones(0, 0), _index(0)), {}),
    ("gather", (_ones(4, 0), _index(-4, 3)), {}), ("gather", (_ones(0, 4), _index()), {}),
    ("gather_grad", (_ones(4, 0), _index(9), _ones(1, 0)), {}),
    ("gather_grad", (_ones(4, 3), _index(-5), _ones(1, 3)), {}),
    ("gather_grad", (_ones(0, 4), _index(4), _ones(0, 1)), {"axis": 1}),
    ("gather_grad", (_ones(4, 0), _index(-4), _ones(1, 0)), {}),
    ("embedding", (_index(5), _ones(5, 0)), {}), ("embedding", (_index(4), _ones(5, 0)), {}),
    ("embedding", (_index(0), _ones(0, 3)), {}), ("embedding_grad", (_index(5), _ones(5, 0), _ones(1, 0)), {}),
    ("embedding_grad", (_index(-1), _ones(5, 2), _ones(1, 2)), {}),
    ("embedding_grad", (_index(0), _ones(0, 3), _ones(1, 3)), {}),
    ("embedding_grad", (_index(4), _ones(5, 0), _ones(1, 0)), {}),
)  # fmt: skip


def positions_of_nothing() -> None:
    """Positions are looked at where there is nothing to pick, too, as on a CPU."""
    each((f"{op_type} {i}", partial(_position, op_type, *case)) for i, (op_type, *case) in enumerate(POSITIONS))


def _position(op_type: str, arrays: Any, attrs: Any) -> None:
    block = Program(op_type).global_block()
    inputs = [block.create_var(f"x{i}", a.shape, a.dtype, is_data=True) for i, a in enumerate(arrays)]
    out = Builder(block).emit(op_type, *inputs, **attrs)
    feed, said = {v.name: a for v, a in zip(inputs, arrays, strict=True)}, []
    for exe in (Executor(), Executor(PLACE)):
        try:
            (found,) = exe.run(block.program, feed, [out], scope=Scope())
            said.append(found.shape)
        except KernelError as error:
            said.append("[" + str(error).partition("out of range [")[2].partition(")")[0])
    assert said[0] == said[1] != "[", f"on a CPU {said[0]}, on the GPU {said[1]}"
