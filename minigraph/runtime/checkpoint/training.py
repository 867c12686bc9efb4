"""The state of a training beside its arrays: what the next run needs to draw and to decay as it would have.

    {"runs": how often the program ran in the scope: the counter of its random numbers,
     "seed": what it draws with; a program with a `random_seed` of its own keeps that,
     "schedulers": {learning-rate variable: {"class": name, "state": {name: number, ...}}}}

Nothing here sets what a file names: a scheduler reads the states that its class lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minigraph.errors import MinigraphError, ProgramError, shortened
from minigraph.errors.kinds import DAMAGED, OTHER_PROGRAM
from minigraph.program import Program
from minigraph.program.scope import Scope
from minigraph.runtime.seeds import resume_seed, seed_of_next_run

VALUES_ALONE = "set_program_state(program, load_program_state(path)) loads the values alone"


def training_state(program: Program, scope: Scope) -> dict[str, Any]:
    """What `resume` puts back; call it while no run goes on."""
    schedulers = {}
    for variable, scheduler in program.lr_schedulers:
        where = f"{type(scheduler).__name__} of {variable.name}"
        schedulers[variable.name] = {"class": scheduler.kind(), "state": _plain(scheduler.state_dict(), where)}
    return {"runs": scope.steps[program.origin], "seed": seed_of_next_run(program, scope), "schedulers": schedulers}


def check_training(program: Program, training: Mapping[str, Any], path: str) -> None:
    """Refuse the state of another training."""
    schedulers = training.get("schedulers")
    if not (_is_count(training.get("runs")) and _is_count(training.get("seed")) and isinstance(schedulers, dict)):
        raise DAMAGED(f"{path} holds no state of a training")
    own = {variable.name: scheduler for variable, scheduler in program.lr_schedulers}
    for name in schedulers.keys() | own.keys():
        saved = schedulers.get(name, {})
        kind = saved.get("class") if isinstance(saved, dict) else None
        here = own[name].kind() if name in own else None
        if kind != here and (name in own or name in program.vars):
            raise OTHER_PROGRAM(
                f"{path} was saved with {_described(kind)} for {name}, the program has {_described(here)}",
                hint=VALUES_ALONE,
            )


def resume_training(program: Program, scope: Scope, training: Mapping[str, Any]) -> None:
    """Go on from a state that `check_training` let pass; schedulers stay as they were where one refuses its state."""
    schedulers = [(variable.name, scheduler) for variable, scheduler in program.lr_schedulers]
    before = [scheduler.state_dict() for _, scheduler in schedulers]
    try:
        for name, scheduler in schedulers:
            scheduler.set_state_dict(training["schedulers"][name]["state"])
    except Exception as problem:
        for (_, scheduler), state in zip(schedulers, before, strict=True):
            scheduler.set_state_dict(state)
        if isinstance(problem, MinigraphError):
            raise
        raise OTHER_PROGRAM(f"a scheduler cannot go on from its saved state: {problem!r}") from problem
    scope.steps[program.origin] = training["runs"]
    if not program.random_seed:
        resume_seed(program, scope, training["seed"])


def _plain(value: Any, where: str) -> Any:
    """A value in the types of JSON; a state of other types is refused."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(v, where) for v in value]
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return {name: _plain(v, where) for name, v in value.items()}
    raise ProgramError(
        f"the state of {where} holds {shortened(repr(value))}; a checkpoint keeps numbers, texts, lists and dicts"
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _described(kind: Any) -> str:
    return "a rate without a schedule" if kind is None else str(kind)
