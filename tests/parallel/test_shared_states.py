"""reduce_strategy Reduce: each rank has a piece of the optimizer's states, and parameters are what they would be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.errors import NonFiniteError, VerifyError
from minigraph.ir.convert import to_graph
from minigraph.ir.verify import verify
from minigraph.opdef import get_op
from minigraph.passes.communication.fuse_all_reduce_ops import fuse_all_reduce_ops
from minigraph.passes.communication.reductions import verify_reductions
from minigraph.passes.engine.log import PassReport
from minigraph.program.reductions import reduce_gradients
from minigraph.program.shards import share_updates
from tests.parallel.test_training import FEEDS, SETTINGS, Case
from tests.support.grades import checkered

REDUCE = {"reduce_strategy": static.BuildStrategy.ReduceStrategy.Reduce}
RULES = {
    "adamw": lambda: mg.optimizer.AdamW(0.02, weight_decay=0.1),
    "momentum, decayed": lambda: mg.optimizer.Momentum(0.1, weight_decay=0.1, use_nesterov=True),
    "rmsprop": lambda: mg.optimizer.RMSProp(0.02, centered=True, momentum=0.5),
    "adagrad": lambda: mg.optimizer.Adagrad(0.1),
    "sgd": lambda: mg.optimizer.SGD(0.1),
    "amsgrad": lambda: mg.optimizer.Adam(0.02, amsgrad=True),
    "lion": lambda: mg.optimizer.Lion(0.02),
}  # fmt: skip
ALL = {k: v for k, v in vars(static.BuildStrategy.all(verify="each_pass")).items() if k[0] != "_"} | REDUCE


def same(found, wanted, rtol=1e-12):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=rtol, atol=1e-12, err_msg=name)


@pytest.mark.parametrize(("name", "every"), checkered([*RULES, *SETTINGS], [False, True]))
def test_ranks_with_pieces_are_one_rank(name, every):
    facts: dict[str, Any] = {"optimizer": RULES[name]} if name in RULES else SETTINGS[name]
    same(Case(**facts).trained(3 if every else 2, feeds=[{k: v[:6] for k, v in f.items()} for f in FEEDS],
                               **(ALL if every else REDUCE)),
         Case(**facts).trained(1, feeds=[{k: v[:6] for k, v in f.items()} for f in FEEDS]))  # fmt: skip


@pytest.mark.parametrize("rewritten", [False, True])
@pytest.mark.parametrize("flag", [{"check_nan_inf": True}, {"enable_inplace": False}, {"memory_optimize": False}])
def test_ranks_with_pieces_take_the_flags_of_a_run(flag, rewritten):
    """Where nothing is written over, what is gathered is a new array; and a run that fails changes no piece."""
    flags = (ALL if rewritten else REDUCE) | flag
    case, good = Case(), FEEDS[:2]
    wanted = Case().trained(1, feeds=good)
    case.trained(2, feeds=good[:1], **flags)
    if "check_nan_inf" in flag:
        with pytest.raises(NonFiniteError):
            case.trained(2, feeds=[{**FEEDS[1], "x": np.full_like(FEEDS[1]["x"], np.nan)}], **flags)
    same(case.trained(2, feeds=good[1:], **flags), wanted)


def test_a_state_that_other_operators_use_stays_whole():
    """A raw KeyError before: the state lay in pieces, and the other operator read it whole."""
    found, wanted, means = Case(optimizer=RULES["adamw"]), Case(optimizer=RULES["adamw"]), []
    for case in (found, wanted):
        state = next(v for name, v in case.main.vars.items() if "moment1" in name)
        with static.program_guard(case.main, static.Program()):
            means.append(mg.mean(state))
    program = sharing(found, 2)
    assert f"other operators use {state.name} as well" in str(program.explain())
    for feed in FEEDS[:3]:
        pair = found.exe.run(program, feed, [means[0]], scope=found.scope, return_merged=False)[0]
        (mean,) = wanted.exe.run(wanted.main, feed, [means[1]], scope=wanted.scope)
        np.testing.assert_allclose(pair, [mean, mean], rtol=1e-12)
    same(found.main.state_dict(scope=found.scope), wanted.main.state_dict(scope=wanted.scope))


def sharing(case, ranks, **flags):
    strategy = static.BuildStrategy(**REDUCE, **flags)
    return static.CompiledProgram(case.main).with_data_parallel(
        case.loss.name, strategy, places=static.cpu_places(ranks)
    )


def test_a_rank_keeps_its_part_of_the_states():
    """As computed: two states of 4 bytes for each element divided by the ranks, at most one element more for each."""
    case = Case("float32", optimizer=lambda: mg.optimizer.Adam(0.01))
    params = case.main.all_parameters()
    rest = {v.name: v.type.nbytes for v in case.main.vars.values() if v.persistable and "moment" not in v.name}
    feed = {name: x.shape for name, x in FEEDS[0].items()}
    whole = static.CompiledProgram(case.main).memory_report(feed, place=mg.CPUPlace()).persistable
    assert whole == sum(rest.values()) + sum(8 * p.type.size for p in params)
    for ranks in (2, 3, 8):
        kept = sharing(case, ranks).memory_report(feed, place=mg.CPUPlace()).persistable
        assert kept == sum(rest.values()) + sum(8 * -(-p.type.size // ranks) for p in params)
    case.exe.run(sharing(case, 4), {**FEEDS[0], "x": FEEDS[0]["x"].astype("float32")}, scope=case.scope)
    held = {name: a.nbytes for name, a in case.scope.arrays.items() if isinstance(a, np.ndarray)}
    assert sum(n for name, n in held.items() if "moment" in name) == sum(8 * -(-p.type.size // 4) for p in params)


def test_states_move_between_numbers_of_ranks_and_to_one_rank_and_back():
    wanted, found = Case(), Case()
    same(found.trained(2, 1, **REDUCE), wanted.trained(1, 1))
    same(found.trained(4, 1, FEEDS[1:], **REDUCE), wanted.trained(1, 1, FEEDS[1:]))
    same(found.trained(2, 1, FEEDS[2:], **REDUCE), wanted.trained(1, 1, FEEDS[2:]))
    same(found.trained(1, 1, FEEDS[3:]), wanted.trained(1, 1, FEEDS[3:]))
    same(found.trained(2, 1, FEEDS), wanted.trained(1, 1, FEEDS))
    same(found.trained(4, 1, FEEDS[1:], **REDUCE), wanted.trained(1, 1, FEEDS[1:]))


@pytest.mark.parametrize(
    ("saved_by", "loaded_by"), [((4, REDUCE), (2, REDUCE)), ((2, REDUCE), (1, {})), ((2, {}), (4, REDUCE))]
)
def test_a_checkpoint_goes_on_with_another_number_of_ranks(saved_by, loaded_by, tmp_path):
    wanted, first, second = Case(), Case(), Case()
    wanted.trained(1, 2)
    first.trained(saved_by[0], 2, **saved_by[1])
    with static.scope_guard(first.scope):
        static.save(first.main, str(tmp_path / "state"))
    with static.scope_guard(second.scope):
        static.load(second.main, str(tmp_path / "state"))
    same(second.trained(loaded_by[0], 2, FEEDS[2:], **loaded_by[1]), wanted.trained(1, 2, FEEDS[2:]))


def test_16_bit_parameters_have_their_copies_in_pieces():
    decorated = {"level": "O2", "dtype": "float16", "init_loss_scaling": 64.0}
    shared, whole = (
        Case("float32", decorated, optimizer=lambda: mg.optimizer.AdamW(0.02, multi_precision=True)) for _ in range(2)
    )
    bad = {**FEEDS[1], "x": np.where(np.arange(8)[:, None] == 7, 1e30, FEEDS[1]["x"])}
    feeds = [FEEDS[0], bad, FEEDS[2]]
    found, wanted = shared.trained(2, feeds=feeds, **REDUCE), whole.trained(2, feeds=feeds)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    assert not any("master" in name and isinstance(a, np.ndarray) and "SHARD" not in name
                   for name, a in shared.scope.arrays.items())  # fmt: skip


def test_what_lies_in_pieces_is_told():
    case = Case(optimizer=lambda: mg.optimizer.Lamb(0.01))
    text = str(sharing(case, 2).explain())
    assert "lamb of linear_0.w_0 stays whole: its step depends on norms of the whole parameter" in text
    case = Case()
    state = next(name for name in case.main.vars if "moment1" in name)
    with pytest.raises(mg.errors.ProgramError, match=r"fetch target '.*moment1.*' lies in pieces on 2 ranks"):
        case.exe.run(sharing(case, 2), FEEDS[0], [state], scope=case.scope)


def test_a_gradient_that_is_fetched_is_that_of_all_ranks():
    found = []
    for flags in ({}, REDUCE):
        case = Case(optimizer=RULES["adamw"])
        program = static.CompiledProgram(case.main).with_data_parallel(
            case.loss.name, static.BuildStrategy(**flags), places=static.cpu_places(2)
        )
        found.append(case.exe.run(program, FEEDS[0], ["linear_0.w_0@GRAD"], scope=case.scope)[0])
    np.testing.assert_array_equal(*found)


def shared_graph():
    case = Case(optimizer=RULES["adamw"])
    reduce_gradients(case.main, case.loss.name, 2)
    assert share_updates(case.main, 2, ()) == []
    return to_graph(case.main)


@pytest.mark.parametrize(("planted", "times"), [("left out", "0 times"), ("twice", "2 times")])
def test_a_piece_that_is_not_reduced_once_is_found(planted, times):
    graph = shared_graph()
    verify_reductions(graph)
    op = graph.ops_of(["c_reduce_shards"])[0]
    if planted == "left out":
        graph.remove_op(op)
        graph.add_op(type(op)(get_op("c_shards"), op.inputs, op.outputs, op.attrs, rank=op.rank, role=op.role))
    else:
        (x,) = op.inputs["X"]
        again = graph.add_var("again@GRAD", x.type)
        rank = (*op.rank[:-1], op.rank[-1] - 0.5)
        whole = get_op("c_allreduce_sum")
        graph.add_op(type(op)(whole, {"X": [x]}, {"Out": [again]}, {}, rank=rank, role="backward"))
        graph.set_input(op, "X", 0, again)
    with pytest.raises(VerifyError, match=f"is reduced {times}.* before adamw updates"):
        verify_reductions(graph)


@pytest.mark.parametrize("sent", ["auto", "float32"])
def test_pieces_travel_in_buckets(sent):
    counts = {}
    for size in (1e-6, 100):
        graph, report = shared_graph(), PassReport("fuse_all_reduce_ops")
        fuse_all_reduce_ops(graph, report, size, sent)
        verify(graph)
        verify_reductions(graph)
        counts[size] = [len(graph.ops_of([kind])) for kind in ("c_reduce_shards", "c_gather_shards")]
    assert counts == {1e-6: [5, 5], 100: [1, 1]}
    found, wanted = (
        Case(optimizer=RULES["adamw"]).trained(2, fuse_all_reduce_ops=True, all_reduce_dtype=t, **REDUCE)
        for t in (sent, "auto")
    )
    worst = max(np.abs(found[k] - v).max() for k, v in wanted.items())
    assert (worst == 0) == (sent == "auto") and worst < 1e-3
