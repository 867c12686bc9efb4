"""compiled.kernels(), compiled._graph and with_data_parallel: what a user sees of a compiled program."""

from __future__ import annotations

import numpy as np
import pytest

import minigraph as mg
from minigraph.errors import FeedError, KernelError, PlaceError, ProgramError
from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.kernels.cuda.record.calls import Launch
from minigraph.runtime.cuda.inspect.kernels import listed
from minigraph.static import BuildStrategy, CompiledProgram

SHAPES = {"x": [256, 784], "y": [256, 1]}


@pytest.fixture
def mlp():
    """(program, loss) of two layers with AdamW."""
    main, startup = mg.static.Program(), mg.static.Program()
    with mg.static.program_guard(main, startup):
        x, y = mg.static.data("x", [None, 784]), mg.static.data("y", [None, 1], "int64")
        h = mg.nn.functional.gelu(mg.nn.Linear(784, 1024)(x))
        loss = mg.nn.functional.cross_entropy(mg.nn.Linear(1024, 10)(h), y)
        mg.optimizer.AdamW(1e-3).minimize(loss)
    return main, loss


def compiled(program, every: bool) -> CompiledProgram:
    return CompiledProgram(program, build_strategy=BuildStrategy.all() if every else BuildStrategy())


def test_kernels_of_an_update_before_and_after(mlp):
    main, loss = mlp
    before, after = (compiled(main, every).kernels(SHAPES, [loss]) for every in (False, True))
    updates = [[k for k in kernels if k.op and k.op.type.endswith("adamw")] for kernels in (before, after)]
    assert [k.name for k in updates[0]] == ["prepare", "update"] * 4
    assert [k.name for k in updates[1]] == ["prepare", "update"]
    elements = 784 * 1024 + 1024 + 1024 * 10 + 10
    for own in updates:  # of a float32 parameter, its gradient and two moments; two powers and a rate are a few bytes
        assert 16 * elements <= sum(k.nbytes for k in own) < 16 * elements + 1000
    assert len(after) < len(before)


def test_a_kernel_says_where_it_comes_from(mlp):
    main, loss = mlp
    kernels = compiled(main, True).kernels(SHAPES, [loss])
    fused = next(k for k in kernels if k.name == "fused_rows")
    assert fused.members[0] == "softmax_with_cross_entropy" and len(fused.members) > 1
    assert fused.op.site and "test_kernels.py" in str(fused.op.site)
    assert fused.grid == (16, 1, 1) and fused.block[0] > 0
    assert f" {fused.name}(" in fused.source and "__global__" in fused.source
    product = kernels[0]
    assert product.name == "product 256x1024x784 bias" and product.grid is None
    assert product.nbytes == 4 * (256 * 784 + 784 * 1024 + 256 * 1024 + 1024)  # its workspace is no traffic
    with pytest.raises(KernelError, match="product 256x1024x784 bias has no source of ours"):
        product.ptx()
    lines = str(kernels).splitlines()
    assert len(lines) == len(kernels) + 1 and lines[-1].startswith(f"{len(kernels)} calls, ")
    assert "softmax_with_cross_entropy, " in next(line for line in lines if line.startswith("fused_rows"))


def test_ptx_of_a_kernel(mlp):
    pytest.importorskip("cuda.bindings.nvrtc")
    main, loss = mlp
    kernel = next(k for k in compiled(main, False).kernels(SHAPES, [loss]) if k.name == "pointwise")
    assert ".target sm_90a" in kernel.ptx() and f".entry {kernel.name}(" in kernel.ptx()


def test_kernels_are_refused_clearly(mlp):
    main, loss = mlp
    with pytest.raises(PlaceError, match="a run on a CPU launches no kernels"):
        compiled(main, True).kernels(SHAPES, [loss], place=mg.CPUPlace())
    with pytest.raises(FeedError, match="depends on the shape of"):
        compiled(main, True).kernels()


def test_graph_as_paddles_tests_of_passes_read_it(mlp):
    main, _ = mlp
    for every, expected in ((False, 0), (True, 2)):
        graph = compiled(main, every)._graph
        names = [node.name() for node in graph.nodes()]
        assert names.count("fused_gemm_epilogue") == expected
        assert {node.name() for node in graph.all_op_nodes()} == {op.type for op in compiled(main, every).after.ops}
    weight = next(node for node in graph.all_var_nodes() if node.name() == main.all_parameters()[0].name)
    assert weight.is_var() and not weight.inputs and "fused_gemm_epilogue" in [op.name() for op in weight.outputs]
    update = next(node for node in graph.all_op_nodes() if node.name() == "fused_adamw")
    written = [node for node in update.outputs if node.name() == weight.name()]
    assert written and written[0] is not weight, "a variable that is written again is another node"


def test_bytes_of_parts_of_one_array():
    """Each part that a call touches counts, and one that it is given twice counts once."""
    whole = Buffer([2048, 64], np.dtype(np.float32))
    left, right = whole.view([1024, 64]), whole.view([1024, 64], offset=whole.nbytes // 2)
    part = whole.nbytes // 2
    for args, parts in (([left, right], 2), ([left, left], 1), ([left.view([1024 * 64]), left, right], 2)):
        assert listed(Launch("", "k", (1, 1, 1), (32, 1, 1), args), None, "sm_90a").nbytes == parts * part


@pytest.mark.parametrize("mode", ["table", "struct32k", "unified"])
def test_bytes_of_an_update_are_those_of_its_tensors_however_it_learns_their_addresses(mode, mlp):
    """Parameter, gradient and two moments of each, and a few kB that say where they lie."""
    main, loss = mlp
    strategy = BuildStrategy(fuse_all_optimizer_ops=True, multi_tensor_mode=mode)
    *_, update = CompiledProgram(main, strategy).kernels(SHAPES, [loss]).of("fused_adamw")
    tensors = 4 * 4 * (784 * 1024 + 1024 + 1024 * 10 + 10)
    assert tensors <= update.nbytes < tensors + (1 << 14)


def test_a_drawing_has_the_calls_of_an_operator_and_its_parameters():
    main = mg.static.Program()
    with mg.static.program_guard(main, mg.static.Program()), mg.base.unique_name.guard():
        loss = mg.mean(mg.nn.Linear(8, 3)(mg.static.data("x", [4, 8])))
        mg.optimizer.SGD(0.1).minimize(loss)
    kernels = CompiledProgram(main).kernels(fetch_list=[loss])
    updates = kernels.of("sgd")
    assert [k.op.type for k in kernels if k in updates] == ["sgd"] * len(updates)
    assert len(updates) == 2
    lines = updates.to_dot().splitlines()
    assert [line.split()[0] for line in lines if "shape=box" in line] == ["call0", "call1"]
    assert '  "parameter linear_0.w_0" [shape=ellipse, fillcolor="#dddddd", label="linear_0.w_0\\nf32[8,3]"];' in lines
    owners = {op.inputs["Param"][0].name: f"call{i}" for i, op in enumerate(k.op for k in updates)}
    assert all(f'  "parameter {name}" -> {call};' in lines for name, call in owners.items())
    assert kernels.of("adam").to_dot().count("shape=") == 0
    with pytest.raises(ProgramError, match=r"operator type 'sgdd' does not exist[^?]*did you mean 'sgd'"):
        kernels.of("sgdd")
    with pytest.raises(ProgramError, match=r"the type of an operator is a str, not \['sgd'\]"):
        kernels.of(["sgd"])


def test_kernels_for_a_gpu_that_is_not_there(mlp):
    main, loss = mlp
    kernels = compiled(main, True).kernels(SHAPES, [loss], gpu="a100")
    assert {k.arch for k in kernels} == {"sm_80"}
    with pytest.raises(PlaceError, match=r"GPU 'h20' does not exist[^?]*did you mean 'h200'"):
        compiled(main, True).kernels(SHAPES, [loss], gpu="h20")



def test_kernels_are_compiled_into_a_folder(mlp, tmp_path):
    pytest.importorskip("cuda.bindings.nvrtc")
    main, loss = mlp
    kernels = compiled(main, False).kernels(SHAPES, [loss], gpu="a100").of("gelu", "softmax_with_cross_entropy")
    count = kernels.compile(tmp_path / "minigraph_kernels")
    assert count == len({k.source for k in kernels}) == len(list(tmp_path.rglob("*.cubin"))) == 2
    (tmp_path / "file").touch()
    with pytest.raises(KernelError, match=r"no kernels could be written to .*file: "):
        kernels.compile(tmp_path / "file")
    with pytest.raises(KernelError, match=r"no kernels could be written to .*: .*surrogates not allowed"):
        kernels.compile(f"{tmp_path}/\ud800")
    with pytest.raises(ProgramError, match="folder must be a path, is 3"):
        kernels.compile(3)
