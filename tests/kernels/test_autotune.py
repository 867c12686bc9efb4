"""Autotune without a GPU: what is timed and remembered. Times are made up by a lab of the test."""
# ruff: noqa: F811, F401 - `library` is a fixture of another file

from __future__ import annotations

import importlib
import json
import sys
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest

from minigraph.compiler.strategy import BuildStrategy
from minigraph.kernels.cuda.record import compile, moved
from minigraph.kernels.cuda.record.binder import Binder
from minigraph.kernels.cuda.record.buffer import Words
from minigraph.kernels.cuda.record.call import Unsupported, facts
from minigraph.kernels.cuda.record.calls import Choice, Copy, Fill, Gemm, Launch
from minigraph.kernels.cuda.record.workspace import Algorithm
from minigraph.kernels.cuda.tensor_cores.hopper import TensorMap
from minigraph.types import bfloat16
from tests.kernels.test_cublaslt import gemm, library, operand
from tests.support import gpu_stub


class Lab:
    """Times by the number of calls; a negative one is refused when it runs."""

    def __init__(self, times=None):
        self.times, self.facts = times or {}, {"gpu": "of this test", "driver": 1}
        self.trials, self.memory = 0, True

    @contextmanager
    def twins(self, calls):
        if not self.memory:
            raise MemoryError
        yield list(calls)

    def runnable(self, calls):
        return [lambda: None for _ in calls]

    def trial(self, work):
        self.trials += 1
        if self.times[len(work)] < 0:
            raise Unsupported("refused when it runs")
        return lambda: self.times[len(work)]


@pytest.fixture
def tune(library, monkeypatch, tmp_path):
    monkeypatch.setattr(compile, "CACHE", tmp_path / "cache")
    yield device("autotune", monkeypatch)
    sys.modules.pop("minigraph.kernels.cuda.device.autotune", None)


@pytest.fixture
def products(library, monkeypatch):
    yield device("products", monkeypatch)
    sys.modules.pop("minigraph.kernels.cuda.device.products", None)


def device(name, monkeypatch):
    """A module that imports the library, anew with the library of this test."""
    monkeypatch.delitem(sys.modules, f"minigraph.kernels.cuda.device.{name}", raising=False)
    return importlib.import_module(f"minigraph.kernels.cuda.device.{name}")


def tuner(tune, lab, missing=()):
    """A Tuner whose library has all products but those of so many columns."""
    return tune.Tuner(lab, lambda call: None if call.n in missing else Algorithm(0, b"any"))


def variants(columns=7):
    a, b, c = operand(15), operand(21), operand(35)
    product = Gemm(a, b, c, m=5, n=columns, k=3)
    return Choice({"one": [product], "other": [product, Fill(c)]}, step=0)


def decided(tuner, choice):
    """(the calls that will run, what was said)"""
    said = []
    return choice.decided(partial(tuner.decided, note=said.append)), said


# which variant runs


def test_the_fastest_variant_is_taken_and_said_and_another_process_does_not_measure(tune):
    choice, lab = variants(), Lab({1: 2.0, 2: 1.5})
    assert tuner(tune, lab).fastest(choice) == ("other", "timed: other 1.5000 ms, one 2.0000 ms")
    again = Lab()
    assert tuner(tune, again).fastest(choice)[0] == "other"
    assert (lab.trials, again.trials) == (2, 0)


@pytest.mark.parametrize(("other", "taken"), [(0.96, "one"), (0.95, "other")])
def test_the_first_variant_stays_unless_another_is_clearly_faster(tune, other, taken):
    name, remark = tuner(tune, Lab({1: 1.0, 2: other})).fastest(variants())
    assert name == taken
    assert remark.startswith(f"timed: other {other:.4f} ms, one 1.0000 ms")
    assert ("one stays, as less than 5% would be gained" in remark) == (taken == "one")


def test_a_variant_that_fails_when_it_runs_is_passed_over(tune):
    assert tuner(tune, Lab({1: -1.0, 2: 9.0})).fastest(variants()) == ("other", "timed: other 9.0000 ms")
    with pytest.raises(Unsupported, match="no variant runs"):
        tuner(tune, Lab({1: -1.0, 2: -1.0})).fastest(variants(8))


def test_without_memory_nothing_is_timed_or_remembered(tune):
    lab = Lab()
    lab.memory = False
    assert tuner(tune, lab).fastest(variants()) == ("one", "not timed, there is no memory to do it in")
    assert not compile.CACHE.exists()


def test_time_is_bounded(tune, monkeypatch):
    now = iter(range(100))
    monkeypatch.setattr(tune.time, "perf_counter", lambda: next(now))
    lab = Lab({1: 2.0, 2: 1.0})
    assert tuner(tune, lab).fastest(variants()) == ("one", "timed: one 2.0000 ms")
    assert lab.trials == 1


def test_of_a_choice_and_of_those_inside_the_calls_of_one_variant_are_left(tune):
    inner, lab = variants(), Lab({1: 2.0, 2: 1.5, 4: 1.0})
    outer = Choice({"one": [Fill(gemm(5, 7, 3).c)], "three": [inner, *inner.variants["other"]]}, step=0)
    calls, said = decided(tuner(tune, lab), outer)
    assert calls == inner.variants["other"] * 2, "one by one: other work may stand between them"
    assert [text[:30] for text in said] == ["timed: three 1.0000 ms, one 2.", "timed: other 1.5000 ms, one 2."]
    assert list(outer.variants) == ["one", "three"], "the choice itself stays as it was"


def test_a_variant_with_a_product_that_the_library_lacks_is_not_timed(tune):
    choice, lab = variants(), Lab()
    choice.variants["kernel"] = [Fill(gemm(5, 7, 3).c)]
    calls, said = decided(tuner(tune, lab, missing=[7]), choice)
    assert calls == choice.variants["kernel"]
    assert [text[:19] for text in said] == ["not by one: cuBLASL", "not by other: cuBLA"]
    assert lab.trials == 0
    del choice.variants["kernel"]
    assert decided(tuner(tune, lab, missing=[7]), choice)[0] == [choice], "the error comes where it is bound"


def test_the_best_are_timed_in_turns_and_their_median_counts(tune):
    once = {"steady": iter([2.0] * 8), "lucky": iter([1.0] + [3.0] * 7), **{i: iter([9.0 + i] * 8) for i in range(5)}}
    best = tune.ranked({name: lambda it=it: lambda: next(it) for name, it in once.items()})
    assert best[0] == ("steady", 2.0)
    assert dict(best)["lucky"] == 3.0
    assert len(best) == 7


# what times depend on


@pytest.mark.parametrize(
    "other",
    [{"m": 6}, {"dtype": bfloat16}, {"trans_a": True}, {"epilogue": "BIAS"}, {"beta": 1.0}, {"batch": 2},
     {"bias": operand(7)}, {"aux": operand(35), "aux_ld": 7}, {"strides": (1, 0, 0)}],
    ids=str,
)  # fmt: skip
def test_what_times_depend_on_is_part_of_the_key(tune, other):
    lab = Lab({1: 1.0, 2: 2.0})
    for call in (gemm(5, 7, 3), gemm(**{"m": 5, "n": 7, "k": 3, **other})):
        tuner(tune, lab).fastest(Choice({"one": [call], "other": [call, Fill(call.c)]}, step=0))
    assert lab.trials == 4


def test_the_device_and_how_operands_lie_are_too_their_addresses_are_not(tune):
    labs = [Lab({1: 1.0, 2: 2.0}) for _ in range(3)]
    labs[1].facts = {**labs[1].facts, "driver": 2}
    choices = [variants() for _ in range(4)]
    choices[2].variants["one"][0].b = operand(31).view((21,), offset=16)
    for lab, choice in zip(labs, choices, strict=False):
        tuner(tune, lab).fastest(choice)
    assert [lab.trials for lab in labs] == [2] * 3
    choices[3].variants["one"][0].a.ptr += 4096
    tuner(tune, labs[0]).fastest(choices[3])
    assert labs[0].trials == 2


def test_a_product_without_addresses_can_be_asked_about():
    call = gemm(5, 7, 3)
    call.a.ptr = call.c.ptr = call.workspace.ptr = None
    call.b = operand(31, ptr=None).view((21,), offset=16)
    twin = moved.unplaced(call)
    assert [b.address % 256 for b in (twin.a, twin.b, twin.c, twin.workspace)] == [0, 16, 0, 0]
    assert (twin.m, twin.n, twin.k, twin.workspace.nbytes) == (5, 7, 3, 1024)
    assert call.a.ptr is None


def test_what_was_chosen_without_addresses_runs_only_where_operands_lie_as_assumed(products):
    call = gemm(5, 7, 3)
    assert products.lies_as_assumed(call)
    call.c.ptr += 16
    assert not products.lies_as_assumed(call), "a user's array may lie on any multiple of 16"
    call = gemm(5, 7, 3)
    call.b = operand(31).view((21,), offset=16)
    assert products.lies_as_assumed(call)
    call.b.owner.ptr += 8
    assert not products.lies_as_assumed(call)


def test_questions_are_equal_where_the_library_would_say_the_same(products):
    calls = [gemm(5, 7, 3), gemm(5, 7, 3), gemm(5, 7, 3), gemm(5, 7, 4), gemm(7, 5, 3)]
    calls.append(gemm(5, 7, 3, epilogue="BIAS", bias=operand(7)))
    calls[1].a.ptr += 16  # addresses are not known yet
    calls[2].b = operand(31).view((21,), offset=16)
    told = [str(facts(moved.unplaced(c))) for c in calls]
    asked = [products.question(c) for c in calls]
    assert len(set(told)) == 5
    assert [[a == b for b in asked] for a in asked] == [[a == b for b in told] for a in told]


DAMAGE = {
    "not json": lambda text: text[:20],
    "not text": lambda text: b"\xff\xfe",
    "empty": lambda text: "",
    "a list": lambda text: "[1, 2]",
    "of another key": lambda text: text.replace("of this test", "of another"),
    "no time": lambda text: json.dumps({**json.loads(text), "milliseconds": {"one": -1}}),
    "no times": lambda text: json.dumps({**json.loads(text), "milliseconds": {}}),
    "of other variants": lambda text: json.dumps({**json.loads(text), "milliseconds": {"third": 1.0}}),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_measured_anew_and_written_again(tune, damage):
    tuner(tune, Lab({1: 2.0, 2: 1.0})).fastest(variants())
    (path,) = compile.CACHE.iterdir()
    whole = path.read_text(encoding="utf-8")
    spoilt = DAMAGE[damage](whole)
    path.write_bytes(spoilt if isinstance(spoilt, bytes) else spoilt.encode())
    lab = Lab({1: 2.0, 2: 1.0})
    assert tuner(tune, lab).fastest(variants())[0] == "other"
    assert lab.trials == 2
    assert path.read_text(encoding="utf-8") == whole


def test_a_folder_that_cannot_be_written_costs_nothing_but_the_memory(tune, tmp_path, monkeypatch):
    blocked = tmp_path / "a file"
    blocked.write_text("")
    monkeypatch.setattr(compile, "CACHE", blocked / "cache")
    assert tuner(tune, Lab({1: 2.0, 2: 1.0})).fastest(variants())[0] == "other"


def test_nothing_is_timed_unless_the_strategy_asks():
    assert not BuildStrategy.all().run_options().autotune
    assert BuildStrategy(autotune=True).run_options().autotune


def test_twins_keep_views_sizes_and_what_is_shared(tune):
    binder = Binder()
    binder.begin(0)
    x, y = operand(64), operand(8)
    shown = x.view((4, 4), offset=64).view((2,), offset=8)
    launch = Launch("source", "f", (1, 1, 1), (32, 1, 1), (x, shown, np.int64(3)))
    choice = Choice({"one": [launch, Copy(y, y)], "other": [gemm(2, 2, 2, bias=y)]}, step=0)
    roots = moved.owners([choice])
    assert {id(x), id(y)} <= {id(r) for r in roots}
    assert len(roots) == 6
    places = {id(r): operand(*r.shape, dtype=r.dtype, ptr=(i + 1) << 30) for i, r in enumerate(roots)}
    twin = choice.moved(places)
    a, b, number = twin.variants["one"][0].args
    assert (a, number) == (places[id(x)], 3)
    assert b.address == places[id(x)].address + 72
    assert twin.variants["one"][1].source is places[id(y)]
    assert twin.variants["other"][0].bias is places[id(y)]
    assert choice.variants["one"][0].args[1] is shown, "the call itself changed"


def test_constants_keep_their_content_and_are_no_scratch(tune):
    binder, x = Binder(), operand(64)
    _, numbers = binder.table([], np.arange(5, dtype=np.int32))
    _, sizes = binder.table([x], np.arange(3))
    constant, pointers = (t.buffer for t in binder.tables)
    launch = Launch("source", "f", (1, 1, 1), (32, 1, 1), (x, numbers, sizes))
    assert moved.owners([launch]) == [x, pointers]
    assert moved.constants([launch]) == [constant]
    assert constant.ptr is None
    assert facts(numbers) == ["int32", [5], 256], "known before it has an address"
    twin = moved.unplaced(launch)
    assert twin.args[1].owner is constant
    assert twin.args[2].owner is not pointers
    constant.table.write(gpu_stub.StubRuntime())
    assert gpu_stub._seen(twin.args[1], 5).tolist() == [0, 1, 2, 3, 4]


def test_tensor_maps_move_with_their_buffers_and_are_part_of_the_key(tune):
    x = operand(64, 128, dtype=bfloat16)
    rows = x.view((32, 128), offset=32 * 256)

    def call(buffer, box):
        made = TensorMap(buffer, (128, 32, 1, 1), (128, 128, 128), box)
        return Launch("source", "f", (1, 1, 1), (32, 1, 1), (made, Words([x, 7])))

    launch = call(rows, 64)
    assert moved.owners([launch]) == [x]
    place = operand(64, 128, dtype=bfloat16, ptr=1 << 30)
    shown, struct = launch.moved({id(x): place}).args
    assert shown.buffer.address == place.address + 32 * 256
    assert (shown.sizes, shown.box) == (launch.args[0].sizes, launch.args[0].box)
    assert struct.words == [place, 7]
    assert launch.args[0].buffer is rows, "the call itself changed"
    texts = [json.dumps(facts(c)) for c in (launch, call(rows, 32), call(x, 64))]
    assert texts[0] == json.dumps(facts(call(rows, 64)))
    assert len(set(texts)) == 3


def test_what_a_time_depends_on_is_plain_data():
    """Also of a product whose algorithm, and others that have room beside it, are known."""
    product = gemm(5, 8, 3)
    before = json.dumps(product.facts())
    product.algorithm, product.others = b"one", (b"two",)
    assert json.dumps(product.facts()) == before
