"""Names of Paddle that are not here explain themselves, and the table behind them says nothing untrue."""

from __future__ import annotations

import importlib.util
import pickle
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import minigraph as mg
from minigraph import nn, static
from minigraph.errors import MinigraphError
from minigraph.paddle_names import NotHere, NotHereToImport, entries, is_listed
from minigraph.paddle_names.listed import PAGE, VERSION, listed
from minigraph.paddle_names.missing import SPACES
from minigraph.paddle_names.reasons import FAMILIES, INSTEAD, OWN_REASON, ROWS, reason_of

ROOT = Path(__file__).parents[2]


def objects() -> dict[str, Any]:
    """What has the names of each namespace: the module, or an object of the class."""
    x = static.data("x", [2, 3])
    y = x + 1
    made = {
        "Variable": x, "Program": x.program, "Block": x.block, "Operator": x.program.ops[0], "Layer": nn.Linear(3, 2),
        "Executor": static.Executor(), "BuildStrategy": static.BuildStrategy(), "Optimizer": mg.optimizer.SGD(0.1),
    }  # fmt: skip
    assert y is not None
    return {space: made.get(space, owner) for space, owner in SPACES.items()}


def test_each_missing_name_says_why():
    known, missing = objects(), 0
    for e in entries():
        if e.here or e.space not in known:
            continue
        assert not hasattr(known[e.space], e.name), e
        with pytest.raises(NotHere, match=r"is not here: \w") as raised:
            getattr(known[e.space], e.name)
        assert e.why in str(raised.value)
        assert e.name in str(raised.value).split(":")[0].split(".")[-1]
        assert raised.value.hint == e.instead
        missing += 1
    assert missing > 50


def test_the_user_sees_the_line_and_what_to_use():
    with pytest.raises(NotHere) as raised:
        nn.Conv2D(3, 8, 3)  # pyright: ignore[reportAttributeAccessIssue]
    lines = str(raised.value).splitlines()
    assert lines[0] == "[MG-PADDLE-001] paddle.nn.Conv2D is not here: convolution and pooling are not part of minigraph"
    assert "nn.Conv2D(3, 8, 3)" in lines[1]
    assert lines[2].startswith("  hint: ")


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("x.numpy()", "exe.run"), ("loss.backward()", "static.append_backward"), ("opt.step()", "optimizer.minimize"),
        ("opt.clear_grad()", "each run"), ("mg.disable_static()", "static.Executor"), ("mg.jit", "CompiledProgram"),
        ("mg.grad(loss, x)", "static.gradients"), ("loss.item()", "fetch_list"), ("mg.Model(x)", "exe.run"),
        ("x.gradient()", "@GRAD"), ("mg.DataParallel(x)", "static.Executor"), ("x.pin_memory()", "CPUPlace"),
        ("mg.set_grad_enabled(False)", "stop_gradient"), ("mg.autograd.PyLayer", "append_backward"),
    ],
)  # fmt: skip
def test_dynamic_names_show_the_static_spelling(line: str, hint: str):
    x = static.data("x", [2, 3])
    names = {"mg": mg, "x": x, "loss": mg.mean(x), "opt": mg.optimizer.SGD(0.1)}
    with pytest.raises(NotHere) as raised:
        eval(line, names)
    assert hint in (raised.value.hint or "")


def test_an_import_says_why():
    with pytest.raises(NotHereToImport, match="recurrent layers are not part"):
        from minigraph.nn import LSTM  # noqa: F401  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ImportError, match="images with another library"):
        from minigraph import vision  # noqa: F401  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ImportError) as raised:
        from minigraph import never_heard_of  # noqa: F401  # pyright: ignore[reportAttributeAccessIssue]
    assert not isinstance(raised.value, MinigraphError)


def test_what_nobody_knows_is_an_ordinary_error_with_a_near_name():
    with pytest.raises(AttributeError, match="has no attribute 'Lineer'; did you mean 'Linear'") as raised:
        nn.Lineer  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
    assert not isinstance(raised.value, MinigraphError)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
    with pytest.raises(AttributeError, match="'Variable' object has no attribute 'resh4pe'; did you mean 'reshape'"):
        static.data("x", [2]).resh4pe  # noqa: B018
    assert not hasattr(mg, "__wrapped__")


def test_what_writes_in_place_computes_a_new_value_and_warns():
    x = static.data("x", [2])
    for made in (lambda: x.exp_(), lambda: mg.tanh_(x), lambda: mg.reshape_(x, [2, 1])):  # pyright: ignore
        with pytest.warns(UserWarning, match="changes nothing in place"):
            assert made().name != "x"


def test_no_grad_warns_and_changes_nothing():
    x = static.data("x", [2, 3])
    with pytest.warns(UserWarning, match="stop_gradient"), mg.no_grad():
        out = nn.Linear(3, 1)(x)

    @mg.no_grad()
    def twice(v: Any) -> Any:
        return v * 2

    with pytest.warns(UserWarning, match="no_grad changes nothing"):
        loss = mg.mean(twice(out))
    with pytest.warns(UserWarning, match="no_grad changes nothing"):
        mg.no_grad(lambda: loss)()
    assert len(static.append_backward(loss)) == 2


def test_fields_of_build_strategy():
    strategy = static.BuildStrategy()
    with pytest.raises(NotHere, match="only data parallel"):
        strategy.num_trainers = 2
    with pytest.raises(AttributeError, match="has no field 'fuse_gemm'"):
        strategy.fuse_gemm = True


def test_rows_of_the_table_are_about_names_of_paddle():
    known = listed()
    assert f'"{VERSION}"' in PAGE.read_text(encoding="utf-8")
    for space, family, _ in ROWS:
        assert family in FAMILIES
        assert space == "*" or space in known
    for key in (*INSTEAD, *OWN_REASON):
        space, _, name = key.rpartition(".")
        assert is_listed(space, name) or space == "Variable", key
    assert {family for _, family, _ in ROWS} | {"later", "inner"} == FAMILIES.keys() | {"later", "inner"}


def test_unused_patterns_do_not_stay():
    for space, family, names in ROWS:
        searched = {n for s, ns in listed().items() if space in ("*", s) for n in ns}
        unused = [p for p in names.split() if not any(fnmatchcase(n, p) for n in searched)]
        assert unused == [], (space, family)


def test_the_first_row_that_fits_decides():
    assert reason_of("", "XPUPlace").why == FAMILIES["device"].why
    assert reason_of("nn", "nothing of it").why == FAMILIES["later"].why


def test_the_page_is_current():
    spec = importlib.util.spec_from_file_location("paddle_page", ROOT / "docs" / "paddle_page.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.PAGE.read_text(encoding="utf-8") == script.page(), "run python docs/paddle_page.py"


def test_names_are_those_of_paddle():
    """Where Paddle 2.6.2 is installed."""
    paddle = pytest.importorskip("paddle", exc_type=ImportError)
    from tests.paddle.record_names import names

    assert {space: frozenset(row) for space, row in names(paddle).items()} == listed()
    assert all(isinstance(v, (ModuleType, type)) for v in SPACES.values())
