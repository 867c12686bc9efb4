"""Updates of many tensors by a GPU's plan: at every level and in every mode the bits of the CPU.

Plans, arenas and tables are the real ones; kernels run on a CPU (gpu_stub).
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import minigraph.optimizer as opt
from minigraph.errors import AttrError, KernelError
from minigraph.kernels.cuda.optimizer import update
from minigraph.kernels.cuda.record import tensors
from minigraph.kernels.cuda.record.binder import Binder, Device
from minigraph.kernels.cuda.record.buffer import Buffer, Words
from minigraph.kernels.cuda.record.calls import Launch
from minigraph.kernels.cuda.record.compile import compile_source
from minigraph.kernels.updates import slots_of
from minigraph.opdef import get_op
from minigraph.program import Program, program_guard
from minigraph.runtime.cuda.plan import CudaPlan
from minigraph.static import BuildStrategy, CompiledProgram
from minigraph.types import bfloat16, bool_, float32, float64
from tests.support.cuda_host import COMPILER
from tests.support.gpu_stub import Managed, StubRuntime
from tests.support.grades import checkered, graded
from tests.support.update_nets import (
    LEVELS,
    MODES,
    OPTIMIZERS,
    Clip,
    difference,
    net,
    on_cpu,
    started,
    steps_feed,
)
from tests.support.written_rules import lion, momentum_by_lists

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on this machine")


def plan_of(made, mode="auto", level="fuse_all_optimizer_ops", fetches=()):
    compiled = CompiledProgram(made[0], BuildStrategy(multi_tensor_mode=mode, **({level: True} if level else {})))
    program = compiled.program_for(fetches)
    types = {n: made[0].vars[n].type for n in steps_feed(made)}
    return CudaPlan(program, types, fetches, False, 0, StubRuntime(), False, compiled.options)


def on_stub(made, mode="auto", level="fuse_all_optimizer_ops", steps=2):
    plan, scope = plan_of(made, mode, level), started(made)
    for _ in range(steps):
        plan.run(steps_feed(made), scope)
    return scope, plan


@pytest.mark.parametrize(("name", "level"), checkered(OPTIMIZERS, LEVELS))
def test_every_level_has_the_bits_of_the_cpu(name, level):
    made = net(OPTIMIZERS[name]())
    where, apart = difference(on_stub(made, level=level)[0], on_cpu(made))
    assert apart <= (1e-6 if name == "Lamb" else 0), where  # whose norms are summed in another order


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["SGD", "AdamW", "Lamb"])
def test_every_mode_has_the_bits_of_the_cpu(name, mode):
    made = net(OPTIMIZERS[name]())
    scope, plan = on_stub(made, mode)
    where, apart = difference(scope, on_cpu(made))
    assert apart <= (1e-6 if name == "Lamb" else 0), where
    assert not plan.bound.binder.notes


@pytest.mark.parametrize(
    ("dtype", "name", "level"), checkered(["float16", "bfloat16"], ["Momentum", "AdamW", "Lamb"], LEVELS)
)
def test_float32_copies_of_16_bit_parameters(name, level, dtype):
    made = net(OPTIMIZERS[name](multi_precision=True), [(3, 5), (1500,)], dtype)
    found, expected = on_stub(made, level=level)[0], on_cpu(made)
    assert sum("fp32_master" in n for n in expected.list_names()) == 2
    where, apart = difference(found, expected)
    assert apart <= (2e-2 if name == "Lamb" else 0), where
    for i in range(2):
        copy = found.read(f"p{i}_fp32_master_0")
        np.testing.assert_array_equal(found.read(f"p{i}"), copy.astype(found.read(f"p{i}").dtype))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["Momentum", "AdamW", "RMSProp", "Lamb"])
def test_a_step_that_found_inf_changes_nothing(name, level):
    made = net(OPTIMIZERS[name](), found=True)
    before = started(made)
    assert difference(on_stub(made, level=level)[0], before) == ("", 0.0)
    assert difference(on_cpu(made), before) == ("", 0.0)
    made[2]["found"][:] = False
    after, apart = on_stub(made, level=level)[0], difference(on_cpu(made), before)[1]
    assert apart > 0
    where, apart = difference(after, on_cpu(made))
    assert apart <= (1e-6 if name == "Lamb" else 0), where


@pytest.mark.parametrize("mode", MODES)
def test_the_clipping_factor_joins(mode):
    made = net(opt.AdamW(0.1, grad_clip=Clip(0.1)))
    scope, plan = on_stub(made, mode)
    where, apart = difference(scope, on_cpu(made))
    assert apart <= 1e-6, where  # the norm is summed in another order
    calls = [c.function for c in plan.bound.binder.calls if isinstance(c, Launch)]
    assert calls.count("update") == 1 and calls.count("squares") == 1


def updates_of(plan):
    return [c for c in plan.bound.binder.calls if isinstance(c, Launch) and c.function == "update"]


@pytest.mark.parametrize("name", ["SGD", "AdamW", "Lamb"])
def test_an_update_in_groups_has_the_bits_of_the_cpu(name, monkeypatch):
    monkeypatch.setattr(update, "GROUP", 100)
    made = net(OPTIMIZERS[name]())
    scope, plan = on_stub(made)
    assert len(updates_of(plan)) == (2 if name != "Lamb" else 3)  # Lamb's second pass is whole
    where, apart = difference(scope, on_cpu(made))
    assert apart <= (1e-6 if name == "Lamb" else 0), where


def test_groups_are_for_gradients_that_are_not_there_from_the_start(monkeypatch):
    monkeypatch.setattr(update, "GROUP", 100)
    assert len(updates_of(plan_of(net(opt.AdamW(0.1, grad_clip=Clip(0.1)))))) == 1  # one factor needs all of them
    monkeypatch.setattr(update, "GROUPED", 1000)
    assert len(updates_of(plan_of(net(opt.AdamW(0.1))))) == 1


@pytest.mark.parametrize("sizes", [[], [5], [update.GROUP] * 3, [update.GROUP, 3, 5, update.GROUP], [0, 2, 1 << 20, 7]])
def test_groups_hold_each_tensor_once_the_last_ones_first(sizes):
    groups = update.ready_first(sizes)
    assert [i for group in reversed(groups) for i in group] == list(range(len(sizes)))
    if len(groups) > 1:
        assert all(sum(sizes[i] for i in group) >= update.GROUP for group in groups)


@cache
def many(count):
    """A net of so many tensors and the Scope after a step on a CPU, for all modes."""
    made = net(opt.SGD(0.1), [(2, 3)] * count)
    return made, on_cpu(made, steps=1)


@pytest.mark.parametrize(
    ("mode", "count"),
    graded(
        [*((mode, 424) for mode in MODES), ("table", 1000), ("struct4k", 1000)],
        now=lambda mode, count: count == 424 and mode in ("table", "struct4k", "struct32k"),
    ),
)
def test_many_tensors(mode, count):
    """424 is where a struct by value with one address for each overflowed in the lecture."""
    made, expected = many(count)
    scope, plan = on_stub(made, mode, steps=1)
    assert difference(scope, expected) == ("", 0.0)
    updates = [c for c in plan.bound.binder.calls if isinstance(c, Launch) and c.function == "update"]
    width = {"struct4k": tensors.struct_width(2, 4096), "struct32k": tensors.struct_width(2, 32764)}.get(mode, count)
    assert len(updates) == -(-count // width)
    assert all(sum(a.nbytes for a in c.args if isinstance(a, Words)) <= 32764 for c in updates)


def test_a_struct_beyond_the_limit_is_refused():
    column = [Buffer((6,), float32, ptr=0) for _ in range(424)]
    lists = tensors.Tensors([column] * 4, [6] * 424)
    with pytest.raises(KernelError, match="424 tensors of 4 addresses do not fit into a struct of 90"):
        tensors.packed_struct(lists, range(424), np.ones(424, np.int64), 90, 0)
    words = tensors.packed_struct(lists, range(424), np.ones(424, np.int64), 424, 0)
    old = Binder(Device(arguments=4096))
    old.begin(0)
    assert tensors.chosen_mode(old, 4, 4) == "table"
    assert [tensors.chosen_mode(Binder(), n, 4) for n in (671, 672)] == ["struct32k", "table"]
    with pytest.raises(KernelError, match=r"update has 20376 bytes of arguments, this device takes 4096"):
        old.launch_source("", "update", 1, 256, words)
    with pytest.raises(KernelError, match=r"CUDA 12.1"):
        tensors.launch_over(old, "optimizer/update.cu", "update", lists, "struct32k", 1024, defines={})


@pytest.mark.parametrize(("width", "fits"), [(424, True), (680, True), (700, False)])
def test_the_compiler_refuses_it_too(width, fits):
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC's Python bindings are not installed")
    types = dict.fromkeys("TCDLR", "float")
    sizes = {"COLUMNS": 4, "CHUNK": 1024, "WAY": 1, "WIDTH": width}
    source = tensors.tensor_source("optimizer/norms.cu", {**types, **sizes})
    source += 'extern "C" __global__ void all(TENSORS, i64* out) { FIND *out = tensor + start + left + ADDRESS(3); }'
    if fits:
        assert compile_source(source).spilled_bytes == 0
    else:
        with pytest.raises(RuntimeError, match="32764"):
            compile_source(source)


@pytest.mark.parametrize(("name", "mode", "arch"), checkered(["adamw", "lamb"], MODES, ["sm_80", "sm_90a"]))
def test_large_tensors_compile_without_spills(name, mode, arch):
    """Also with float32 copies, a flag and a factor."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC's Python bindings are not installed")
    slots, one = slots_of(name), {"LearningRate": float32, "SkipUpdate": bool_, "GradScale": float32}
    for dtype in (float32, bfloat16):
        binder = Binder(Device(arch), multi_tensor=mode)
        binder.begin(0)
        ins = {}
        for slot in slots.inputs:
            own = float64 if slot in slots.powers else dtype if slot in ("Param", "Grad") else float32
            size = 1 if slot in slots.powers else 1 << 20
            ins[slot] = Buffer((1,), one[slot]) if slot in one else [Buffer((size,), own) for _ in range(3)]
        ins |= {slot: None for slot in slots.extra} | ({"MasterParam": None} if dtype == float32 else {})
        outs = {f"{slot}Out": ins[slot] for slot in slots.updated}
        attrs = get_op(f"fused_{name}").bind_attrs({"regularization_coeff": 0.1 if dtype == float32 else 0.0})
        getattr(update, f"fused_{name}")(binder, ins, outs, attrs)
        for call in binder.calls:
            assert compile_source(call.source, arch).spilled_bytes == 0, call.function


def test_arenas_are_made_once_and_shared_by_plans():
    made = net(opt.AdamW(0.1))
    first, second, scope = plan_of(made, "arena"), plan_of(made, "arena"), started(made)
    first.run(steps_feed(made), scope)
    arrays = dict(scope.arrays)
    second.run(steps_feed(made), scope)
    assert all(scope.arrays[n] is a for n, a in arrays.items())
    starts = {c: scope.arrays[f"{c}"].data.ptr for c in ("p0", "p3", "p0_moment1_0", "p3_moment1_0")}
    assert starts["p3"] - starts["p0"] == starts["p3_moment1_0"] - starts["p0_moment1_0"]
    scope.find_var("p0").get_tensor().set(np.zeros((2, 3), np.float32))  # an array of its own again
    first.run(steps_feed(made), scope)
    assert scope.arrays["p3"].data.ptr - scope.arrays["p0"].data.ptr == starts["p3"] - starts["p0"]


def test_gradients_that_share_memory_go_through_a_table():
    main, startup = Program("main"), Program("startup")
    with program_guard(main, startup):
        block = main.global_block()
        params = [block.create_parameter(n, (3,), "float32") for n in "ab"]
        x = block.create_var("x", (3,), "float32", is_data=True, stop_gradient=True)
        opt.SGD(0.5).apply_gradients([(p, x) for p in params])
    made = main, startup, {"x": np.ones(3, np.float32)}
    plan, scope = plan_of(made, "arena"), started(made)
    scope.arrays.update(a=np.zeros(3, np.float32), b=np.ones(3, np.float32))
    plan.run(made[2], scope)
    assert scope.read("a").tolist() == [-0.5] * 3 and scope.read("b").tolist() == [0.5] * 3
    assert [text for _, text in plan.program.notes] == [
        "a table of addresses: these tensors cannot be brought together in arenas"
    ]


def test_states_are_managed_in_unified_mode_only():
    made = net(opt.AdamW(0.1))
    scope, _ = on_stub(made, "unified")
    managed = {n for n, a in scope.arrays.items() if isinstance(a, Managed)}
    assert managed == {f"p{i}_moment{m}_0" for i in range(6) for m in (1, 2)}


def test_modes_are_checked():
    with pytest.raises(AttrError, match="must be auto, table, struct4k, struct32k, arena, unified or paged, is 'x'"):
        BuildStrategy(multi_tensor_mode="x")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rule", [lion, momentum_by_lists], ids=lambda rule: rule.__name__)
def test_a_rule_that_a_user_writes_agrees_with_the_cpu_in_every_mode(rule, mode):
    made = rule([(1,), (7,), (0, 3), (64, 5), (3000,)])
    compiled = CompiledProgram(made.program, BuildStrategy(multi_tensor_mode=mode, fuse_foreach=True))
    plan = CudaPlan(compiled.program_for(()), {}, (), False, 0, StubRuntime(), False, compiled.options)
    scope = made.scope()
    for _ in range(3):
        plan.run({}, scope)
    for name, expected in made.run().items():
        np.testing.assert_allclose(scope.read(name), expected, rtol=0, atol=1e-14, err_msg=name)
