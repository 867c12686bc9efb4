"""The lists of mixed precision that a user may change."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from minigraph.compiler.mixed_precision import BLACK, ELSEWHERE, GRAY, PADDLES, WHITE
from minigraph.errors import AttrError, DTypeError, raise_unknown, require
from minigraph.errors.kinds import CONFLICT, NO_DTYPE, UNKNOWN_ATTR
from minigraph.opdef import OPS
from minigraph.types import DType, as_dtype, bfloat16, float16


class AutoMixedPrecisionLists:
    """Which operators compute in 16 bits with `decorate` and `cast_model_to_fp16`.

    custom_white_list      operators that always do, besides the products
    custom_black_list      operators that never do, at O2 neither
    custom_black_varnames  names of variables; operators that read or write one of them never do
    dtype                  float16 or bfloat16, as in Paddle; the lists of both are the same here

    Operators may have Paddle's names, such as matmul_v2. What is in no list computes in float32.
    white_list, black_list, gray_list are sets that may be changed before they are used.
    """

    def __init__(
        self, custom_white_list: Iterable[str] | None = None, custom_black_list: Iterable[str] | None = None,
        custom_black_varnames: Iterable[str] | None = None, dtype: Any = "float16",
    ) -> None:  # fmt: skip
        self.amp_dtype = check_half(dtype).name
        white = _operators("custom_white_list", custom_white_list)
        black = _operators("custom_black_list", custom_black_list)
        both = sorted(white & black)
        require(not both, f"custom_white_list and custom_black_list both hold {', '.join(both)}", CONFLICT)
        self.white_list = (set(WHITE) - black) | white
        self.black_list = (set(BLACK) - white) | black
        self.gray_list = set(GRAY) - white - black
        self.unsupported_list: set[str] = set(black)
        self.black_varnames = _names("custom_black_varnames", custom_black_varnames)

    def never(self, level: str) -> set[str]:
        """Operators that compute in float32 at a level: at O2 those that the user named or added only."""
        own = self.unsupported_list | (self.black_list - BLACK)
        return self.black_list | own if level == "O1" else own


CustomOpLists = AutoMixedPrecisionLists


def check_half(dtype: Any) -> DType:
    """`dtype`, which must be float16 or bfloat16."""
    try:
        found = as_dtype(dtype)
    except DTypeError:
        found = None
    if found is None or found not in (float16, bfloat16):
        raise NO_DTYPE(f"mixed precision has the types float16 and bfloat16, not {dtype!r}"[:200])
    return found


def _names(what: str, given: Iterable[str] | None) -> set[str]:
    names = given if isinstance(given, (set, frozenset, list, tuple)) else None
    fits = given is None or (names is not None and all(isinstance(n, str) for n in names))
    require(fits, f"{what} must be a set or list of names, is {given!r}"[:200], AttrError)
    return set(names or ())


def _operators(what: str, given: Iterable[str] | None) -> set[str]:
    """The operators of these names, some of them Paddle's."""
    found = set()
    for name in _names(what, given):
        own = PADDLES.get(name, name)
        if own in OPS:
            found.add(own)
        elif name not in ELSEWHERE:
            raise_unknown(f"operator of {what}", name, [*OPS, *PADDLES], UNKNOWN_ATTR)
    return found
