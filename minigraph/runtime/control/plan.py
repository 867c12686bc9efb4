"""ControlPlan: a program with branches and loops on any device.

    for each part:  run the plan of its piece, keep what later parts read
                    let the host decide: fetch the predicate, run the block that it asks for

Plans are made when the shapes are known, and kept for them. Values between parts stay on the device.
"""

from __future__ import annotations

import time
import warnings
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from minigraph.errors import FeedError, MinigraphError, NonFiniteError, ProgramError
from minigraph.errors.kinds import MISSING_FEED
from minigraph.kernels.control import loop, loop_gradient
from minigraph.opdef.inner import as_flag, mixed
from minigraph.program import Operator, Program, Variable
from minigraph.program.blocks.subprogram import SubProgram
from minigraph.program.prune import Prune, pruned_ops
from minigraph.program.scope import Scope
from minigraph.runtime.backend import Backend, RunnablePlan
from minigraph.runtime.nonfinite import check_host
from minigraph.runtime.options import RunOptions
from minigraph.types import TensorType

from .pieces import CutPiece, cut, is_cut, values_read
from .undo import Kept
from .waiting import WaitingBlocks

CUT = "the host decides here: one captured graph ends, another begins"
LOOPS = frozenset({"while_loop", "while_loop_grad"})
PLANS_KEPT = 64  # of one piece or block, for the shapes that it met last

Types = tuple[tuple[str, TensorType], ...]


def plan_for(
    backend: Backend, program: Program, feeds: Mapping[str, TensorType], fetches: Sequence[str], prune: Prune,
    seed: int, options: RunOptions,
) -> RunnablePlan:  # fmt: skip
    """The plan of a program at a backend, a ControlPlan where the host has to decide something."""
    if is_cut(program):
        return ControlPlan(backend, program, feeds, fetches, prune, seed, options)
    return backend.plan(program, feeds, fetches, prune, seed, options)


class ControlPlan:
    """The parts of a program for feeds of the given types.

    seconds  what it has cost the host to make plans
    """

    seconds = 0.0

    def __init__(
        self, backend: Backend, program: Program, feeds: Mapping[str, TensorType], fetches: Sequence[str],
        prune: Prune, seed: int, options: RunOptions,
    ) -> None:  # fmt: skip
        self.backend, self.program, self.seed, self.options = backend, program, seed, options
        computed = {name for name in feeds if not program.vars[name].is_data}
        ops = pruned_ops(program.ops, fetches, prune, computed) if prune is not False else program.ops
        self.fed = frozenset(feeds)
        self.parts = cut(program, ops, fetches, feeds)
        self.plans: dict[int, OrderedDict[Types, RunnablePlan]] = {}  # by id of a piece or block
        self.kept = Kept(self.parts)
        self.waiting = WaitingBlocks(lambda block: self.plans.pop(id(block), None))
        self.differentiated = {
            id(op.forward) for op in ops if op.type == "while_loop_grad" and op.forward is not None
        }
        python = next((op for op in ops if op.type == "py_func"), None)
        if python is not None and backend.captures:
            warnings.warn(
                f"program {program.name} calls {python.attrs['function'].name} in each run, built at {python.site}: the"
                " GPU waits for it, and no captured graph goes across it", stacklevel=7,
            )  # fmt: skip
        self.told = 0  # of how many plans `explain` has the remarks

    def run(self, feeds: Mapping[str, Any], scope: Scope, return_numpy: bool = True) -> list[Any]:
        """Run all parts; the fetched values, which later runs do not change."""
        origin, env, histories = self.program.origin, dict(feeds), dict[int, Any]()
        step = scope.steps[origin]
        old, part = self.kept.values(scope), self.parts[0]
        try:
            for part in self.parts:
                results = self._run_piece(part, env, scope, step, return_numpy)
                if part.control is None:
                    scope.steps[origin] = step + 1
                    self._tell()
                    return results
                self._decide(part.control, env, scope, step, histories)
                env = {name: value for name, value in env.items() if name in part.needed}
        except BaseException:
            if part.control is not None or scope.steps[origin] == step:  # else all is done, but for handing it over
                scope.steps[origin] = step
                self.kept.restore(scope, old)
            raise
        raise AssertionError("the last part decides nothing")

    def _tell(self) -> None:
        """What `explain` shows: where the program is cut, and what the plans of its pieces remark."""
        made = sum(map(len, self.plans.values()))
        if self.backend.captures and made != self.told:
            self.told = made
            cuts = [(part.control, CUT) for part in self.parts if part.control is not None]
            self.program.notes = [*cuts, *(note for part in self.parts for note in part.piece.notes)]

    def _run_piece(self, part: CutPiece, env: dict[str, Any], scope: Scope, step: int, return_numpy: bool) -> list[Any]:
        """Run a piece; what later parts read comes into `env`, the last piece gives what is fetched."""
        last = part.control is None
        if not part.piece.ops and not part.fetches:
            return []
        given = {name: env[name] for name in part.reads if name in env}
        plan = self._plan(part.piece, given, part.fetches, False)
        results = plan.run(given, scope, return_numpy and last)
        if not last:
            scope.steps[self.program.origin] = step  # the run goes on: it counts when the last piece is through
            env.update(zip(part.fetches, results, strict=True))
        return results

    def _plan(self, program: Any, given: Mapping[str, Any], fetches: Sequence[str], prune: Prune) -> RunnablePlan:
        """The plan of a piece or block for values of these shapes."""
        types = {name: TensorType(tuple(a.shape), program.vars[name].dtype) for name, a in given.items()}
        key, known = tuple(types.items()), self.plans.setdefault(id(program), OrderedDict())
        plan = known.get(key)
        if plan is None:
            start = time.perf_counter()
            plan = known[key] = plan_for(
                self.backend, cast(Program, program), types, fetches, prune, self.seed, self.options
            )
            self.seconds += time.perf_counter() - start
            if len(known) > PLANS_KEPT:
                known.popitem(last=False)
        known.move_to_end(key)
        return plan

    def _decide(
        self, op: Operator, env: dict[str, Any], scope: Scope, step: int, histories: dict[int, Any]
    ) -> None:  # fmt: skip
        """Run an operator that the host decides; its results come into `env`."""
        read = values_read(op, self.fed)
        missing = next((n for names in read.values() for n in names if n is not None and n not in env), None)
        if missing is not None:
            raise _without_value(self.program.vars[missing], op)
        given = {slot: [None if name is None else env[name] for name in names] for slot, names in read.items()}
        try:
            results = DECISIONS[op.type](self, op, given, partial(self._run_block, scope, step, op), histories)
            if op.type == "py_func" and self.options.check_nan_inf:  # of the others, the operators of their blocks are
                check_host(op, given["X"], results["Out"], step, self.program)
        except MinigraphError as problem:
            raise problem.at(op.call(), op.site) from None
        for slot, vs in op.outputs.items():
            for v, array in zip(vs, results[slot], strict=True):
                if v.persistable:  # the pieces read it there
                    scope.take(v.name, np.array(host(array)))
                env[v.name] = array

    def _run_block(
        self, scope: Scope, step: int, op: Operator, block: SubProgram, values: Sequence[Any], number: int | None
    ) -> list[Any]:
        """What a block returns for these values; None stands for what it reads in the Scope."""
        given = {}
        for v, array in zip(block.inputs, values, strict=True):
            if not v.persistable:
                given[v.name] = array
            elif array is not None:
                raise ProgramError(f"{block.name} reads {v} in the scope, but is given another value for it",
                                   hint="a variable that is fed or computed is not persistable")  # fmt: skip
        scope.steps[block.origin] = step if number is None else mixed(step, number)
        try:
            return self._plan(block, given, block.fetched, False).run(given, scope, False)
        except NonFiniteError as problem:
            if number is not None:
                place = f"round {number} of {block.name}" if op.type in LOOPS else block.name
                problem.inside(place, step)
            raise


def _without_value(v: Variable, op: Operator) -> FeedError:
    """The error for a value that an operator reads, and that nobody fed or computed."""
    fed = f"feed {v.name!r} is missing: the program reads {v}"
    fact = fed if v.is_data else f"{v} has no value: it is not fed and no operator that runs before writes it"
    return MISSING_FEED(fact, call=op.call(), site=v.site)


def _cond(plan: ControlPlan, op: Operator, given: dict[str, list[Any]], run: Any, histories: Any) -> Any:
    block = op.attrs["true_block" if as_flag(host(given["Pred"][0])) else "false_block"]
    return {"Out": run(block, given.get("Input", ()), None)}


def _call(plan: ControlPlan, op: Operator, given: dict[str, list[Any]], run: Any, histories: Any) -> Any:
    return {"Out": run(op.attrs["block"], given["Input"], None)}


def _pylayer(plan: ControlPlan, op: Operator, given: dict[str, list[Any]], run: Any, histories: Any) -> Any:
    return {"Out": run(op.attrs["forward_block"], [*given["X"], *given.get("Input", ())], None)}


def _while_loop(plan: ControlPlan, op: Operator, given: dict[str, list[Any]], run: Any, histories: Any) -> Any:
    history = histories.setdefault(id(op), []) if id(op) in plan.differentiated else None
    cond, body = op.attrs["cond_block"], op.attrs["body_block"]
    return {"Out": loop(cond, body, given["X"], given.get("Input", ()), run, host, history)}


def _while_loop_grad(plan: ControlPlan, op: Operator, given: dict[str, list[Any]], run: Any, histories: Any) -> Any:
    more, history = given.get("Input", []), histories.pop(id(op.forward), None)
    if history is None:  # its forward operator does not run here
        loop(op.attrs["cond_block"], op.attrs["body_block"], given["X"], more, run, host, history := [])
    grads, sums = loop_gradient(
        op.attrs["grad_block"], history, more, given.get("Out_grad", ()), given.get("Sum", ()), run
    )
    return {"X_grad": grads, "Input_grad": sums}


def host(array: Any) -> np.ndarray:
    """An array of the host or of a device as one of the host."""
    return array if isinstance(array, np.ndarray) else array.get()


def _py_func(plan: ControlPlan, op: Operator, given: dict[str, list[Any]], run: Any, histories: Any) -> Any:
    given["X"] = [host(x) for x in given["X"]]
    return {"Out": op.opdef.reference(given["X"], **op.attrs)}


def _deferred(plan: ControlPlan, op: Operator, given: dict[str, list[Any]], run: Any, histories: Any) -> Any:
    xs, numbers = given.get("X", []), [host(array) for array in given.get("Number", ())]
    return {"Out": run(plan.waiting.block(op, xs, numbers), xs, op.number)}


def _deferred_grad(plan: ControlPlan, op: Operator, given: dict[str, list[Any]], run: Any, histories: Any) -> Any:
    block = plan.waiting.block(op, given["X"], [host(array) for array in given["Number"]])
    number = (op.forward or op).number  # the random numbers of the forward operator
    return {"X_grad": run(block, [*given["X"], *given["Out_grad"]], number)}


DECISIONS = {
    "call": _call, "cond": _cond, "deferred": _deferred, "deferred_grad": _deferred_grad, "py_func": _py_func,
    "pylayer": _pylayer, "while_loop": _while_loop, "while_loop_grad": _while_loop_grad,
}  # fmt: skip
