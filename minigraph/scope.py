"""Scope: the values of persistable variables between runs."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from .errors import DTypeError, ProgramError, ShapeError, require, shortened
from .types import NO_ARRAY, as_numpy, why_no_array

FAULTS_KEPT = 16


class ScopeTensor:
    """The value of one variable in a Scope: `np.array(t)` reads a copy, `t.set(array)` writes."""

    def __init__(self, scope: Scope, name: str) -> None:
        self._scope, self._name = scope, name

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self._scope.read(self._name)
        return array if dtype is None else array.astype(dtype)

    def set(self, array: Any, place: Any = None) -> None:
        """Replace the value by that of an array of the host, or of another framework there, or of nested lists.

        The shape must stay as it is, numbers of another type are cast where their kind fits.
        """
        old = self._scope.arrays[self._name]
        try:
            new = as_numpy(array)
        except NO_ARRAY as problem:
            raise DTypeError(f"value of {self._name} is {why_no_array(array, problem)}") from None
        require(
            new.shape == old.shape, f"{self._name} has shape {list(old.shape)}, not {list(new.shape)}", ShapeError
        )
        with np.errstate(over="ignore"):
            fits = new.dtype == old.dtype or np.can_cast(new.dtype, old.dtype, "same_kind")
            typed = new.astype(old.dtype) if fits else new
        fits = fits and (np.isfinite(typed) == np.isfinite(new)).all()
        require(fits, f"{self._name} is {old.dtype} and cannot hold these values of {new.dtype}", DTypeError)
        self._scope.write(self._name, typed if typed is not array else typed.copy())

    def shape(self) -> list[int]:
        return list(self._scope.arrays[self._name].shape)

    def __repr__(self) -> str:
        return f"<ScopeTensor {self._name}: {self.shape()}>"


class ScopeVariable:
    """What `scope.find_var` returns."""

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


class Scope:
    """Name -> array of persistable variables, on the host or the GPU that used it last.

    steps    per program, how often it ran: the counter of its random numbers. A run that raised an error does not
             count, so that it is repeated with the same ones; on a GPU one without fetches does, since nobody waits to
             know whether it had a fault, and later runs draw other numbers than on a CPU
    filled   what `fill` wrote last: name -> (array, number)
    waiting  numbers for arrays of a GPU, which the next run writes there in the order of its stream
    faults   of plans that ran here without anybody waiting for them
    lock     held by the Executor that runs in it
    """

    def __init__(self) -> None:
        self.arrays: dict[str, Any] = Arrays()
        self.steps = Steps()
        self.filled: dict[str, tuple[Any, float]] = {}
        self.waiting: dict[str, float] = {}
        self.faults: set[Any] = set()
        self.lock = threading.RLock()

    @property
    def version(self) -> int:
        """Grows whenever a name gets another array."""
        return self.arrays.version  # type: ignore[attr-defined]

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
        """A copy of a value."""
        require(name in self.arrays, f"{name} is not in the scope", ProgramError)
        self.look_at_faults()
        array = self.arrays[name]
        if name in self.waiting:
            return np.full(array.shape, self.waiting[name], array.dtype)
        return np.array(array) if isinstance(array, np.ndarray) else _fetched(array)

    def on_host(self, name: str) -> np.ndarray | None:
        """The array itself, fetched from the GPU first if a program ran there; None without a value."""
        array = self.arrays.get(name)
        if array is not None and not isinstance(array, np.ndarray):
            array = self.read(name)
            self.write(name, array)
        return array

    def write(self, name: str, array: Any) -> None:
        """Set a value; the Scope owns `array` from now on, or a copy of what cannot be written, as NumPy's scalars."""
        if isinstance(array, np.generic) or (isinstance(array, np.ndarray) and not array.flags.writeable):
            array = np.array(array)
        self.waiting.pop(name, None)
        self.arrays[name] = array

    def fill(self, name: str, value: float) -> None:
        """Set all elements to one number: at once on the host, before the next run where a GPU has them."""
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise ProgramError(f"{name} is filled with one number, not with {shortened(repr(value))}") from None
        array = self.arrays[name]
        if isinstance(array, np.ndarray):
            array[...] = number
        else:
            self.waiting[name] = number

    def find_var(self, name: str) -> ScopeVariable | None:
        """The variable called `name`, None where it has no value here."""
        return ScopeVariable(self, name) if name in self.arrays else None

    def list_names(self) -> list[str]:
        return list(self.arrays)


def _fetched(array: Any) -> np.ndarray:
    """The values of an array of a GPU, once all work that was given to it is done."""
    array.device.synchronize()
    return array.get()


_current = [Scope()]


def global_scope() -> Scope:
    """The Scope that is used where none is given."""
    return _current[-1]


@contextmanager
def scope_guard(scope: Scope) -> Iterator[None]:
    """Make `scope` the global one inside the block."""
    require(isinstance(scope, Scope), f"scope_guard takes a Scope, not {scope!r}", ProgramError)
    _current.append(scope)
    try:
        yield
    finally:
        _current.pop()
