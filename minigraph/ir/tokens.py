"""One line of a program's text, cut into tokens and taken from left to right."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, NoReturn, TypeVar

from minigraph.errors import MinigraphError, ProgramError, nearest
from minigraph.errors.kinds import TEXT
from minigraph.program.text.grammar import MARKS, PLAIN_NAME, VALUES
from minigraph.types import DTYPES, SHORT_NAMES, TensorType, tensor_type

T = TypeVar("T")

LARGEST_RANK = 64  # NumPy's limit
TOKEN = re.compile(
    r"(?P<space>[ \t]+)"
    r'|(?P<string>"(?:[^"\\]|\\.)*")'
    rf"|(?P<mark>[{re.escape(MARKS)}])"
    rf"|(?P<word>{PLAIN_NAME.pattern})"
)
INT = re.compile(r"-?[0-9]{1,40}")
FLOAT = re.compile(r"-?(?:[0-9]{1,400}(?:\.[0-9]{0,400})?(?:[eE][-+]?[0-9]{1,5})?|inf|nan)")
DTYPE_NAMES = {dtype.name: dtype for dtype in SHORT_NAMES}


class TextError(ProgramError):
    """A line of a program's text is wrong; the message shows it with a caret."""

    code = TEXT.code

    def __init__(self, fact: str, line: int, column: int, source: str, hint: str | None = None) -> None:
        start = max(0, column - 70)
        shown = "".join(c if c.isprintable() else " " for c in source[start : start + 110])
        super().__init__(f"line {line}: {fact}\n    {shown}\n    {' ' * (column - start)}^", hint=hint)
        self.line, self.column = line, column


class Token(NamedTuple):
    kind: str  # word, string, mark or end
    text: str
    column: int

    def __str__(self) -> str:
        return "the end of the line" if self.kind == "end" else repr(self.text[:80])


class Line:
    """The tokens of one line and how many are taken; `#` after a space starts a comment."""

    def __init__(self, number: int, source: str) -> None:
        self.number, self.source, self.position = number, source, 0
        self.tokens: list[Token] = []
        column, spaced = 0, True
        while column < len(source) and not (spaced and source[column] == "#"):
            match = TOKEN.match(source, column)
            if match is None:
                if source[column] == '"':
                    self.fail("this string does not end", column)
                self.fail(f"{source[column]!r} has no meaning here", column)
            kind = str(match.lastgroup)
            if kind != "space":
                self.tokens.append(Token(kind, match.group(), column))
            spaced, column = kind == "space", match.end()
        self.tokens.append(Token("end", "", column))

    def fail(self, fact: str, at: Token | int, hint: str | None = None) -> NoReturn:
        column = at.column if isinstance(at, Token) else at
        raise TextError(fact, self.number, column, self.source, hint)

    def unknown(self, what: str, at: Token, known: Iterable[str]) -> NoReturn:
        """`what` called so does not exist; offer the nearest name."""
        known = list(known)
        hint = nearest(at.text, known) or (f"known: {', '.join(sorted(known)[:12])}" if known else None)
        self.fail(f"{what} {at} does not exist", at, hint)

    @property
    def next(self) -> Token:
        return self.tokens[self.position]

    @property
    def after(self) -> Token:
        """The token after the next one."""
        return self.tokens[min(self.position + 1, len(self.tokens) - 1)]

    def take(self) -> Token:
        token = self.tokens[self.position]
        self.position = min(self.position + 1, len(self.tokens) - 1)
        return token

    def accept(self, text: str) -> bool:
        """Take the mark or keyword `text` if it comes next."""
        comes = self.next.kind in ("mark", "word") and self.next.text == text
        if comes:
            self.take()
        return comes

    def expect(self, text: str) -> None:
        if not self.accept(text):
            self.fail(f"expected {text!r}, found {self.next}", self.next)

    def expect_end(self) -> None:
        if self.next.kind != "end":
            self.fail(f"expected the end of the line, found {self.next}", self.next)

    def name(self, what: str) -> Token:
        """A name, taken out of its quotes."""
        token = self.take()
        if token.kind == "string":
            return token._replace(text=self.unquoted(token))
        if token.kind != "word":
            self.fail(f"expected {what}, found {token}", token)
        return token

    def unquoted(self, token: Token) -> str:
        try:
            return json.loads(token.text)
        except ValueError:
            self.fail("a string is written as in JSON", token)

    def integer(self, what: str) -> int:
        token = self.take()
        if token.kind != "word" or not INT.fullmatch(token.text):
            self.fail(f"expected {what}, found {token}", token)
        return int(token.text)

    def several(self, part: Callable[[], T]) -> list[T]:
        """One or more parts with commas between them."""
        parts = [part()]
        while self.accept(","):
            parts.append(part())
        return parts

    def names(self) -> list[Token]:
        """`name` or `[name, ...]`"""
        if not self.accept("["):
            return [self.name("a variable")]
        tokens = self.several(lambda: self.name("a variable"))
        self.expect("]")
        return tokens

    def slots(self) -> dict[Token, list[Token]]:
        """`Slot=names, ...`"""
        return self.assignments("slot", self.names)

    def assignments(self, what: str, right_side: Callable[[], T]) -> dict[Token, T]:
        """`name=..., name=...` with each name once."""
        given: dict[Token, T] = {}
        seen: set[str] = set()

        def part() -> None:
            name = self.name(f"a {what}")
            if name.text in seen:
                self.fail(f"{what} {name} is given twice", name)
            seen.add(name.text)
            self.expect("=")
            given[name] = right_side()

        self.several(part)
        return given

    def type(self) -> TensorType:
        """`f32[4,-1]`"""
        dtype = self.take()
        if dtype.text not in DTYPES:
            self.fail(f"expected a type such as f32[4,8], found {dtype}", dtype, f"types: {', '.join(DTYPES)}")
        self.expect("[")
        shape = [] if self.next.text == "]" else self.several(lambda: self.integer("a size"))
        self.expect("]")
        if len(shape) > LARGEST_RANK:
            self.fail(f"a type has at most {LARGEST_RANK} axes, this one has {len(shape)}", dtype)
        try:
            return tensor_type(shape, DTYPES[dtype.text])
        except MinigraphError as error:
            self.fail(error.fact, dtype)

    def attrs(self, known: Iterable[str], owner: str) -> dict[str, Any]:
        """`{name=value, ...}`, or nothing."""
        if not self.accept("{"):
            return {}
        given = self.assignments("attribute", self.values)
        self.expect("}")
        for name in given:
            if name.text not in known:
                self.unknown(f"attribute of {owner}", name, known)
        return {name.text: value for name, value in given.items()}

    def values(self) -> Any:
        """A value or `[value, ...]`"""
        if not self.accept("["):
            return self.value()
        listed = [] if self.next.text == "]" else self.several(self.value)
        self.expect("]")
        return tuple(listed)

    def value(self) -> Any:
        """A number, a string, true, false, null or a data type."""
        token = self.take()
        if token.kind == "string":
            return self.unquoted(token)
        if token.kind == "word":
            for known in (VALUES, DTYPE_NAMES):
                if token.text in known:
                    return known[token.text]
            if INT.fullmatch(token.text):
                return int(token.text)
            if FLOAT.fullmatch(token.text):
                return float(token.text)
        self.fail(f"expected a value, found {token}", token, "a string stands in double quotes")
