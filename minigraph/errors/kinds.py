"""Kinds of facts that fail, each with its code: `python docs/errors_page.py` makes docs/errors.md of them.

    require(x.ndim == 2, f"x must be 2-D, is {x}", RANK)    a Kind stands where a class of error does
    raise UNKNOWN_FEED(f"feed {name!r} ...", hint=...)

A code is never given to another kind. One that no error has any more goes to RETIRED, with what it said.
The program that shows a kind stands in docs/error_programs under its code; a test runs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from . import (
    AttrError,
    DTypeError,
    FeedError,
    FetchError,
    KernelError,
    MinigraphError,
    NonFiniteError,
    PlaceError,
    ProgramError,
    ShapeError,
    UninitializedError,
    VerifyError,
)

E = TypeVar("E", bound=MinigraphError)
KINDS: dict[str, Kind[Any]] = {}  # by code, in the order of the page
RETIRED: dict[str, str] = {}  # codes of earlier versions, and what they said


@dataclass(frozen=True)
class Kind(Generic[E]):
    """A kind of fact that fails. Calling it makes an error of its class with its code.

    error  the class;  what: it says;  cause: how a user comes to it;  mend: what to do
    """

    code: str
    error: type[E]
    what: str
    cause: str
    mend: str

    def __post_init__(self) -> None:
        if self.code in KINDS or self.code in RETIRED:
            raise ValueError(f"the code {self.code} is given twice")
        KINDS[self.code] = self

    def __call__(self, fact: str, **where: Any) -> E:
        return self.error(fact, code=self.code, **where)


# shapes

SIZES = Kind(
    "MG-SHAPE-001", ShapeError, "sizes do not fit",
    "Two values that belong together have other sizes than the call takes.",
    "Print the shapes, and bring them together with `reshape`, `expand`, a slice or another size of a layer.",
)  # fmt: skip
RANK = Kind(
    "MG-SHAPE-002", ShapeError, "wrong number of axes",
    "A value has more or fewer axes than the call takes: a vector where it takes a matrix, for example.",
    "`unsqueeze` adds an axis, `squeeze`, `reshape` and `flatten` take some away.",
)  # fmt: skip
AXIS = Kind(
    "MG-SHAPE-003", ShapeError, "no such axis, or one that is named twice",
    "`axis=` counts from 0, or from -1 at the end, and must lie in [-rank, rank).",
    "Name an axis that the value has. After a reduction without `keepdim` there is one less.",
)  # fmt: skip
BROADCAST = Kind(
    "MG-SHAPE-004", ShapeError, "shapes cannot be broadcast",
    "Sizes are compared from the last axis to the first. Each pair must be equal, or one of the two 1.",
    "`unsqueeze` puts an axis of size 1 where one is missing; check which axis is the batch.",
)  # fmt: skip
INNER = Kind(
    "MG-SHAPE-005", ShapeError, "inner sizes of a product differ",
    "A product sums over one axis of each operand, and the two have different sizes.",
    "Transpose one operand (`transpose_x=True`, `transpose_y=True`), or give the layer the size of its input.",
)  # fmt: skip
COUNT = Kind(
    "MG-SHAPE-006", ShapeError, "a number of elements, parts or entries does not fit",
    "A reshape keeps all elements, the parts of a split add up to the axis, lists that go together are equally long.",
    "Compute the number from the value's shape. One size may be -1, which means the rest.",
)  # fmt: skip
UNKNOWN_SIZE = Kind(
    "MG-SHAPE-007", ShapeError, "a size must be known before a run",
    "A size was declared as None or -1, and the call must know it while the program is built.",
    "Give `static.data` the size, or `reshape` the value to one that is known.",
)  # fmt: skip
EMPTY = Kind(
    "MG-SHAPE-008", ShapeError, "an axis without elements",
    "The call chooses or normalises along an axis, and that has size 0.",
    "Check the sizes that lead here; a slice such as `x[5:5]` has none.",
)  # fmt: skip
NO_SHAPE = Kind(
    "MG-SHAPE-009", ShapeError, "this is no shape",
    "A shape is a list of sizes that are not negative, of which one may be -1, with less than 2^63 elements.",
    "Look for a size that was computed, and came out wrong.",
)  # fmt: skip

# data types

DTYPE = Kind(
    "MG-DTYPE-001", DTypeError, "the operator does not take this data type",
    "Most functions work on floats, indices are ints, conditions are bools.",
    '`mg.cast(x, "float32")` makes another type of it.',
)  # fmt: skip
MIXED_TYPES = Kind(
    "MG-DTYPE-002", DTypeError, "operands have different data types",
    "Types are not changed in silence, since that would round, or take more memory.",
    "`cast` one of the operands. A NumPy array of Python floats is float64.",
)  # fmt: skip
NO_DTYPE = Kind(
    "MG-DTYPE-003", DTypeError, "this is not a data type",
    "The name is misspelled, or the type is one that no operator here has, such as complex64.",
    "Take one of those in the hint.",
)  # fmt: skip
NO_NUMBERS = Kind(
    "MG-DTYPE-004", DTypeError, "a value is no array of numbers, or does not fit its type",
    "An array holds texts, objects or lists of different lengths, or a number is too large for the type.",
    "Make an array of numbers of it first: `np.asarray(value, dtype)`.",
)  # fmt: skip
WRONG_OBJECT = Kind(
    "MG-DTYPE-005", DTypeError, "an argument is another kind of object",
    "A function, a list, a Program or a number stands where the call takes something else.",
    "The error says what the call takes, and what it was given.",
)  # fmt: skip

# attributes and arguments

ATTR = Kind(
    "MG-ATTR-001", AttrError, "an argument has a value that the call does not take",
    "The value is out of its range, none of the words that are known, or no int, number or bool.",
    "The error says what is taken. Arguments can be in another order than in other libraries: name them.",
)  # fmt: skip
UNKNOWN_ATTR = Kind(
    "MG-ATTR-002", AttrError, "no argument, field or flag is called so",
    "The name is misspelled, or it belongs to another class.",
    "Take the name in the hint.",
)  # fmt: skip
CONFLICT = Kind(
    "MG-ATTR-003", AttrError, "arguments contradict each other",
    "Two arguments say the same thing in two ways, or one excludes the other.",
    "Leave one of them out.",
)  # fmt: skip
NOT_OFFERED = Kind(
    "MG-ATTR-004", AttrError, "Paddle has this value of an argument, minigraph has not",
    "The function is here, and this variant of it is not.",
    "Do what the hint says, or compute it from other functions.",
)  # fmt: skip
MISSING = Kind(
    "MG-ATTR-005", AttrError, "an argument is missing or empty",
    "The call cannot do without it, or it was given an empty list.",
    "Give it.",
)  # fmt: skip

# programs

PROGRAM = Kind(
    "MG-PROGRAM-001", ProgramError, "a call does not go with the program, or with what it was given",
    "An argument is no Variable, Program or path, or the program has no place for what the call would do.",
    "The error says what is wanted. Variables come from `static.data`, from layers and from functions of mg.",
)  # fmt: skip
UNKNOWN_NAME = Kind(
    "MG-PROGRAM-002", ProgramError, "nothing is called so",
    "No variable, parameter, operator or entry has this name: it is misspelled, or it is in another program.",
    "Take the name in the hint; `print(program)` shows all of them.",
)  # fmt: skip
FOREIGN = Kind(
    "MG-PROGRAM-003", ProgramError, "a variable is used outside of its program or block",
    "It was built in another program than the one that is built now, or inside a branch or loop.",
    "Build both in one `program_guard`. A branch or loop gives its values out by returning them.",
)  # fmt: skip
CHANGED = Kind(
    "MG-PROGRAM-004", ProgramError, "the program was changed after it was compiled",
    "Operators were added, a seed was set or a variable became persistable, which the compilation does not know.",
    "Compile after the last change: make a new `CompiledProgram`.",
)  # fmt: skip
NO_GRADIENT = Kind(
    "MG-PROGRAM-005", ProgramError, "no gradient can be computed",
    "The loss depends on no trainable parameter, or only through an operator that has no derivative.",
    "Look for `stop_gradient`, `trainable=False` and `no_grad_set` between the parameters and the loss.",
)  # fmt: skip
NAME = Kind(
    "MG-PROGRAM-006", ProgramError, "a name is taken, or cannot be a name",
    "Two variables of a program cannot have one name. Names are texts of printable characters.",
    "Choose another name, or build in a new Program.",
)  # fmt: skip
ORDER = Kind(
    "MG-PROGRAM-007", ProgramError, "calls come in the wrong order",
    "The call needs another one before it, or can only be made once.",
    "The error names the other call.",
)  # fmt: skip
RUN_TIME = Kind(
    "MG-PROGRAM-008", ProgramError, "only a run knows this value",
    "While a program is built a Variable has no value, so neither Python nor a shape can depend on it.",
    "Fetch it, or let the program decide: `mg.where`, `static.nn.cond`. Sizes, axes and counts of most functions may be"
    " Variables.",
)  # fmt: skip
BLOCKS = Kind(
    "MG-PROGRAM-009", ProgramError, "functions of a branch or loop do not go together",
    "Both branches must return the same number of values. A loop's body returns one for each loop variable.",
    "Return the same structure everywhere; a value that does not change is returned as it is.",
)  # fmt: skip
LOSS = Kind(
    "MG-PROGRAM-010", ProgramError, "the loss is not one float",
    "Gradients are those of one number.",
    "Reduce it first, for example with `mg.mean`. For several targets there is `static.gradients`.",
)  # fmt: skip
OVERWRITTEN = Kind(
    "MG-PROGRAM-011", ProgramError, "a value that backward needs is overwritten",
    "An operator writes in place over what another one's gradient reads. The gradient would be wrong.",
    "Write to a new variable, or make the gradients before the update.",
)  # fmt: skip
TEXT = Kind(
    "MG-PROGRAM-012", ProgramError, "a line of a program's text is wrong",
    "The text was changed by hand, or comes from another version.",
    "The caret stands where reading stopped; docs/reading_a_program.md has the form.",
)  # fmt: skip

NESTED = Kind(
    "MG-PROGRAM-013", ProgramError, "a call in the middle of a run, save or load of the same thread",
    "A signal handler or a function of `py_func` runs, saves or loads where values are half changed.",
    "Let the handler set a flag, and look at it between two runs. Inside of `py_func` take another Executor and Scope.",
)  # fmt: skip

# files

STORAGE = Kind(
    "MG-FILE-001", ProgramError, "a file cannot be read or written",
    "The operating system refuses: no such file, no permission, a full disk, a folder in the place of a file.",
    "Check the path. What was saved before is still there.",
)  # fmt: skip
DAMAGED = Kind(
    "MG-FILE-002", ProgramError, "a file is damaged, or not one of minigraph's",
    "It was cut, changed, mixed with files of another save, or written by another program.",
    "Load an earlier checkpoint, or one file of it that is whole.",
)  # fmt: skip
OTHER_PROGRAM = Kind(
    "MG-FILE-003", ProgramError, "what was saved does not fit the program",
    "Names, shapes, types or optimizers differ from those of the program that was saved.",
    "Load into the program that was saved, or only what both have.",
)  # fmt: skip
NEWER = Kind(
    "MG-FILE-004", ProgramError, "a newer minigraph wrote this file",
    "The form of files has a number, and this one is higher than those that are known.",
    "Read it with that version.",
)  # fmt: skip

# feeds and fetches

FEED = Kind(
    "MG-FEED-001", FeedError, "a feed is not what a run takes",
    "`feed` is a dict of arrays, by the names of data variables or by the variables themselves.",
    '`exe.run(program, feed={"x": array}, fetch_list=[loss])`',
)  # fmt: skip
MISSING_FEED = Kind(
    "MG-FEED-002", FeedError, "a feed is missing",
    "The program reads a data variable, and the dict does not have it.",
    "Feed it, or run a `clone(for_test=True)` that does not need it.",
)  # fmt: skip
UNKNOWN_FEED = Kind(
    "MG-FEED-003", FeedError, "no data variable is called so",
    "The name is misspelled, or it is the name of a variable that is computed.",
    "Take the name in the hint.",
)  # fmt: skip
FEED_TYPE = Kind(
    "MG-FEED-004", FeedError, "a feed has another data type than was declared",
    "NumPy makes float64 and int64 of Python's numbers, `static.data` declares float32.",
    '`array.astype("float32")`, or declare the type that is fed.',
)  # fmt: skip
FEED_SHAPE = Kind(
    "MG-FEED-005", FeedError, "a feed has another shape than was declared",
    "Sizes that were declared must be kept, only None and -1 are free.",
    "Reshape the array, or declare the axis as None.",
)  # fmt: skip
COMPUTED_FEED = Kind(
    "MG-FEED-006", FeedError, "a feed would have no effect",
    "The program computes the variable, so the value would be overwritten.",
    "`use_prune=True` leaves out the operators before a fed value.",
)  # fmt: skip
FETCH = Kind(
    "MG-FETCH-001", FetchError, "this cannot be fetched",
    "`fetch_list` holds Variables and names.",
    "Name the variables: `fetch_list=[loss]`, or `fetch_list=[loss.name]`.",
)  # fmt: skip
UNKNOWN_FETCH = Kind(
    "MG-FETCH-002", FetchError, "no variable to fetch is called so",
    "The name is misspelled, or the variable belongs to another program than the one that runs.",
    "Take the name in the hint.",
)  # fmt: skip

# runs

SCOPE = Kind(
    "MG-SCOPE-001", UninitializedError, "a parameter or state has no value",
    "The startup program has not run in this scope.",
    "`exe.run(startup_program)` once, before the first step, with the same scope.",
)  # fmt: skip
OTHER_VALUE = Kind(
    "MG-SCOPE-002", UninitializedError, "a value in the scope has another shape or type than its variable",
    "Two programs use one name, or the value was set by hand.",
    "Give each program a Scope of its own, or its parameters names of their own.",
)  # fmt: skip
PLACE = Kind(
    "MG-PLACE-001", PlaceError, "this place cannot be used",
    "There is no GPU, no driver for it, or a package is missing.",
    "`python -m minigraph info` says what is missing. `CPUPlace()` works everywhere.",
)  # fmt: skip
NO_KERNEL = Kind(
    "MG-PLACE-002", PlaceError, "this place has no kernel for an operator",
    "The operator is defined for the CPU only, or not for these types, sizes or arguments.",
    "Run it on `CPUPlace()`, or give it a GPU form: docs/add_an_operator.md.",
)  # fmt: skip
KERNEL = Kind(
    "MG-KERNEL-001", KernelError, "a kernel failed",
    "A kernel, or a function of Python in the program, raised an error or gave something else than was inferred.",
    "The cause stands above in the traceback.",
)  # fmt: skip
INDEX = Kind(
    "MG-KERNEL-002", KernelError, "an index or a class is out of range",
    "An id is not below the number of rows, or a label not below the number of classes. The run changed nothing.",
    "Check the data: classes are counted from 0. Rows to leave out have the label `ignore_index`.",
)  # fmt: skip
DIVIDED = Kind(
    "MG-KERNEL-003", KernelError, "an integer is divided by 0",
    "Integers have no infinity that could be the result.",
    "Divide floats, or put another divisor in its place with `mg.where`.",
)  # fmt: skip
ASSERTED = Kind(
    "MG-KERNEL-004", KernelError, "an assertion of the program does not hold",
    "`static.nn.control_flow.Assert` saw a condition that is False.",
    "The error shows the values that it was given.",
)  # fmt: skip
NO_ANSWER = Kind(
    "MG-KERNEL-005", KernelError, "a matrix has no inverse or no factors",
    "It is singular, or not positive definite.",
    "Add a small multiple of the identity, or use `mg.linalg.pinv` or `mg.linalg.lstsq`.",
)  # fmt: skip
MEMORY = Kind(
    "MG-MEMORY-001", KernelError, "there is not enough memory",
    "Values that live at the same time take more than is free.",
    "A smaller batch, `recompute`, or `gradient_merge`; `compiled.memory_report()` says what takes most.",
)  # fmt: skip


def no_memory(what: str, problem: MemoryError) -> KernelError:
    """The error for what Python or NumPy found no room for."""
    return MEMORY(f"out of memory: no room for {what}" + (f" ({problem})" if str(problem) else ""))


NAN = Kind(
    "MG-NAN-001", NonFiniteError, "an operator gave NaN or an infinity",
    "`FLAGS_check_nan_inf` is on, and a value left the range of its type, or had no result.",
    "The error names the first operator that did. docs/check_nan_inf.md says how to look on.",
)  # fmt: skip
VERIFY = Kind(
    "MG-VERIFY-001", VerifyError, "a pass made a graph that breaks a rule of graphs",
    "That is a defect of the pass, not of your program.",
    "Switch its flag off, and report the program.",
)  # fmt: skip
VALIDATE = Kind(
    "MG-VERIFY-002", VerifyError, "a pass changed what the program computes",
    '`verify="each_pass"` compares the program before and after each pass in float64. This is a defect of the pass.',
    "Switch its flag off, and report the program.",
)  # fmt: skip

# what is not here

INSTALL = Kind(
    "MG-INSTALL-001", MinigraphError, "this installation is not what the script asks for",
    "Another version of Paddle is asked for, or the machine computes wrong numbers.",
    "Run `python -m minigraph info`.",
)  # fmt: skip
NOT_HERE = Kind(
    "MG-PADDLE-001", MinigraphError, "a name of Paddle is not here",
    "minigraph has the static graph part of Paddle 2.6.2, and not all of that.",
    "docs/paddle.md lists all names with the reason, and what to use instead.",
)  # fmt: skip
READERS = Kind(
    "MG-READER-001", MinigraphError, "readers have different numbers of samples",
    "`paddle.reader.compose` takes one sample of each reader in turn, and one of them ended first.",
    "`compose(..., check_alignment=False)` stops with the shortest.",
)  # fmt: skip
