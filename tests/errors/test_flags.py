"""Arguments that are a bool take True and False, also NumPy's, and nothing else: of every public name."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.errors import AttrError

SPACES = (
    mg, mg.base, mg.base.io, mg.distributed, mg.incubate, mg.incubate.optimizer, mg.io, mg.linalg, mg.metric, mg.nn,
    mg.nn.functional, mg.nn.initializer, mg.optimizer, mg.optimizer.lr, mg.profiler, mg.reader, static, static.amp,
    static.nn, mg.tensor,
)  # fmt: skip
NOT_A_FLAG = {("CompiledProgram.program_for", "prune"): "or a tuple of operators"}


def public() -> Iterator[tuple[str, Callable[..., Any]]]:
    """(name, function) of what a user can call."""
    for space in SPACES:
        for name in getattr(space, "__all__", [n for n in dir(space) if n[0] != "_"]):
            found = getattr(space, name, None)
            if inspect.isfunction(found):
                yield name, found
            elif inspect.isclass(found) and found.__module__.startswith("minigraph"):
                yield name, found.__init__
                yield from (
                    (f"{name}.{method}", value) for method, value in vars(found).items()
                    if inspect.isfunction(value) and method[0] != "_"
                )  # fmt: skip


def flags() -> dict[tuple[str, str], tuple[Callable[..., Any], inspect.Parameter]]:
    """(name, parameter) of what is annotated as a bool, or is one by default."""
    found = {}
    for name, function in public():
        for parameter in inspect.signature(function).parameters.values():
            said = str(parameter.annotation) in ("bool", "bool | None")
            if (said or isinstance(parameter.default, bool)) and (name, parameter.name) not in NOT_A_FLAG:
                found[name, parameter.name] = function, parameter
    return found


def test_every_flag_of_every_public_name_is_looked_at():
    """Other arguments are missing in these calls: the flag is looked at first."""
    found, wrong = flags(), []
    assert len(found) > 230
    for (name, argument), (function, parameter) in found.items():
        for value in ("no", 2, -1, 1.0, np.array([True, False])):
            try:
                function(*[None] * (name == "Executor.run"), **{argument: value})
                wrong.append(f"{name}({argument}={value!r}) is taken")
            except AttrError as problem:
                if f"{argument} must be a bool, is " not in str(problem):
                    wrong.append(f"{name}: {problem}")
            except Exception as problem:
                wrong.append(f"{name}({argument}={value!r}): {type(problem).__name__} {problem}")
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and name != "Executor.run":
            before = list(inspect.signature(function).parameters).index(argument)
            flagged = [p for p in list(inspect.signature(function).parameters)[:before] if (name, p) in found]
            if not flagged:
                with pytest.raises(AttrError, match=f"{argument} must be a bool"):
                    function(*[None] * before, "no")
    assert wrong == []


def test_no_check_refuses_what_is_a_bool():
    """A call without its other arguments fails for that reason, not for the flag."""
    for (name, argument), (function, parameter) in flags().items():
        values = [True, np.True_, np.bool_(0), 0, 1, np.int64(1)] + [None] * ("None" in str(parameter.annotation))
        for value in values if name != "Executor.run" and parameter.default is not inspect.Parameter.empty else ():
            with suppress(Exception):
                function(**{argument: value})
                continue
            with pytest.raises(Exception, match=r".") as caught:
                function(**{argument: value})
            assert f"{argument} must be" not in str(caught.value), name


@pytest.mark.parametrize(("yes", "no"), [(np.True_, np.False_), (1, 0), (np.int32(1), np.int32(0))])
def test_what_stands_for_a_bool_does_what_it_does(yes, no):
    x = static.data("x", [2, 3])
    assert mg.sum(x, axis=1, keepdim=yes).shape == (2, 1)
    assert mg.sum(x, 1, None, no).shape == (2,)
    assert x.sum(axis=1, keepdim=yes).shape == (2, 1)
    assert static.default_main_program().clone(for_test=yes).ops
    exe = static.Executor()
    (value,) = exe.run(feed={"x": np.ones((2, 3), "float32")}, fetch_list=[mg.sum(x)], return_numpy=yes)
    assert type(value) is np.ndarray and value == 6
    optimizer = mg.optimizer.Momentum(0.1, use_nesterov=yes, multi_precision=no)
    assert optimizer.use_nesterov is True and optimizer.multi_precision is False


@pytest.mark.parametrize("name", ["use_prune", "return_numpy", "return_merged", "use_program_cache"])
def test_a_run_looks_at_its_flags(name: str):
    with pytest.raises(AttrError, match=f"Executor.run: {name} must be a bool, is 'no'"):
        static.Executor().run(static.Program(), **{name: "no"})


def test_attributes_of_variables():
    x, w = static.data("x", [2]), static.create_parameter([2], "float32")
    for owner, names in ((x, ("stop_gradient", "persistable", "is_data")), (w, ("trainable", "need_clip"))):
        for name in names:
            with pytest.raises(AttrError, match=f"{name} must be a bool, is 'no'"):
                setattr(owner, name, "no")
            setattr(owner, name, np.True_)
            assert getattr(owner, name) is True


@pytest.mark.parametrize("kind", [static.BuildStrategy, static.ExecutionStrategy])
def test_flags_of_strategies(kind: type):
    strategy = kind()
    names = [name for name in dir(strategy) if isinstance(getattr(strategy, name), bool) and name[0] != "_"]
    assert len(names) > 3
    for name in names:
        for value in ("no", "False", 2, -1, 0.0, [], np.array([True])):
            with pytest.raises(AttrError, match=f"{name} must be a bool"):
                setattr(strategy, name, value)
        for value in (True, np.True_, 1, np.int64(1)):
            setattr(strategy, name, False)
            setattr(strategy, name, value)
            assert getattr(strategy, name) is True
    copied = kind()
    copied.__dict__.update(vars(strategy))
    assert vars(copied) == vars(strategy)


def test_public_functions_are_still_found_by_their_names():
    assert mg.tensor.sum is mg.sum
    for function in (mg.batch, static.load, static.create_global_var):
        assert pickle.loads(pickle.dumps(function)) is function
    assert "keepdim" in inspect.signature(mg.sum).parameters
