"""Files that others write: nodes that our exporter never writes, and nodes that are wrong."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.errors import MinigraphError, ProgramError
from minigraph.onnx.load import program_of
from minigraph.onnx.model import Model, Node
from minigraph.onnx.standard import READ
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor
from minigraph.types import TensorType, float32
from tests.support.onnx_runtime import onnx, served

N, F = onnx.helper.make_node, onnx.TensorProto.FLOAT
RNG = np.random.default_rng(5)
W, B, COLUMN = (RNG.normal(size=size).astype("f4") for size in ((5, 4), 5, (3, 1)))
VARIANCE = np.abs(RNG.normal(size=4)).astype("f4")


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, "i8")


# name: nodes from x to y, constants
CASES: dict[str, tuple[list[Any], dict[str, np.ndarray]]] = {
    "Gemm of a row": ([N("Gemm", ["x", "w", "b"], ["y"], transB=1)], {"w": W, "b": B}),
    "Gemm with factors": ([N("Gemm", ["x", "w", "b"], ["y"], transB=1, alpha=0.5, beta=2.0)], {"w": W, "b": B}),
    "Gemm with alpha alone": ([N("Gemm", ["x", "w"], ["y"], transB=1, alpha=0.1)], {"w": W}),
    "Gemm with beta alone": ([N("Gemm", ["x", "w", "b"], ["y"], transB=1, beta=0.3)], {"w": W, "b": B}),
    "Gemm of a column": ([N("Gemm", ["x", "w", "c"], ["y"], transB=1)], {"w": W, "c": COLUMN}),
    "Neg": ([N("Neg", ["x"], ["y"])], {}),
    "Mean": ([N("Abs", ["x"], ["a"]), N("Mean", ["x", "a", "a"], ["y"])], {}),
    "Dropout": ([N("Dropout", ["x"], ["y"])], {}),
    "HardSigmoid": ([N("HardSigmoid", ["x"], ["y"], alpha=0.3)], {}),
    "HardSwish": ([N("HardSwish", ["x"], ["y"])], {}),
    "Mish": ([N("Mish", ["x"], ["y"])], {}),
    "Selu": ([N("Selu", ["x"], ["y"])], {}),
    "Celu": ([N("Celu", ["x"], ["y"], alpha=0.7)], {}),
    "PRelu": ([N("PRelu", ["x", "s"], ["y"])], {"s": np.array([0.1, -0.2, 0.3, 2.0], "f4")}),
    "BatchNormalization": (
        [N("BatchNormalization", ["x", "v", "v", "m", "v"], ["y"], epsilon=0.01)], {"v": VARIANCE, "m": W[0]},
    ),
    "constants": (
        [N("Constant", [], ["c"], value_float=2.5), N("Constant", [], ["s"], value_ints=[-1, 2]),
         N("Mul", ["x", "c"], ["m"]), N("Reshape", ["m", "s"], ["y"])], {},
    ),
    "a constant as output": ([N("Constant", [], ["y"], value=onnx.numpy_helper.from_array(W))], {}),
    "Shape and Range": (
        [N("Shape", ["x"], ["s"]), N("Reshape", ["x", "s"], ["a"]), N("Range", ["0", "4", "1"], ["r"]),
         N("Cast", ["r"], ["f"], to=F), N("Add", ["a", "f"], ["y"])],
        {"0": np.int64(0), "4": np.int64(4), "1": np.int64(1)},
    ),
    "Slice backwards": (
        [N("Slice", ["x", "a", "b", "axis", "step"], ["y"])],
        {"a": ints(-1), "b": ints(-99), "axis": ints(1), "step": ints(-2)},
    ),
    "attention": (
        [N("Transpose", ["x"], ["t"]), N("MatMul", ["x", "t"], ["p"]), N("Mul", ["p", "half"], ["h"]),
         N("Softmax", ["h"], ["s"], axis=-1), N("MatMul", ["s", "x"], ["y"])], {"half": np.float32(0.5)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_onnxruntime_and_we_compute_the_same(name, tmp_path):
    nodes, constants = CASES[name]
    x = RNG.normal(size=(3, 4)).astype("f4")
    helper, path = onnx.helper, tmp_path / "theirs.onnx"
    kept = [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    given = [helper.make_tensor_value_info("x", F, [3, 4])]
    graph = helper.make_graph(nodes, "g", given, [helper.make_tensor_value_info("y", F, ["a", "b"])], kept)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), str(path))
    program, (theirs,) = mg.onnx.load(path), served(path, {"x": x})
    for which in (program, static.CompiledProgram(program, static.BuildStrategy.all())):
        (ours,) = Executor().run(which, {"x": x}, list(program.fetched))
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=2e-6)


def loaded(node: Node, inputs: dict[str, TensorType] | None = None) -> Any:
    given = {"x": TensorType((-1, 4), float32)} if inputs is None else inputs
    return program_of(Model("g", given, {"y": TensorType((), float32)}, {}, [node]), Scope())


@pytest.mark.parametrize("op_type", sorted(READ))
def test_a_node_with_wrong_inputs_and_attributes_is_one_error(op_type):
    words = dict.fromkeys(("alpha", "beta", "axis", "axes", "perm", "to", "epsilon", "value", "start", "min"), "word")
    for inputs in ((), ("x",), ("x", "x", "x"), ("", "x")):
        for attrs in ({}, words, dict.fromkeys(words, 10**30), dict.fromkeys(words, (1, 2, 3))):
            with suppress(MinigraphError):  # no other error; what is left out may be a default
                loaded(Node(op_type, inputs, ("y",), attrs))


def test_what_only_a_run_knows_is_refused():
    with pytest.raises(ProgramError, match="Shape: sizes of x are free"):
        loaded(Node("Shape", ("x",), ("y",)))
    with pytest.raises(ProgramError, match="Dropout: whose mask is read"):
        loaded(Node("Dropout", ("x",), ("y", "mask")))
    with pytest.raises(ProgramError, match="BatchNormalization: in training"):
        loaded(Node("BatchNormalization", ("x",) * 5, ("y",), {"training_mode": 1}))
    far = Model("g", {}, {}, {"0": np.int64(0), "n": np.int64(2**60), "1": np.int64(1)})
    far.nodes = [Node("Range", ("0", "n", "1"), ("y",))]
    with pytest.raises(ProgramError, match=r"Range: of 1\.15e\+18 numbers"):
        program_of(far, Scope())
