"""Programs changed by hand, variables of other programs, copies: each works or is refused in one clear error."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.base import unique_name
from minigraph.errors import (
    AttrError,
    DTypeError,
    FeedError,
    FetchError,
    MinigraphError,
    ProgramError,
)
from minigraph.ir.text import parse

ONES = {"x": np.full((2, 3), 0.5, "float32")}


class Net:
    """x -> scale -> tanh -> mean."""

    def __init__(self, train: bool = False) -> None:
        self.main, self.startup = static.Program("main"), static.Program("startup")
        with static.program_guard(self.main, self.startup), unique_name.guard():
            self.x = static.data("x", [2, 3])
            self.scaled = mg.scale(self.x, 2.0)
            self.out = mg.tanh(self.scaled)
            self.loss = mg.mean(static.nn.fc(self.out, 2)) if train else mg.mean(self.out)
            if train:
                mg.optimizer.SGD(0.1).minimize(self.loss)
        self.exe = static.Executor()
        self.exe.run(self.startup)

    def run(self, fetch: Any = None, program: Any = None) -> np.ndarray:
        return self.exe.run(program or self.main, ONES, [self.out if fetch is None else fetch])[0]


def says(error: type[MinigraphError], *phrases: str) -> Any:
    return pytest.raises(error, match="(?s)" + ".*".join(phrases))


# attributes


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        lambda op: op.attrs.__setitem__("scale", 4.0), lambda op: op.attrs.update(scale=4.0),
        lambda op: op._set_attr("scale", 4), lambda op: op.set_attr("scale", 4.0),
        lambda op: setattr(op, "attrs", {"scale": 4.0}), lambda op: op.attrs.__ior__({"scale": 4.0}),
    ],
)  # fmt: skip
def test_a_program_that_ran_sees_a_changed_attribute(change: Callable[[Any], Any], compiled: bool):
    net = Net()
    ran = static.CompiledProgram(net.main) if compiled else net.main
    np.testing.assert_allclose(net.run(program=ran), np.tanh(1.0), rtol=1e-6)
    change(net.main.ops[0])
    if compiled:
        with says(ProgramError, "program main was changed after it was compiled", "make a new CompiledProgram"):
            net.run(program=ran)
        ran = static.CompiledProgram(net.main)
    np.testing.assert_allclose(net.run(program=ran), np.tanh(2.0), rtol=1e-6)


def test_a_removed_attribute_is_its_default_again():
    net = Net()
    net.run()
    del net.main.ops[0].attrs["scale"]
    np.testing.assert_allclose(net.run(), np.tanh(0.5), rtol=1e-6)


def test_minus_zero_and_true_are_changes():
    net = Net()
    op, seen = net.main.ops[0], net.main.version
    op.attrs["scale"] = 0.0
    op.attrs["scale"] = -0.0
    assert net.main.version == seen + 2 and np.signbit(net.run(net.scaled)).all()
    op.attrs["scale"] = -0.0
    assert net.main.version == seen + 2


def test_the_program_of_a_compilation_sees_changes_of_its_own():
    net = Net()
    compiled = static.CompiledProgram(net.main, static.BuildStrategy(dead_code_elimination=True))
    net.run(program=compiled)
    compiled.after.ops[0].attrs["scale"] = 4.0
    np.testing.assert_allclose(net.run(program=compiled), np.tanh(2.0), rtol=1e-6)


def test_wrong_attributes_are_refused_with_the_line_and_change_nothing():
    net = Net()
    op, before, version = net.main.ops[0], str(net.main), net.main.version
    with says(AttrError, "scale", "must be", "called at .*test_changes.py", "scale.*much"):
        op.attrs["scale"] = "much"
    with says(AttrError, "sale", "did you mean 'scale'"):
        op.attrs["sale"] = 1.0
    with says(MinigraphError, "fc_|mul|matmul|would be|inner"):
        train = Net(train=False)
        with static.program_guard(train.main):
            product = mg.matmul(train.x, train.x, transpose_y=True)
        product.block.ops[-1].attrs["trans_y"] = False
    assert str(net.main) == before and net.main.version == version


def test_attributes_stay_as_their_gradients_are():
    net = Net(train=True)
    forward = next(op for op in net.main.ops if op.attrs and any(other.forward is op for other in net.main.ops))
    name = next(name for name, value in forward.attrs.items() if isinstance(value, (bool, int)))
    with says(ProgramError, "no longer belong together", "before append_backward"):
        forward.attrs[name] = not forward.attrs[name]
    net.main.ops[0].attrs["scale"] = 3.0  # its input needs no gradient
    backward = next(op for op in net.main.ops if op.type == "reduce_mean_grad")
    with says(ProgramError, "no longer belong together"):
        backward.attrs["keepdim"] = True
    test = net.main.clone(for_test=True)
    test.ops[0].attrs["scale"] = 3.0


def in_a_block(kind: str) -> tuple[Any, Any, Any]:
    """A program that squares what a branch or loop makes of x by scale and tanh; x and the sum of the squares."""
    main = static.Program("main")
    with static.program_guard(main, static.Program()), unique_name.guard():
        x = static.data("x", [2, 3])
        x.stop_gradient = False

        def body(h: Any) -> Any:
            return mg.tanh(mg.scale(h, 2.0))

        def nested(h: Any) -> Any:
            return static.nn.cond(mg.sum(h) > -9, lambda: body(h), lambda: h)

        inside = nested if kind == "a branch in a branch" else body
        if kind == "a loop":
            count = mg.full([], 0, "int64")
            y = static.nn.while_loop(lambda i, h: i < 2, lambda i, h: [i + 1, body(h)], [count, x])[1]
        else:
            y = static.nn.cond(mg.sum(x) > -9, lambda: inside(x), lambda: x)
        loss = mg.sum(y * y)
    return main, x, loss


def operators(main: Any, type: str) -> list[Any]:
    """The operators of a type in the blocks of a program."""
    return [op for block in main.blocks[1:] for op in list(block.ops) if op.type == type]


IN_BLOCKS: dict[str, Callable[[Any], Any]] = {
    "an attribute": lambda op: op._set_attr("scale", 3.0),
    "an input": lambda op: op._rename_input(op.input("X")[0], op.output("Out")[0]),
    "an operator less": lambda op: op.block.ops.remove(op),
    "an operator more": lambda op: op.block.append_op("scale", {"X": op.output("Out")}, {"Out": op.output("Out")}, {}),
    "an operator between": lambda op: op.block._insert_op(
        1, type="scale", inputs={"X": op.output("Out")}, outputs={"Out": op.output("Out")}, attrs={"scale": 3.0}
    ),
}


@pytest.mark.parametrize("change", IN_BLOCKS)
@pytest.mark.parametrize("kind", ["a branch", "a loop", "a branch in a branch"])
def test_a_block_stays_as_its_gradient_is(kind: str, change: str):
    main, x, loss = in_a_block(kind)
    with static.program_guard(main, static.Program()):
        (grad,) = static.gradients(loss, x)
    before, exe = str(main), static.Executor()
    value = exe.run(main, ONES, [loss, grad])
    first, *copies = (op for op in operators(main, "scale") if op.attrs["scale"] == 2.0)
    with says(ProgramError, "is a block of (cond|while_loop), whose gradient", "before append_backward"):
        IN_BLOCKS[change](first)
    for op in copies:  # of the gradient's block
        with pytest.raises(ProgramError):
            IN_BLOCKS[change](op)
    assert str(main) == before
    assert [a.tobytes() for a in exe.run(main, ONES, [loss, grad])] == [a.tobytes() for a in value]


@pytest.mark.parametrize("kind", ["a branch", "a loop", "a branch in a branch"])
def test_a_program_that_ran_sees_a_changed_block(kind: str):
    main, x, loss = in_a_block(kind)
    exe = static.Executor()
    exe.run(main, ONES, [loss])
    (scaled,) = (op for op in operators(main, "scale") if op.attrs["scale"] == 2.0)
    scaled.attrs["scale"] = 3.0
    once = np.tanh(1.5)
    expected = np.tanh(3 * once) if kind == "a loop" else once
    np.testing.assert_allclose(exe.run(main, ONES, [loss])[0], 6 * expected**2, rtol=1e-6)
    with static.program_guard(main, static.Program()):
        (grad,) = static.gradients(loss, x)
    slope = 2 * expected * (1 - expected**2) * 3 * (3 * (1 - once**2) if kind == "a loop" else 1)
    np.testing.assert_allclose(exe.run(main, ONES, [grad])[0], np.full((2, 3), slope), rtol=1e-5)


def test_a_learning_rate_that_is_set_reaches_a_startup_program_that_ran():
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        x = static.data("x", [2, 3])
        sgd = mg.optimizer.SGD(0.1)
        sgd.minimize(mg.mean(static.nn.fc(x, 2)))
    exe, scope = static.Executor(), static.Scope()
    exe.run(startup, scope=scope)
    sgd.set_lr(0.5)
    exe.run(startup, scope=scope)
    rate = next(v.name for v in main.list_vars() if "learning_rate" in v.name)
    assert scope.read(rate) == np.float32(0.5)


# operators and variables


def test_a_program_that_ran_sees_removed_and_inserted_operators():
    net = Net()
    net.run()
    tanh = net.main.ops.pop(1)
    with says(FeedError, "has no value: it is not fed and no operator that runs before writes it"):
        net.run()
    net.main.ops.insert(1, tanh)
    np.testing.assert_allclose(net.run(), np.tanh(1.0), rtol=1e-6)
    net.main.global_block()._insert_op(1, type="scale", inputs={"X": net.scaled}, outputs={"Out": net.scaled},
                                       attrs={"scale": 3.0})  # fmt: skip
    np.testing.assert_allclose(net.run(), np.tanh(3.0), rtol=1e-6)
    net.main.global_block()._remove_op(1)
    np.testing.assert_allclose(net.run(), np.tanh(1.0), rtol=1e-6)
    net.main.global_block().ops = net.main.ops[:2]
    with says(FeedError, "has no value"):
        net.run(net.loss)


def test_lists_of_operators_stay_whole():
    net, other = Net(train=True), Net()
    ops, before = net.main.ops, str(net.main)
    for change, phrase in (
        (lambda: ops.append(other.main.ops[0]), "scale belongs to another program"),
        (lambda: ops.append(ops[0]), "stands twice"),
        (lambda: ops.insert(0, 3), "3 is no Operator"),
        (lambda: ops.pop(0), "is a gradient of scale|is a gradient of tanh|which would be removed"),
        (lambda: ops.__imul__(2), "stands twice"),
    ):
        if phrase.startswith("is a gradient") and not any(op.forward is ops[0] for op in ops):
            continue
        with says(ProgramError, phrase):
            change()
    assert str(net.main) == before
    del ops[3:]
    assert parse(str(net.main)).ops[-1].type == ops[-1].type


def test_inputs_and_outputs_change_by_renaming_only():
    net = Net()
    tanh = net.main.ops[1]
    net.run()
    for change in (
        lambda: tanh.inputs.__setitem__("X", [net.x]), lambda: tanh.inputs["X"].__setitem__(0, net.x),
        lambda: tanh.outputs["Out"].append(net.x), lambda: setattr(tanh, "inputs", {}),
    ):  # fmt: skip
        with says(ProgramError, "cannot be"):
            change()
    tanh._rename_input(net.scaled.name, "x")
    np.testing.assert_allclose(net.run(), np.tanh(0.5), rtol=1e-6)
    with says(ProgramError, "has no 'y' among its inputs: x"):
        tanh._rename_input("y", "x")
    with says(MinigraphError, "does not fit"):
        tanh._rename_output(net.out.name, net.loss.name)
    tanh._rename_output(net.out.name, net.scaled.name)
    with says(FeedError, "has no value"):  # the mean reads what nobody writes any more
        net.run(net.scaled)
    net.main.ops.pop()
    np.testing.assert_allclose(net.run(net.scaled), np.tanh(0.5), rtol=1e-6)


@pytest.mark.parametrize("name", ["type", "inputs", "opdef", "input_vars"])
def test_what_an_operator_is_stays(name):
    op = Net().main.ops[0]
    with says(ProgramError, f"{name} of an operator cannot be set"):
        setattr(op, name, getattr(op, name))


def test_a_list_that_was_returned_is_the_users():
    x = static.data("x", [4, 3])
    parts = mg.split(x, 2)
    parts.pop()
    assert len(static.default_main_program().ops[-1].output_arg_names) == 2


def test_variables_that_are_used_stay():
    net = Net()
    net.run()
    block = net.main.global_block()
    with says(ProgramError, "uses x.*cannot be removed"):
        del block.vars["x"]
    with says(ProgramError, "is no variable of this block"):
        block.vars["y"] = Net().x
    with says(ProgramError, "vars of a block cannot be set"):
        block.vars = {}
    version = net.main.version
    unused = block.create_var("unused", [2], "float32")
    block.vars.pop("unused")
    block.vars["unused"] = unused
    net.x.is_data = False
    assert net.main.version == version + 4


# variables of other programs


def test_a_variable_has_a_type_and_nothing_else():
    net = Net()
    before = net.main.version, str(net.main)
    for wrong in (None, "float32", (3, 4)):
        with pytest.raises(DTypeError, match="must be a TensorType"):
            net.loss.type = wrong
    assert (net.main.version, str(net.main)) == before


def test_variables_of_other_programs_are_no_targets():
    net, other = Net(train=True), Net(train=True)
    for program in (net.main, static.CompiledProgram(net.main)):
        net.run(program=program)
        with says(FetchError, "is a variable of program main, in program main another one has its", "pass the name"):
            net.run(other.out, program)
        np.testing.assert_array_equal(net.run(other.out.name, program), net.run(program=program))
    with says(FeedError, "feed 'x' is a variable of program"):
        net.exe.run(net.main, {other.x: ONES["x"]}, [net.out])
    with says(ProgramError, "belongs to another program"):
        static.gradients(net.out, other.x)
    with says(ProgramError, "belongs to another program"):
        static.gradients(net.out, net.x, other.out)
    with says(ProgramError, "no_grad_set: "):
        static.append_backward(Net(train=True).loss, no_grad_set={net.scaled})
    with says(FetchError, "fetch target"):
        static.CompiledProgram(net.main).memory_report(fetch_list=[other.out], place=mg.CPUPlace())
    for wrong in ([other.out], "nobody", ["nobody"], 5):
        with says(FetchError, "fetch"):
            static.CompiledProgram(net.main).program_for(wrong)
    kept = static.CompiledProgram(net.main).program_for(net.out)
    assert net.out.name in kept.vars and str(kept) == str(static.CompiledProgram(net.main).program_for(net.out.name))


def test_variables_of_clones_originals_and_rewritings_are_targets():
    net = Net(train=True)
    test = net.main.clone(for_test=True)
    again = test.clone()
    expected = net.run(net.out, test)
    rewritten = static.CompiledProgram(again).program_for([net.out.name])
    for program in (test, again, static.CompiledProgram(test), rewritten):
        np.testing.assert_array_equal(net.run(net.out, program), expected)
        np.testing.assert_array_equal(net.exe.run(program, {net.x: ONES["x"]}, net.out)[0], expected)
    np.testing.assert_array_equal(net.run(again.vars[net.out.name], net.main), expected)
    np.testing.assert_array_equal(net.run(net.out, copy.deepcopy(test)), expected)
    text = parse(str(test))
    with says(FetchError, "another one has its name"):
        net.run(net.out, text)
    np.testing.assert_array_equal(net.run(net.out.name, text), expected)
    weight = net.main.all_parameters()[0]
    net.exe.run(net.startup, fetch_list=[weight])  # a value of the Scope, which both know by its name


def test_variables_that_clones_got_afterwards_are_their_own():
    net = Net()
    clones = [net.main.clone() for _ in range(2)]
    made = []
    for clone, function in zip(clones, (mg.exp, mg.tanh), strict=True):
        with unique_name.guard("late_"):
            made.append(function(clone.vars["x"], name="late"))
    assert made[0].name == made[1].name
    with says(FetchError, "another one has its name"):
        net.run(made[0], clones[1])


# copies


def test_deepcopy_is_clone():
    net = Net(train=True)
    for made in (copy.deepcopy(net.main), copy.copy(net.main), copy.deepcopy({"p": net.main})["p"]):
        assert made is not net.main and str(made) == str(net.main) and all(op.block.program is made for op in made.ops)
        made.ops.clear()
    assert net.main.ops
    strategy = static.BuildStrategy.all(fuse_gemm_epilogue=False)
    static.CompiledProgram(net.main, strategy).program_for()
    again = copy.deepcopy(strategy)
    assert again == strategy and not again.fuse_gemm_epilogue
    again.fuse_gemm_epilogue = True  # it was not compiled yet


@pytest.mark.parametrize(
    "what",
    [
        lambda net: net.main, lambda net: net.x, lambda net: net.main.all_parameters()[0], lambda net: net.main.ops[0],
        lambda net: net.main.global_block(), lambda net: static.global_scope(), lambda net: net.exe,
        lambda net: static.global_scope().find_var(net.main.all_parameters()[0].name).get_tensor(),
        lambda net: static.CompiledProgram(net.main), lambda net: static.BuildStrategy(),
    ],
)  # fmt: skip
def test_nothing_is_pickled(what: Callable[[Net], Any]):
    thing = what(Net(train=True))
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(ProgramError, match=r"(?s)cannot be pickled.*hint: "):
            pickle.dumps({"a": [thing]}, protocol)
    if not isinstance(thing, (static.Program, static.BuildStrategy)):
        for function in (copy.copy, copy.deepcopy):
            with pytest.raises(ProgramError, match=r"(?s)cannot be copied.*hint: "):
                function(thing)


# paths


@pytest.mark.parametrize(
    "path",
    [
        "{tmp}/file/graph.dot", "{tmp}/file/x", "{tmp}/a\0b", "{tmp}/\ud800.dot", "/proc/none/g.dot",
        "{tmp}/" + "n" * 300 + ".dot",
    ],
)  # fmt: skip
def test_a_dot_path_that_cannot_be_written_is_named(path: str, tmp_path: Any):
    (tmp_path / "file").write_text("in the way")
    net = Net()
    strategy = static.BuildStrategy(debug_graphviz_path=path.format(tmp=tmp_path))
    with says(ProgramError, "debug_graphviz_path", "cannot be written: ", "hint: a folder"):
        net.run(program=static.CompiledProgram(net.main, strategy))


def test_a_dot_file_holds_texts_that_no_encoding_has(tmp_path: Any):
    net = Net()
    with static.program_guard(net.main):
        static.Print(net.out, message="\ud800")
    strategy = static.BuildStrategy(debug_graphviz_path=str(tmp_path))
    static.CompiledProgram(net.main, strategy).program_for()
    assert (tmp_path / "graph_before.dot").exists()
