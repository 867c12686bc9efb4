"""What `copy`, `deepcopy` and `pickle` are told by objects that they would take apart wrongly."""

from __future__ import annotations

from typing import Any, NoReturn

from minigraph.errors import ProgramError


class NotPickled:
    """Base of classes whose objects are one part of a whole, or hold what belongs to this process.

    hint   what to do instead, as errors show it
    """

    __slots__ = ()
    _instead = "keep the program's text, str(program), and the weights, static.save(program, path)"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise ProgramError(f"a {type(self).__name__} cannot be pickled", hint=self._instead)

    def _to_readable_code(self, *how: Any) -> str:
        """What print shows; Paddle's arguments choose among kinds of its text."""
        return str(self)

    def __copy__(self) -> Any:
        raise ProgramError(f"a {type(self).__name__} cannot be copied", hint=self._instead)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        raise ProgramError(f"a {type(self).__name__} cannot be copied", hint=self._instead)


class PartOfProgram(NotPickled):
    """Base of what belongs to one Program."""

    __slots__ = ()
    _instead = "program.clone() copies a program with all that belongs to it, copy.deepcopy(program) likewise"
