"""Scope: the values of persistable variables between runs."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np

from minigraph.errors import MinigraphError, ProgramError, ShapeError, call_site, require, shortened
from minigraph.errors.kinds import (
    MIXED_TYPES,
    NAME,
    NO_NUMBERS,
    NOT_OFFERED,
    UNKNOWN_NAME,
    no_memory,
)
from minigraph.types import NO_ARRAY, SHORT_NAMES, as_numpy, in_one_piece, in_type, why_no_array

from .context import Guards, Turn, held_elsewhere, renewed_in_child, reusable
from .copies import NotPickled

FAULTS_KEPT = 16


class ScopeTensor(NotPickled):
    """The value of one variable in a Scope: `np.array(t)` reads a copy, `t.set(array)` writes."""

    _instead = "np.array(tensor) copies the value"

    def __init__(self, scope: Scope, name: str) -> None:
        self._scope, self._name = scope, name

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self._scope.read(self._name)
        return array if dtype is None else array.astype(dtype)

    def set(self, array: Any, place: Any = None) -> None:
        """Replace the value by that of an array of the host, or of another framework there, or of nested lists.

        The shape must stay as it is, numbers of another type are cast where their kind fits.
        """
        try:
            new = as_numpy(array)
        except NO_ARRAY as problem:
            raise NO_NUMBERS(f"value of {self._name} is {why_no_array(array, problem)}") from None
        old, known = self._scope.arrays.get(self._name), new.dtype.newbyteorder("=") in SHORT_NAMES
        if old is None:  # of `scope.var`
            return self._scope.write(self._name, new)
        shapes = f"{self._name} has shape {list(old.shape)}, not {list(new.shape)}"
        require(new.shape == old.shape, shapes, ShapeError)
        fits = new.dtype == old.dtype or (known and np.can_cast(new.dtype, old.dtype, "same_kind"))
        typed = in_type(new, old.dtype) if fits else None
        if typed is None:
            raise MIXED_TYPES(f"{self._name} is {old.dtype} and cannot hold these values of {new.dtype}")
        self._scope.take(self._name, typed)  # a new array
        self._scope.were_set([self._name])

    def shape(self) -> list[int]:
        return list(self._scope.arrays[self._name].shape) if self._scope.has(self._name) else []

    def lod(self) -> list[list[int]]:
        """Offsets of sequences in one tensor: none, there are no such tensors here."""
        return []

    recursive_sequence_lengths = lod

    def __repr__(self) -> str:
        return f"<ScopeTensor {self._name}: {self.shape()}>"


class StateArray(np.ndarray):
    """A value in a `state_dict`: a copy, whose `set` changes it and the value in the scope, as Paddle's does."""

    _tensor: ScopeTensor | None = None  # None of what is computed from it

    def set(self, array: Any, place: Any = None) -> None:
        """As ScopeTensor.set."""
        if self._tensor is None:
            raise ProgramError("this array is computed from a state and stands in no scope",
                               hint="program.set_state_dict(state_dict) puts values there")  # fmt: skip
        self._tensor.set(array, place)
        self[...] = np.asarray(self._tensor)


class ScopeVariable(NotPickled):
    """What `scope.find_var` returns."""

    _instead = "np.array(variable.get_tensor()) copies the value"

    def __init__(self, scope: Scope, name: str) -> None:
        self._scope, self.name = scope, name

    def get_tensor(self) -> ScopeTensor:
        return ScopeTensor(self._scope, self.name)


class Arrays(dict[str, Any]):
    """A dict that counts its changes, so that a plan asks one number whether its addresses still hold."""

    version = 0


def _counting(name: str) -> Any:
    method = getattr(dict, name)

    def change(self: Arrays, *args: Any, **kwargs: Any) -> Any:
        self.version += 1
        return method(self, *args, **kwargs)

    change.__name__ = name
    return change


for _name in ("__setitem__", "__delitem__", "__ior__", "clear", "pop", "popitem", "setdefault", "update"):
    setattr(Arrays, _name, _counting(_name))


class Steps(weakref.WeakKeyDictionary[Any, int]):
    """Program.origin -> number of runs, 0 at first; forgotten with the last program of this origin."""

    def __getitem__(self, origin: Any) -> int:
        return self.get(origin, 0)


class Torn:
    """What a Scope knows of values that are neither old nor new; `torn` is {name: the reason}."""

    def __init__(self) -> None:
        self.torn: dict[str, str] = {}

    def tear(self, names: Iterable[str], reason: str) -> None:
        """Refuse to read these from now on, until they are written."""
        self.torn |= dict.fromkeys(names, reason)

    def check_whole(self, name: str) -> None:
        """Refuse a value that `tear` has marked."""
        if name in self.torn:
            raise ProgramError(f"{name} may be half a step ahead of others: {self.torn[name]}",
                               hint="load a checkpoint, run the startup program again or set the values;"
                               " scope.accept_torn() takes them as they are")  # fmt: skip

    def accept_torn(self) -> list[str]:
        """Take all values as they are after a run that ended between its updates; returns the names concerned."""
        names = list(self.torn)
        self.torn.clear()
        return names


class Scope(Torn, NotPickled):
    """Name -> array of persistable variables, on the host or the GPU that used it last.

    steps    per program, how often it ran: the counter of its random numbers. A run that raised an error does not
             count, so that it is repeated with the same ones; on a GPU one without fetches does, since nobody waits to
             know whether it had a fault, and later runs draw other numbers than on a CPU
    filled   what `fill` wrote last: name -> (array, number)
    refilled, agreed, agreed_at  names that `fill` wrote since ranks last ran a program here together, the arrays that
             they had then, and (version, number of ranks, what they ran): runtime/parallel/agreement.py
    waiting  numbers for arrays of a GPU, which the next run writes there in the order of its stream
    faults   of plans that ran here without anybody waiting for them
    set_at   name -> number of the call that set it from outside of a run, `sets` of them so far
    followed program.origin -> `sets` when its float32 copies of parameters followed them last
    lock     held by the Executor that runs in it, and by whoever reads or writes values: they are those between runs
    turn     taken with the lock by a run, and by who reads or sets values that belong together
    """

    _instead = "program.state_dict(scope=scope) copies the values; static.save(program, path) writes them"

    def __init__(self) -> None:
        super().__init__()
        self.arrays: dict[str, Any] = Arrays()
        self.steps = Steps()
        self.filled: dict[str, tuple[Any, float]] = {}
        self.refilled, self.agreed = set[str](), dict[str, Any]()
        self.agreed_at = (-1, 0, "")
        self.waiting, self.faults = dict[str, float](), set[Any]()
        self.taken = 0  # changes of `arrays` by `take`
        self.set_at, self.sets = dict[str, int](), 0
        self.followed = Steps()
        self.separated = 0  # how many others there were when `separate` looked last
        self.lock, self.turn = threading.RLock(), Turn("Scope")
        renewed_in_child(self, _in_child)

    @property
    def version(self) -> int:
        """Grows whenever a name gets another array."""
        return self.arrays.version  # type: ignore[attr-defined]

    def disagree(self) -> None:
        """Forget that ranks have the same values as this one: it trained alone, or a step together failed."""
        self.agreed_at, self.agreed = (-1, 0, ""), {}

    def watch(self, faults: Any) -> set[Any]:
        """Look at these before a value is read, and now and then, so that few are kept."""
        if len(self.faults) >= FAULTS_KEPT:
            self.look_at_faults()
        self.faults.add(faults)
        return self.faults

    def look_at_faults(self) -> None:
        """Raise what kernels reported in runs that nobody waited for."""
        while self.faults:
            with self.lock:
                first, *others = self.faults
                self.faults = set(others)  # another set: plans that run from now on are watched anew
            first.check()

    def has(self, name: str) -> bool:
        return name in self.arrays

    def read(self, name: str) -> np.ndarray:
        """A copy of a value, in C order."""
        require(name in self.arrays, f"{name} is not in the scope", UNKNOWN_NAME)
        with self.lock:
            self.check_whole(name)
            self.look_at_faults()
            array = self.arrays[name]
            if name in self.waiting:
                return np.full(array.shape, self.waiting[name], array.dtype)
            return in_one_piece(_fetched(array)) if _is_of_gpu(array) else _copied(name, array)

    def released(self, name: str) -> np.ndarray:
        """A value for who sets another one in its place: the array itself where the host has it, else a copy."""
        with self.lock:
            array = self.arrays.get(name)
            if type(array) is not np.ndarray:  # a masked one is refused there
                return self.read(name)
            self.check_whole(name)
            self.look_at_faults()
            return in_one_piece(array)

    def on_host(self, name: str) -> np.ndarray | None:
        """The array itself, fetched from the GPU first if a program ran there; None without a value."""
        with self.lock:
            array = self.arrays.get(name)
            if array is not None and not isinstance(array, np.ndarray):
                array = self.read(name)
                self.take(name, array)
            return array

    def write(self, name: str, array: Any) -> None:
        """Set a value to that of an array, of the host or of a GPU; the Scope keeps a copy of its own."""
        on_gpu = hasattr(array, "__cuda_array_interface__") and hasattr(array, "copy")
        new = array.copy() if on_gpu else _copied(name, array)
        require(new.dtype in SHORT_NAMES, f"value of {name} is an array of {new.dtype}, no data type", NO_NUMBERS)
        self.take(name, new)
        self.were_set([name])

    def take(self, name: str, array: Any) -> None:
        """Set a value; `array` belongs to nobody else, and is the Scope's from now on.

        What it keeps is in one piece, so that its bytes and its address say all.
        """
        if isinstance(array, (np.ndarray, np.generic)):
            array = in_one_piece(np.asarray(array))
        with self.lock:
            self.arrays[name] = array
            self.taken += 1
            self.waiting.pop(name, None)
            self.torn.pop(name, None)  # last: an interrupt before leaves the mark

    def were_set(self, names: Iterable[str]) -> None:
        """One call gave these values, from outside of a run."""
        with self.lock:
            self.sets += 1
            self.set_at.update(dict.fromkeys(names, self.sets))

    @contextmanager
    def replacing(self, names: Iterable[str], by: str) -> Iterator[None]:
        """Values that belong together are set inside: an interrupt leaves those marked that are not.

        A MinigraphError is a refusal, raised before the first of them is set.
        """
        with self.lock:
            before = dict(self.torn)
            self.tear(names, f"{by} was interrupted")
            try:
                yield
            except MinigraphError:
                self.torn = before
                raise

    def separate(self) -> None:
        """Make the arrays that `take` did not bring such as it keeps: in one piece, each in memory of its own.

        What shows the same memory would change with another name, what cannot be written would fail half a step ahead.
        """
        others = self.version - self.taken
        if others == self.separated:
            return
        torn = dict(self.torn)
        for name, array in list(self.arrays.items()):
            if not _is_of_gpu(array) and not _is_kept(array):
                self.take(name, _copied(name, array))
        reach = 0
        for start, end, name in sorted((*_span(a), name) for name, a in self.arrays.items()):
            if start < min(reach, end):
                self.take(name, self.arrays[name].copy())
            reach = max(reach, end)
        self.torn, self.separated = torn, others

    def fill(self, name: str, value: float) -> None:
        """Set all elements to one number: at once on the host, before the next run where a GPU has them."""
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise ProgramError(f"{name} is filled with one number, not with {shortened(repr(value))}") from None
        with self.lock:
            array = self.arrays[name]
            self.refilled.add(name)
            self.torn.pop(name, None)
            if isinstance(array, np.ndarray):
                array[...] = number
            else:
                self.waiting[name] = number

    def state(self, name: str) -> StateArray:
        """A copy of a value, whose `set` writes to this scope."""
        copy = self.read(name).view(StateArray)
        copy._tensor = ScopeTensor(self, name)
        return copy

    def new_scope(self) -> NoReturn:
        raise NOT_OFFERED("a Scope has no scopes inside", call="Scope.new_scope", site=call_site(),
                          hint="static.Scope() is a new one; scope_guard, run(scope=scope) use it")  # fmt: skip

    def find_var(self, name: str) -> ScopeVariable | None:
        """The variable called `name`, None where it has no value here."""
        return ScopeVariable(self, name) if name in self.arrays else None

    def var(self, name: str) -> ScopeVariable:
        """The variable called `name`; `var(name).get_tensor().set(array, place)` gives it a value where it has none."""
        require(isinstance(name, str) and name, f"name must be a str, is {name!r}", NAME)
        return ScopeVariable(self, name)

    def list_names(self) -> list[str]:
        return list(self.arrays)


def _in_child(scope: Scope) -> None:
    """Another thread of the parent was in the middle of something here: nobody knows what it had written."""
    if held_elsewhere(scope.lock):
        scope.lock, scope.turn = threading.RLock(), Turn("Scope")
        scope.tear(scope.arrays, "this process was forked in the middle of what another thread of its parent did")


def _is_of_gpu(array: Any) -> bool:
    return not isinstance(array, np.ndarray) and hasattr(array, "get")


def _copied(name: str, value: Any) -> np.ndarray:
    """A copy of a value of the host, in C order and native byte order."""
    try:
        return in_one_piece(np.array(as_numpy(value), order="C"))
    except NO_ARRAY as problem:
        raise NO_NUMBERS(f"value of {name} is {why_no_array(value, problem)}") from None
    except MemoryError as problem:
        raise no_memory(f"a copy of {name}", problem) from problem


def _is_kept(array: Any) -> bool:
    """Whether an array is as `take` leaves one."""
    return type(array) is np.ndarray and array.flags.carray and array.dtype.isnative


def _span(array: Any) -> tuple[int, int]:
    """The addresses between which an array lies."""
    if not isinstance(array, np.ndarray):
        return (array.data.ptr, array.data.ptr + array.nbytes) if hasattr(array, "data") else (0, 0)
    if array.flags.c_contiguous:
        start = array.__array_interface__["data"][0]
        return start, start + array.nbytes
    return np.lib.array_utils.byte_bounds(array)


def _fetched(array: Any) -> np.ndarray:
    """The values of an array of a GPU, once all work that was given to it is done."""
    array.device.synchronize()
    return array.get()


_default = Scope()
_guards = Guards[Scope]("scope_guard")


def global_scope() -> Scope:
    """The Scope that is used where none is given."""
    return _guards.innermost(_default)


@reusable
def scope_guard(scope: Scope) -> Iterator[None]:
    """Make `scope` the global one inside the block, for the thread that enters it."""
    require(isinstance(scope, Scope), f"scope_guard takes a Scope, not {scope!r}", ProgramError)
    with _guards.entered(scope):
        yield
