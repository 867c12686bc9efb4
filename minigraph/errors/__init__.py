"""Errors that name the call, the one fact that fails, and the user's line.

Every error of minigraph has a code, the same three parts and, where one helps, a hint:

    ShapeError: [MG-SHAPE-005] matmul(X=x: f32[4,8], Y=z: f32[3,8]): inner sizes differ: X axis -1 is 8, Y axis -2 is 3
      built at train.py:31: logits = mg.matmul(x, z)
      hint: transpose Y

Where no call and line are given, they are the function that the user called and the line that did. Codes are those of
`kinds.py`; how an error that nobody catches is shown stands in `tracebacks.py`.
"""

from __future__ import annotations

import difflib
import linecache
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NamedTuple, NoReturn

PACKAGE_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
ERRORS_FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep
DEMO = os.path.join(PACKAGE_FOLDER, "command", "demo.py")  # a user's program, although it lies in the package
PASSED_OVER = contextmanager.__code__.co_filename  # `with program_guard(...)` enters the package from there


class CallSite(NamedTuple):
    """A line of the user's code: the innermost frame outside the package."""

    filename: str
    line: int

    def __str__(self) -> str:
        path = self.filename
        if os.path.isabs(path):
            with suppress(OSError):  # the working directory may be gone
                path = min(os.path.relpath(path), path, key=len)
        return f"{path}:{self.line}"

    def text(self) -> str:
        """`file.py:31: source of that line`, the source left out where it cannot be read."""
        source = linecache.getline(self.filename, self.line).strip()
        return f"{self}: {source}" if source else str(self)


def call_site() -> CallSite | None:
    """The user's line that is now calling into minigraph."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:  # `is_ours` written out: each operator asks
        filename = frame.f_code.co_filename
        if filename == DEMO or (not filename.startswith(PACKAGE_FOLDER) and filename != PASSED_OVER):
            return None if filename.startswith("<frozen ") else CallSite(filename, frame.f_lineno)
        frame = frame.f_back
    return None


def called_function() -> str | None:
    """The public function that the user called, `SGD` for its constructor; None for operators like `x + 1`."""
    frame, name = sys._getframe(1), None
    while frame is not None and is_ours(frame):
        made_here = frame.f_code.co_filename.startswith(ERRORS_FOLDER)
        if not made_here and "<locals>" not in frame.f_code.co_qualname:  # else a wrapper
            name = frame.f_code.co_qualname
        frame = frame.f_back
    name = name.removesuffix(".__init__") if name else None
    return None if name is None or name.rpartition(".")[2].startswith("_") else name


def is_ours(frame: FrameType) -> bool:
    """Whether a frame is the package's, or one of those between it and the user's `with`."""
    filename = frame.f_code.co_filename
    return filename.startswith(PACKAGE_FOLDER) or filename == PASSED_OVER


class MinigraphError(Exception):
    """Base of all errors. `fact` is the one thing that fails, `code` its kind in docs/errors.md; the rest says where.

    A class has the code of the facts that have none of their own; a `Kind` of kinds.py makes errors with a finer one.
    """

    code = "MG-INSTALL-001"

    def __init__(
        self, fact: str, *, call: str | None = None, site: CallSite | None = None, hint: str | None = None,
        code: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(fact)
        self.fact, self.call, self.site, self.hint = fact, call, site, hint
        self.code = code or self.code
        self.called, self.caller = called_function(), call_site()

    def __reduce__(self) -> Any:
        """For copies and other processes: classes have constructors of their own, whose arguments nobody keeps."""
        return _remade, (type(self), self.args, self.__dict__)

    def at(self, call: str, site: CallSite | None) -> MinigraphError:
        """Fill in the call and the user's line where a lower layer did not know them."""
        self.call = self.call or call
        self.site = self.site or site
        return self

    def __str__(self) -> str:
        call = self.call or self.called
        said = f"{call}: {self.fact}" if call and not self.fact.startswith(call) else self.fact
        lines = [f"[{self.code}] {said}"]
        if self.site:
            lines.append(f"  built at {self.site.text()}")
        elif self.caller:
            lines.append(f"  called at {self.caller.text()}")
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)


def _remade(kind: type[MinigraphError], args: tuple[Any, ...], facts: dict[str, Any]) -> MinigraphError:
    """An error as it was."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(facts)
    return error


class ShapeError(MinigraphError, ValueError):
    """Ranks, sizes or axes do not fit."""

    code = "MG-SHAPE-001"


class DTypeError(MinigraphError, TypeError):
    """A data type is not one that the operator takes."""

    code = "MG-DTYPE-001"


class AttrError(MinigraphError, ValueError):
    """An attribute has the wrong type or a value out of its range."""

    code = "MG-ATTR-001"


class ProgramError(MinigraphError, ValueError):
    """A program is put together wrongly: unknown names, foreign variables, no gradient."""

    code = "MG-PROGRAM-001"


class VerifyError(MinigraphError):
    """A graph broke one of its invariants: a defect of the pass that made it."""

    code = "MG-VERIFY-001"


class FeedError(MinigraphError, ValueError):
    """A feed is missing, unknown or does not fit its declared variable."""

    code = "MG-FEED-001"


class FetchError(MinigraphError, ValueError):
    """A fetch target does not exist in the program that runs."""

    code = "MG-FETCH-001"


class UninitializedError(MinigraphError, RuntimeError):
    """A persistable variable is read before the startup program filled it."""

    code = "MG-SCOPE-001"


class PlaceError(MinigraphError, RuntimeError):
    """A place cannot run this: no GPU, or no kernel for it."""

    code = "MG-PLACE-001"


class KernelError(MinigraphError, RuntimeError):
    """A kernel failed on the values it was given (an index out of range, for example)."""

    code = "MG-KERNEL-001"


class NonFiniteError(KernelError):
    """With check_nan_inf: an operator gave NaN or an infinity. The run changed nothing.

    operator  its type;  variable: the name of what it wrote;  index: the first bad element
    step      how often the program had run in this scope before;  when: that as it stands in the fact
    what      the fact without it
    """

    code = "MG-NAN-001"
    operator, variable, what, when = "", "", "", ""
    index: tuple[int, ...] = ()
    step = 0

    def inside(self, place: str, step: int) -> None:
        """It was in this round of a loop, or block; what a block counts its steps with is no number of runs."""
        inner = self.when.rpartition(f"step {self.step}")[0]  # rounds of loops inside
        when = f"{inner}{place} in step {step}"
        self.fact = self.fact.replace(f" in {self.when}, ", f" in {when}, ", 1)
        self.step, self.when = step, when


class OutOfMemoryError(KernelError):
    """A GPU has not enough free memory for a program."""

    code = "MG-MEMORY-001"


def require(
    condition: object, fact: str, error: Callable[..., MinigraphError] = ShapeError, hint: str | None = None
) -> None:
    """Raise `error(fact)` unless `condition` holds; `error` is a class or a Kind."""
    if not condition:
        raise error(fact, hint=hint)


def require_path(path: Any, name: str = "path") -> None:
    """`path`, which the caller knows as `name`, must be a text or an os.PathLike."""
    require(isinstance(path, (str, os.PathLike)), f"{name} must be a path, is {path!r}", ProgramError)


def shortened(text: str, length: int = 80) -> str:
    """`text` in one line, cut where it is longer."""
    text = " ".join(text.split())
    return text if len(text) <= length else f"{text[: length - 3]}..."


def nearest(name: str, known: Iterable[str]) -> str | None:
    """A hint `did you mean ...?` with the known name most like `name`, if one is near."""
    known = [str(k) for k in known]
    begun = [k for k in known if len(str(name)) > 2 and k.startswith(str(name))]
    near = begun or difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else None


def raise_unknown(what: str, name: str, known: Iterable[str], error: Callable[..., MinigraphError]) -> NoReturn:
    """`what` called `name` does not exist; offer the nearest known name."""
    known = list(known)
    hint = nearest(name, known) or (f"known: {', '.join(sorted(known)[:12])}" if known else None)
    raise error(f"{what} {name!r} does not exist", hint=hint, site=call_site())
