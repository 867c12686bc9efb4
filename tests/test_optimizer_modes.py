"""Updates of many tensors on a GPU's plan: in every mode the bits of the CPU, for every optimizer and level.

Plans, arenas and tables are the real ones; kernels run on a CPU (gpu_stub).
"""

from __future__ import annotations

import numpy as np
import pytest
from cuda_host import COMPILER
from gpu_stub import StubRuntime

import minigraph.optimizer as opt
from minigraph import unique_name
from minigraph.builder import Builder
from minigraph.executor import Executor
from minigraph.nn import clip
from minigraph.plan_cuda import CudaPlan
from minigraph.program import Program, program_guard
from minigraph.scope import Scope
from minigraph.static import BuildStrategy, CompiledProgram

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on this machine")

MODES = ("table", "struct4k", "struct32k", "arena", "unified")
OPTIMIZERS = {
    "SGD": lambda: opt.SGD(0.1), "Momentum": lambda: opt.Momentum(0.1, use_nesterov=True),
    "Adam": lambda: opt.Adam(0.1, amsgrad=True), "AdamW": lambda: opt.AdamW(0.1, weight_decay=0.1),
    "Adamax": lambda: opt.Adamax(0.1), "Adagrad": lambda: opt.Adagrad(0.1), "Adadelta": lambda: opt.Adadelta(0.1),
    "RMSProp": lambda: opt.RMSProp(0.1, centered=True, momentum=0.5), "Lion": lambda: opt.Lion(0.1, weight_decay=0.1),
    "Lamb": lambda: opt.Lamb(0.1, lamb_weight_decay=0.1),
    "clipped": lambda: opt.AdamW(0.1, grad_clip=clip.ClipGradByValue(0.4)),
}  # fmt: skip
SHAPES = [(2, 3), (), (0, 4), (1,), (1025,), (37, 3)]
STEPS = 2


def net(optimizer, shapes=SHAPES, dtype="float32", found=None):
    """sum of parameter * gradient, so that each parameter's gradient is fed; returns (main, startup, feed)."""
    main, startup, feed = Program("main"), Program("startup"), {}
    rng = np.random.default_rng(3)
    with unique_name.guard(), program_guard(main, startup):
        block = main.global_block()
        g, g0 = Builder(block), Builder(startup.global_block())
        total = []
        for i, shape in enumerate(shapes):
            own, p = (b.create_parameter(f"p{i}", shape, dtype) for b in (startup.global_block(), block))
            values = rng.normal(size=shape)
            g0.assign_value(shape=shape, dtype=dtype, values=values.ravel().tolist(), out={"Out": own})
            x = block.create_var(f"x{i}", shape, dtype, is_data=True, stop_gradient=True)
            feed[x.name] = rng.normal(size=shape).astype(dtype)
            total.append(g.reduce_sum(g.elementwise_mul(p, x)))
        if found is not None:
            flag = block.create_var("found", (1,), "bool", is_data=True, stop_gradient=True)
            optimizer._set_auxiliary_var("found_inf", flag)
            feed["found"] = np.array([found])
        optimizer.minimize(g.sum(total), startup)
    return main, startup, feed


def on_cpu(main, startup, feed, steps=STEPS):
    exe, scope = Executor(), Scope()
    exe.run(startup, scope=scope)
    for _ in range(steps):
        exe.run(main, feed, [], scope=scope)
    return scope


def on_stub(main, startup, feed, mode="table", level="fuse_all_optimizer_ops", steps=STEPS, scope=None):
    compiled = CompiledProgram(main, BuildStrategy(**{level: True}, multi_tensor_mode=mode) if level else None)
    program, types = compiled.program_for(()), {n: main.vars[n].type for n in feed}
    plan = CudaPlan(program, types, (), False, 0, StubRuntime(), False, compiled.options)
    if scope is None:
        scope = Scope()
        Executor().run(startup, scope=scope)
    for _ in range(steps):
        plan.run(feed, scope)
    return scope, plan


def check_equal(found, expected, exact=True):
    for name in expected.list_names():
        a, b = found.read(name), expected.read(name)
        if exact:
            np.testing.assert_array_equal(a, b, err_msg=name)
        else:
            np.testing.assert_allclose(a.astype(float), b.astype(float), rtol=2e-6, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("level", ["fuse_all_optimizer_ops", "foreach_optimizer_ops", None])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_level_has_the_bits_of_the_cpu(name, level):
    made = net(OPTIMIZERS[name]())
    found, _ = on_stub(*made, level=level)
    check_equal(found, on_cpu(*made), exact=name != "Lamb")  # whose norms are summed in another order


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["SGD", "AdamW", "Lamb"])
def test_every_mode_has_the_bits_of_the_cpu(name, mode):
    made = net(OPTIMIZERS[name]())
    found, plan = on_stub(*made, mode=mode)
    check_equal(found, on_cpu(*made), exact=name != "Lamb")
    assert not plan.bound.binder.notes
