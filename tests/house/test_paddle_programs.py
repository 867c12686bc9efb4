"""The count of Paddle's documentation: how examples are found, changed and compared, and what README says of it."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from bench import paddle_programs as count
from tests.support.pages import ROOT

DOCUMENTED = '''
class Layer:
    """Says what it is.

    Examples:
        .. code-block:: python

            >>> import paddle
            >>> for i in range(2):
            ...     print(i)
            0
            1

        .. code-block:: python

            >>> x = paddle.ones([2])
    """

    def forward(self):
        """No example, only paddle in words."""
'''


def test_examples_are_found(tmp_path):
    (tmp_path / "layer.py").write_text(DOCUMENTED)
    (tmp_path / "distributed").mkdir()
    (tmp_path / "distributed" / "fleet.py").write_text(DOCUMENTED)
    assert list(count.examples(tmp_path)) == [
        ("layer.py Layer 0", "import paddle\nfor i in range(2):\n    print(i)\n"),
        ("layer.py Layer 1", "x = paddle.ones([2])\n"),
    ]


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("import paddle", "import minigraph as paddle"), ("import paddle as p", "import minigraph as p"),
        ("import paddle.nn as nn", "import minigraph.nn as nn"),
        ("import paddle.static", "import minigraph.static, minigraph as paddle"),
        ("from paddle.nn import Linear", "from minigraph.nn import Linear"),
        ("x = paddle.ones([2])", "x = paddle.ones([2])"),
    ],
)  # fmt: skip
def test_only_imports_are_others(line, changed):
    assert count.adapted(line, "minigraph", written=True) == changed
    assert count.adapted(line, "paddle", written=True) == line
    assert count.adapted(line, "paddle", written=False).startswith("import paddle\npaddle.enable_static()\n")


def test_what_is_about_other_subjects_is_left_out():
    for text in ("nn.Conv2D(1, 2, 3)", "x = static.data('x', [1], lod_level=1)", "paddle.distributed.init()"):
        assert count.OUTSIDE.search(text)
    assert not count.OUTSIDE.search("weight = paddle.nn.Linear(2, 3).weight")


def found(run, value=None, shape="float32 [2]"):
    values = {} if value is None else {"v": np.float32(value)}
    return {"runs": [[np.float32(run)]], "values": values, "made": {"x": shape}}


def test_a_difference_is_seen():
    first, drawn = found([1, 2], [3]), found([1, 5], [4])
    assert count.differences(found([1, 2], [3]), first, first) == ""
    assert "run 0" in count.differences(found([1, 3], [3]), first, first)
    assert "run 0" in count.differences(found([1, 2, 3], [3]), first, first)
    assert "v: " in count.differences(found([1, 2], [4]), first, first)
    assert "x is" in count.differences(found([1, 2], [3], "float64 [2]"), first, first)
    assert "x is" in count.differences(found([1, 2], [3], "float32 [3]"), first, first)
    assert count.differences({"error": "NotHere: no"}, first, first) == "NotHere: no"
    assert count.differences(found([7, 8], [9]), first, drawn) == "", "random numbers are others"
    assert "run 0" in count.differences(found([7, 8, 9], [9]), first, drawn), "but not their shapes"
    assert count.differences(found([1, 2], [3], "float32 [2]"), found([1, 2], [3], "float32 [-1]"), first) == ""


def test_failures_have_causes():
    assert count.cause("NotHere: paddle.amp is not here: not here yet") == "not here yet"
    assert count.cause("differs: run 0: 1 for 2") == "another result"
    assert count.cause("UnknownName: module 'a' has no attribute 'b'").startswith("an inner name")
    assert count.cause("ShapeError: no") == "refused: ShapeError"


def test_the_readme_says_what_was_counted():
    report = json.loads((ROOT / "bench" / "results" / "paddle_programs.json").read_text())
    counts = report["counts"]
    assert sum(report["causes"].values()) == len(report["failures"]) == sum(
        counts[kind] - counts[f"{kind}, same"] for kind in ("written", "turned")
    )
    said = [int(n) for n in re.findall(r"(\d+) of (\d+)", (ROOT / "README.md").read_text()) for n in n]
    assert said == [counts[k] for k in ("written, same", "written", "turned, same", "turned")]
