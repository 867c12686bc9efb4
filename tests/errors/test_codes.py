"""Codes of errors: each is raised by its program, stands on the page, and means what it always meant."""

from __future__ import annotations

import ast
import copy
import importlib.util
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import minigraph as mg
from minigraph.command import main
from minigraph.errors import MinigraphError, ShapeError, kinds
from minigraph.errors.kinds import KINDS, RETIRED, Kind
from minigraph.ir.tokens import TextError
from minigraph.kernels.groups import RankError
from tests.support.pages import ROOT

RECORDED = Path(__file__).with_name("codes.txt")
NAMES = {kind.code: name for name, kind in vars(kinds).items() if isinstance(kind, Kind)}


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("errors_page", ROOT / "docs" / "errors_page.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def test_every_code_has_one_program_which_raises_it(script):
    programs = script.programs()
    assert programs.keys() == KINDS.keys()
    for code, program in programs.items():
        error, said = script.raised(program)
        assert error.code == code
        assert isinstance(error, KINDS[code].error)
        assert said.startswith(f"{type(error).__name__}: [{code}] ")
        assert "train.py:" in said


def test_the_page_is_current(script):
    assert script.PAGE.read_text(encoding="utf-8") == script.page(), "run python docs/errors_page.py"


def test_a_program_that_raises_nothing_is_refused(script):
    with pytest.raises(AssertionError, match="raises nothing"):
        script.raised("x = 1\n")


def test_codes_keep_their_meaning():
    """A code that was given stays, or is retired; a new one is recorded."""
    recorded = {code: (error, name) for code, error, name in map(str.split, RECORDED.read_text().splitlines())}
    live = {code: (kind.error.__name__, NAMES[code]) for code, kind in KINDS.items()}
    assert {code: row for code, row in recorded.items() if code not in RETIRED} == live
    assert RETIRED.keys() <= recorded.keys()
    assert not RETIRED.keys() & KINDS.keys()


def test_a_code_is_given_once():
    with pytest.raises(ValueError, match="MG-SHAPE-002 is given twice"):
        Kind("MG-SHAPE-002", ShapeError, "another fact", "", "")
    assert KINDS["MG-SHAPE-002"] is kinds.RANK


def subclasses(of: type) -> Iterator[type]:
    for each in of.__subclasses__():
        yield from (each, *subclasses(each))


def test_every_class_has_a_code_of_its_family():
    """Those of the package; what users derive has the code of ours."""
    for each in (MinigraphError, *subclasses(MinigraphError)):
        if each.__module__.startswith("minigraph."):
            assert issubclass(each, KINDS[each.code].error), each


def test_every_code_is_raised_somewhere():
    """As the code of a class, or by its name."""
    used = {each.code for each in (MinigraphError, *subclasses(MinigraphError))}
    words = set(NAMES.values())
    for path in (ROOT / "minigraph").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if path.name != "kinds.py" and not words.isdisjoint(re.findall(r"\w+", text)):
            names = {n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)}
            used |= {code for code, name in NAMES.items() if name in names}
    assert KINDS.keys() == used


@pytest.mark.parametrize(
    "error",
    [
        kinds.RANK("x has rank 1", call="tril", hint="a matrix"), TextError("x", 3, 0, "program p", "y"),
        RankError([1, 2], "it is dead"),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_an_error_keeps_all_in_copies(error: MinigraphError, again: Any):
    """Those of a pool's workers are pickled: one that cannot be made again lets the pool wait for ever."""
    made = again(error)
    assert (type(made), str(made), vars(made)) == (type(error), str(error), vars(error))


def test_a_kind_gives_its_error_a_code():
    error = kinds.RANK("x has rank 1", call="tril", hint="a matrix")
    assert error.code == "MG-SHAPE-002"
    assert str(error).startswith("[MG-SHAPE-002] tril: x has rank 1\n")
    assert type(error) is ShapeError
    assert ShapeError("x").code == "MG-SHAPE-001"


def test_what_a_kind_makes_is_not_called_after_the_kind():
    both = mg.reader.compose(lambda: [1, 2], lambda: [3])
    with pytest.raises(MinigraphError, match=r"^\[MG-READER-001\] outputs of readers"):
        list(both())


def test_the_command_line_explains_a_code(capsys):
    assert main(["error", "mg-shape-002"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("MG-SHAPE-002  ShapeError: wrong number of axes\n  cause: ")
    assert kinds.RANK.mend in said
    assert main(["error", "MG-SHAPE-02"]) == 1
    assert "did you mean 'MG-SHAPE-002'?" in capsys.readouterr().err
