"""AgreedPlan: ranks run a plan only where all of them run the same one, with the same values.

    before each run:  what is to run, what changed in the Scope since the last run -> all ranks
                      other programs or shapes: an error on each rank; changed values: those of rank 0

So parameters begin equal on all ranks, and a checkpoint that rank 0 loads is on all of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minigraph.errors import ProgramError
from minigraph.kernels.groups import Group, present
from minigraph.opdef.inner import mixed
from minigraph.program import Program
from minigraph.program.scope import Scope
from minigraph.program.shards import Shard
from minigraph.runtime.backend import RunnablePlan
from minigraph.runtime.version import VERSION
from minigraph.types import TensorType

from .in_pieces import cut, is_in_pieces


def facts_of(
    program: Program, types: Mapping[str, TensorType], fetches: Sequence[str], options: Any, strategy: str = "none"
) -> dict[str, str]:  # fmt: skip
    """What must be the same on all ranks, by names that an error can show; the first that differs is shown."""
    _, _, text = str(program).partition("\n")  # its name may differ, and its seed
    return {
        "minigraph": str(VERSION),
        "BuildStrategy": strategy,
        "program": f"{len(program.ops)} operators, {hashlib.sha256(text.encode()).hexdigest()[:16]}",
        "feeds": ", ".join(f"{name}: {type}" for name, type in sorted(types.items())),
        "fetches": ", ".join(fetches),
        "options of the run": str(options),
    }


def seed_of_rank(seed: int) -> int:
    """The seed with which this rank draws: each has other random numbers, rank 0 those that it would have alone."""
    rank = present().rank
    return mixed(seed & 0xFFFFFFFF, rank) if rank else seed


class AgreedPlan:
    """A plan with collectives, and what the ranks compare before they run it."""

    def __init__(self, plan: RunnablePlan, program: Program, facts: Mapping[str, str]) -> None:
        self.plan, self.program, self.facts, self.seconds = plan, program, facts, plan.seconds
        self.digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
        self.shards = [v for v in program.vars.values() if isinstance(v, Shard)]
        self.persistable = [v for v in program.vars.values() if v.persistable and not isinstance(v, Shard)]
        self.scheduled = {v.name for v, _ in program.lr_schedulers}  # which every rank sets by itself

    def run(self, feeds: Mapping[str, Any], scope: Scope, return_numpy: bool = True) -> list[Any]:
        """Compare, bring values that differ, run."""
        group = present()
        self._agree(group, scope)
        results = self.plan.run(feeds, scope, return_numpy)
        now = scope.version, group.size, self.digest
        if scope.agreed_at != now:
            arrays, own = scope.arrays, {v.name for v in self.persistable}
            known = {name: a for name, a in scope.agreed.items() if arrays.get(name) is a}
            scope.agreed = known | {name: arrays[name] for name in own & arrays.keys()}
            scope.agreed_at = now
        scope.refilled.clear()
        return results

    def _agree(self, group: Group, scope: Scope) -> None:
        own = {
            "digest": self.digest, "step": scope.steps[self.program.origin], "changed": self._changed(group, scope),
            "missing": self._missing(scope) if group.rank == 0 else [],
        }  # fmt: skip
        texts = group.texts(json.dumps(own))
        said = {text: json.loads(text) for text in set(texts)}  # mostly one
        all_of = [said[text] for text in texts]
        if any(each["digest"] != self.digest for each in all_of):
            self._refuse(group)
        scope.steps[self.program.origin] = all_of[0]["step"]
        changed = {name for each in all_of for name in each["changed"]} - {*all_of[0]["missing"]}
        for v in self.persistable:
            if v.name in changed:
                value = scope.read(v.name) if group.rank == 0 else np.empty(v.shape, v.dtype)
                value = group.broadcast(value)
                if group.rank:
                    scope.take(v.name, value)
        for v in self.shards:
            if v.whole in changed:
                cut(v, group, scope)

    def _missing(self, scope: Scope) -> list[str]:
        names = [*(v.name for v in self.persistable), *(v.whole for v in self.shards)]
        return [name for name in names if not scope.has(name)]

    def _changed(self, group: Group, scope: Scope) -> list[str]:
        """Names whose values somebody set since these ranks ran together in this Scope."""
        refilled = scope.refilled - self.scheduled
        if scope.agreed_at[1] != group.size:  # ranks beyond the smaller number have older values
            scope.disagree()
        if scope.agreed_at == (scope.version, group.size, self.digest) and not refilled:
            return []
        set_whole = [v.whole for v in self.shards if not is_in_pieces(v, group.size, scope)]
        arrays, known = scope.arrays, scope.agreed
        names = [v.name for v in self.persistable if arrays.get(v.name) is not known.get(v.name)]
        return [*names, *set_whole, *refilled.intersection(v.name for v in self.persistable).difference(names)]

    def _refuse(self, group: Group) -> None:
        """An error on all ranks that names what differs."""
        all_of = [json.loads(text) for text in group.texts(json.dumps(self.facts))]
        for rank, facts in enumerate(all_of):
            for name, value in facts.items():
                if value != all_of[0][name]:
                    raise ProgramError(
                        f"{name} of rank 0 and rank {rank} differ: {all_of[0][name] or 'none'} and {value or 'none'}",
                        hint="all ranks run one program on batches of one shape",
                    )
