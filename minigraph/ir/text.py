"""Program from its text form: `parse(dump(program))` is equal to `program`. The form is told in `dump.py`.

Text is data from anywhere: it is cut into tokens and checked against the operator definitions,
nothing in it is evaluated. Each error names the line, shows it with a caret, and says what was
expected there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from minigraph.errors import CallSite, MinigraphError, ProgramError
from minigraph.opdef import OPS, OpDef
from minigraph.program import ROLES, Operator, Parameter, Program, Variable
from minigraph.program.blocks.held import next_number
from minigraph.program.blocks.subprogram import SubProgram
from minigraph.program.text.dump import born_frozen, first_output, unnamed_outputs, updates
from minigraph.program.text.grammar import DECLARATIONS, PARAMETER_FACTS
from minigraph.types import TensorType

from .tokens import Line, TextError, Token

LONGEST_TEXT = 1 << 26  # characters

Slots = dict[Token, list[Token]]  # slot -> names


def parse(text: str, filename: str = "<text>") -> Program:
    """The Program that `text` describes; a TextError names the line where it does not.

    filename  where operators say they were built, with their line
    """
    if len(text) > LONGEST_TEXT:
        raise ProgramError(f"a program text has at most {LONGEST_TEXT} characters, this one has {len(text)}")
    lines = (Line(number, source.rstrip("\r")) for number, source in enumerate(text.split("\n"), 1))
    return _Parser(filename, (line for line in lines if line.next.kind != "end")).run()


class _Parser:
    """Reads the lines of one text into one Program."""

    def __init__(self, filename: str, lines: Iterator[Line]) -> None:
        self.filename, self.lines = filename, lines
        self.role: str | None = None
        self.fetched: list[str] = []
        self.writers: dict[str, list[Operator]] = {}

    def run(self) -> Program:
        self.program: Program = self.header(next(self.lines, None) or Line(1, ""))
        self.body()
        return self.program

    def body(self, inside: Line | None = None) -> None:
        """The lines of the program, those of a block that begins in line `inside` up to its `end`."""
        for line in self.lines:
            if inside is not None and line.accept("end"):
                line.expect_end()
                break
            try:
                self.line(line)
            except TextError:
                raise
            except MinigraphError as error:
                line.fail(error.fact, line.tokens[0], error.hint)
            line.expect_end()
        else:
            if inside is not None:
                inside.fail("this block does not end", inside.tokens[0], "its last line is `end`")
        self.program.fetched = tuple(self.fetched)
        self.program.numbered = next_number(self.program.ops)

    def blocks(self, line: Line, opdef: OpDef) -> dict[str, SubProgram]:
        """The blocks that follow the line of an operator."""
        found = {}
        for name, attr in opdef.attrs.items():
            if attr.kind != "BlockAttr":
                continue
            start = next(self.lines, None)
            if start is None or not (start.accept("block") and start.accept(name)):
                (start or line).fail(f"expected `block {name}` of {opdef.type}", (start or line).tokens[0])
            inner = _Parser(self.filename, self.lines)
            inner.program = sub = SubProgram(start.name("the block's name").text)
            start.expect_end()
            inner.body(start)
            found[name] = sub
        return found

    def header(self, line: Line) -> Program:
        if not line.accept("program"):
            line.fail(f"expected `program <name>`, found {line.next}", line.next)
        program = Program(line.name("the program's name").text)
        if line.accept("seed"):
            program.random_seed = line.integer("a seed")
        line.expect_end()
        return program

    def line(self, line: Line) -> None:
        start = line.next
        keyword = start.text if start.kind == "word" else ""
        if keyword in DECLARATIONS:
            line.take()
            self.declaration(line, keyword)
        elif keyword in ROLES:
            line.take()
            self.role = keyword
        elif keyword == "fetch":
            line.take()
            self.fetched.append(self.variable(line, line.name("a variable")).name)
        elif self.role is None:
            line.fail(f"expected a declaration or one of {', '.join(ROLES)}, found {start}", start)
        else:
            self.operator(line)

    def declaration(self, line: Line, kind: str) -> None:
        name = line.name("a variable")
        line.expect(":")
        type = line.type()
        frozen = line.accept("frozen") or (not line.accept("live") and DECLARATIONS[kind])
        persistable = line.accept("persistable") or kind == "state"
        block, site = self.program.global_block(), CallSite(self.filename, line.number)
        if kind == "param":
            block._add(Parameter(block, name.text, type, trainable=not frozen, site=site, **_facts(line)))
        else:
            block._add(Variable(block, name.text, type, persistable=persistable, stop_gradient=frozen,
                                is_data=kind == "data", site=site))  # fmt: skip

    def operator(self, line: Line) -> None:
        """`outputs : types = type(inputs) {attrs} for ... in ... number ...`"""
        names, types = self.left_side(line)
        op_type = line.name("an operator")
        opdef = OPS.get(op_type.text) or line.unknown("operator type", op_type, OPS)
        line.expect("(")
        inputs = {} if line.next.text == ")" else line.slots()
        line.expect(")")
        attrs = line.attrs(opdef.attrs, opdef.type)
        forward, grad_slot = self.link(line) if line.accept("for") else (None, None)
        scope_name = line.name("a name scope").text if line.accept("in") else ""
        number = line.integer("a number") if line.accept("number") else None
        line.expect_end()

        attrs |= self.blocks(line, opdef)
        sources = self.sources(line, opdef, inputs)
        with self.program.emitting(str(self.role), forward=forward, site=CallSite(self.filename, line.number)):
            outputs = self.outputs(line, opdef, self.by_slot(line, opdef, names, op_type), types)
            outputs = outputs or updates(opdef, sources)
            try:
                op = self.program.global_block().append_op(opdef.type, sources, outputs, attrs)
            except MinigraphError as error:
                line.fail(error.fact, op_type, error.hint)
        op.grad_slot, op.scope_name = grad_slot, scope_name
        op.number = op.number if number is None else number
        for v in op.output_vars:
            self.writers.setdefault(v.name, []).append(op)

    def left_side(self, line: Line) -> tuple[Slots | list[Token], list[tuple[Token, TensorType]]]:
        """`out, mask : f32[4], bool[4] =`, or with slots `X_grad=..., Y_grad=... : types =`, or nothing."""
        after = line.after.text
        if after == "(":
            return [], []
        names = line.slots() if after == "=" else line.several(lambda: line.name("a variable"))
        line.expect(":")
        types = line.several(lambda: (line.next, line.type()))
        line.expect("=")
        return names, types

    def by_slot(self, line: Line, opdef: OpDef, names: Slots | list[Token], op_type: Token) -> dict[str, list[Token]]:
        """{output slot: names}, where the line names slots and where it does not."""
        if isinstance(names, dict):
            for slot in names:
                if slot.text not in opdef.output_names:
                    line.unknown(f"output slot of {opdef.type}", slot, opdef.output_names)
            return {slot.text: tokens for slot, tokens in names.items()}
        slots = unnamed_outputs(opdef, len(names))
        if len(slots) != len(names):
            line.fail(f"{opdef.type} has {', '.join(opdef.output_names)} as outputs, here are {len(names)}", op_type,
                      f"name the slots: {', '.join(f'{s}=...' for s in opdef.output_names)}")  # fmt: skip
        names_of: dict[str, list[Token]] = {}
        for slot, name in zip(slots, names, strict=True):
            names_of.setdefault(slot, []).append(name)
        return names_of

    def sources(self, line: Line, opdef: OpDef, inputs: Slots) -> dict[str, list[Variable]]:
        for slot in inputs:
            if slot.text not in opdef.input_names:
                line.unknown(f"input slot of {opdef.type}", slot, opdef.input_names)
        return {slot.text: [self.variable(line, name) for name in names] for slot, names in inputs.items()}

    def outputs(
        self, line: Line, opdef: OpDef, names: dict[str, list[Token]], types: list[tuple[Token, TensorType]]
    ) -> dict[str, list[Variable]]:
        number = sum(map(len, names.values()))
        if number != len(types):
            line.fail(f"{number} outputs, but {len(types)} types", types[0][0])
        given = iter(types)
        return {slot: [self.output(line, t, next(given)[1], opdef) for t in tokens] for slot, tokens in names.items()}

    def output(self, line: Line, name: Token, type: TensorType, opdef: OpDef) -> Variable:
        """The variable that an operator writes, made at its first mention."""
        block = self.program.global_block()
        known = block.vars.get(name.text)
        if known is None:
            return block._add(Variable(block, name.text, type, stop_gradient=born_frozen(opdef, str(self.role)),
                                       site=self.program.emission.site))  # fmt: skip
        if known.type != type:
            line.fail(f"{name} is {type} here, it was {known.type} before", name)
        return known

    def variable(self, line: Line, name: Token) -> Variable:
        known = self.program.vars.get(name.text)
        return known if known is not None else line.unknown("variable", name, self.program.vars)

    def link(self, line: Line) -> tuple[Operator, str | None]:
        """`out`, `out#1`, `X of out`: an operator before this line."""
        name, slot = line.name("a forward operator's output"), None
        if line.accept("of"):
            slot, name = name, line.name("a forward operator's output")
        writers = self.writers.get(name.text)
        if writers is None:
            line.unknown("output of an operator before this line", name, self.writers)
        index = len(writers) - 1
        if line.accept("#"):
            index = line.integer("which of the operators that write it")
        elif len(writers) > 1:
            line.fail(f"{len(writers)} operators write {name}", name, f"say which: {name.text}#0 is the first")
        if not 0 <= index < len(writers):
            line.fail(f"{len(writers)} operators before this line write {name}", name)
        op = writers[index]
        if first_output(op) != name.text:
            line.fail(f"an operator is named by its first output, {first_output(op)}", name)
        if slot is not None and slot.text not in op.opdef.input_names:
            line.unknown(f"input slot of {op.type}", slot, op.opdef.input_names)
        return op, slot.text if slot else None


def _facts(line: Line) -> dict[str, Any]:
    """`{learning_rate=0.5, need_clip=false}` of a parameter."""
    start = line.next
    facts = line.attrs(PARAMETER_FACTS, "a parameter")
    given = PARAMETER_FACTS | facts
    if type(given["learning_rate"]) not in (int, float) or type(given["need_clip"]) is not bool:
        line.fail("learning_rate is a number, need_clip is true or false", start)
    return facts
