"""Buckets of gradients: any size gives the same bits, and a gradient that is not reduced once is found."""

from __future__ import annotations

import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.errors import AttrError, ProgramError, VerifyError
from minigraph.ir.convert import to_graph
from minigraph.passes.communication.fuse_all_reduce_ops import fuse_all_reduce_ops
from minigraph.passes.communication.reductions import verify_reductions
from minigraph.passes.engine.log import PassReport
from minigraph.program.reductions import reduce_gradients
from tests.support.parallel_training import net, trained

KILOBYTE = 1 / 1024


def reduced(clip=True):
    main, _, loss = net(clip)
    reduce_gradients(main, loss.name, 2)
    return main, loss


@pytest.mark.parametrize("size", [0.1 * KILOBYTE, 0.3 * KILOBYTE, 32])
def test_the_size_of_buckets_changes_no_bit(size):
    apart = trained(3, rows=6)
    joined = trained(3, rows=6, fuse_all_reduce_ops=True, fuse_grad_size_in_MB=size)
    assert apart[0] == joined[0]
    for name, value in apart[1].items():
        np.testing.assert_array_equal(joined[1][name], value, err_msg=name)


def test_a_bucket_has_as_many_bytes_as_it_may():
    main, _ = reduced()
    sizes = {}
    for size in (0.1, 0.3, 100):
        graph, report = to_graph(main), PassReport("fuse_all_reduce_ops")
        fuse_all_reduce_ops(graph, report, size * KILOBYTE)
        verify_reductions(graph)
        found = graph.ops_of(["c_allreduce_sum", "c_allreduce_coalesced"])
        sizes[size] = [sum(v.type.nbytes for v in op.inputs["X"]) for op in found]
    assert sizes == {0.1: [24, 192, 64, 384], 0.3: [280, 384], 100: [664]}


def test_gradients_travel_in_another_type():
    main, _ = reduced()
    graph, report = to_graph(main), PassReport("fuse_all_reduce_ops")
    fuse_all_reduce_ops(graph, report, all_reduce_dtype="float32")
    (op,) = graph.ops_of(["c_allreduce_coalesced"])
    assert op.attrs["sent"] == "float32"
    wide, narrow = (trained(2, fuse_all_reduce_ops=True, all_reduce_dtype=t)[1] for t in ("auto", "float32"))
    found = max(np.abs(narrow[n] - v).max() for n, v in wide.items())
    assert 0 < found < 1e-5


def test_a_bucket_ends_where_an_update_reads_one_of_its_gradients():
    """Two losses, each with an optimizer: the first updates before the second's gradients exist."""
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        x = static.data("x", [4, 3])
        a, b = (static.create_parameter([3], "float32") for _ in range(2))
        grads = [static.append_backward(mg.mean(x * w), parameter_list=[w]) for w in (a, b)]
        for pairs in grads:
            mg.optimizer.SGD(0.1).apply_gradients(pairs)
    update = next(op for op in main.ops if "optimizer" in op.opdef.traits)
    main.ops.remove(update)
    main.ops.insert(next(i for i, op in enumerate(main.ops) if f"{b.name}@GRAD" in op.output_arg_names), update)
    reduce_gradients(main, next(op for op in main.ops if op.type == "reduce_mean").output_arg_names[0], 2)
    graph, report = to_graph(main), PassReport("fuse_all_reduce_ops")
    assert fuse_all_reduce_ops(graph, report) == 0
    assert [r.reason for r in report.refused] == ["it is a bucket by itself"] * 2


@pytest.mark.parametrize(("planted", "times"), [("left out", "0 times"), ("twice", "2 times"), ("mixed", "0 and 1")])
def test_a_gradient_that_is_not_reduced_once_is_found(planted, times):
    main, _ = reduced(clip=planted == "mixed")
    graph = to_graph(main)
    verify_reductions(graph)
    op = graph.ops_of(["c_allreduce_sum"])[0]
    before, after = op.inputs["X"][0], op.outputs["Out"][0]
    if planted == "twice":
        between = graph.add_var("between@GRAD", after.type)
        graph.set_output(op, "Out", 0, between)
        again = graph.ops_of(["c_allreduce_sum"])[1]
        graph.add_op(type(op)(op.opdef, {"X": [between]}, {"Out": [after]}, {}, rank=(*op.rank, 1), role="backward"))
        assert again is not op
    else:
        for reader in after.consumers:
            if planted == "left out" or reader.type == "elementwise_mul":
                slot, i = next(iter(after.read_by[reader]))
                graph.set_input(reader, slot, i, before)
    with pytest.raises(VerifyError, match=f"is reduced {times}.* before adamw updates"):
        verify_reductions(graph)


def test_bad_settings_and_programs_are_refused():
    with pytest.raises(AttrError, match="fuse_grad_size_in_MB must be a positive number"):
        static.BuildStrategy(fuse_grad_size_in_MB=0)
    with pytest.raises(AttrError, match="all_reduce_dtype must be auto"):
        static.BuildStrategy(all_reduce_dtype="int8")
    main, loss = reduced()
    with pytest.raises(ProgramError, match="reduces its gradients already"):
        reduce_gradients(main, loss.name, 2)
