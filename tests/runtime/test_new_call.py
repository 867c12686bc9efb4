"""A kind of call that the package does not know: it is bound, ordered, repeated, captured and run as any other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph.kernels.cuda.record.binder import Binder
from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.kernels.cuda.record.call import Call, Primitives, Run, every_call, facts
from minigraph.opdef import OPS, op
from minigraph.program.builder import Builder
from tests.support import cuda_host, gpu_stub

pytestmark = pytest.mark.skipif(cuda_host.COMPILER is None, reason="kernels on a CPU need g++")

ADD = """
extern "C" __global__ void add(float* out, const float* x, long long count)
{
    for (long long i = threadIdx.x; i < count; i += blockDim.x)
        out[i] += x[i];
}
"""
RANKS, LAYERS = 3, 4


@dataclass(slots=True)
class AllReduce(Call):
    """The sum of what all ranks have; here each of them has the same."""

    out: Buffer
    given: list[Buffer]
    ranks: int

    def bound(self, runtime: Primitives) -> Run:
        x, out = self.given[0], self.out
        args = out.address, x.address, np.int64(x.size)
        first = runtime.copy(out.address, x.address, x.nbytes)
        others = [runtime.kernel(ADD, "add", (1, 1, 1), (32, 1, 1), args) for _ in range(self.ranks - 1)]

        def run() -> None:
            for one in (first, *others):
                one()

        return run


bound_by_itself = []


def all_reduce(binder: Binder, ins: Any, outs: Any, attrs: Any) -> None:
    """What an operator's GPU form records: one way, or one of two."""
    bound_by_itself.append(ins["X"])

    def collective() -> None:
        binder.calls.append(AllReduce(outs["Out"], [ins["X"]], RANKS))

    if attrs["chosen"]:
        binder.choose({"collective": collective, "copy": lambda: binder.copy(outs["Out"], ins["X"])})
    else:
        collective()


@pytest.fixture
def stub(monkeypatch):
    """A GPU, and an operator whose GPU form records the new kind."""
    @op(traits=frozenset())
    def all_reduce_of_this_test(X, *, chosen: bool = False):
        """The sum over the ranks."""
        return X * np.float32(RANKS)

    monkeypatch.setitem(OPS["all_reduce_of_this_test"].__dict__, "gpu_bind", all_reduce)
    bound_by_itself.clear()
    yield gpu_stub.installed(monkeypatch)
    del OPS["all_reduce_of_this_test"]


def program(chosen: bool) -> tuple[Any, Any]:
    """Layers of one shape, each of a collective and of kernels before and after it."""
    main = mg.static.Program()
    with mg.static.program_guard(main, mg.static.Program()):
        h = mg.static.data("x", [4, 8])
        for _ in range(LAYERS):
            reduced = Builder(main.global_block()).all_reduce_of_this_test(h * 0.5, chosen=chosen)
            h = mg.tanh(reduced) + h
    return main, h


@pytest.mark.parametrize("chosen", [False, True])
def test_a_new_kind_of_call_is_one_class(stub, rng, chosen):
    main, out = program(chosen)
    x = rng.normal(size=(4, 8)).astype(np.float32)
    wanted = x
    for _ in range(LAYERS):
        wanted = np.tanh(wanted * np.float32(0.5) * RANKS) + wanted
    exe, scope = mg.static.Executor(mg.CUDAPlace(0)), mg.static.Scope()
    for _ in range(3):  # call by call, captured, the graph again
        (found,) = exe.run(main, feed={"x": x}, fetch_list=[out], scope=scope)
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert len(stub.captures) == 1, "the second run captures"
    captured = [one.call for segment in stub.captures[0] for one in segment.calls]
    collectives = [call for call in captured if isinstance(call, AllReduce)]
    assert len(collectives) == LAYERS
    assert len(bound_by_itself) == 1, "layers like the first one have copies of its calls"
    assert len({id(call.given[0]) for call in collectives}) > 1, "each with buffers of its own"


def test_its_answers_follow_from_its_fields():
    x, out, scratch = (Buffer((4, 8), np.dtype("float32"), ptr=n << 20) for n in (1, 2, 3))
    shown = x.view((8,), offset=64)
    call = AllReduce(out, [x, shown], RANKS)
    assert call.buffers() == [out, x, shown]
    assert list(every_call([call])) == [call] == call.opened()
    twin = call.moved({id(x): scratch, id(out): out})
    assert (twin.out, twin.given[0], twin.given[1].address, twin.ranks) == (out, scratch, scratch.address + 64, RANKS)
    moved = call.moved({id(x): Buffer((4, 8), np.dtype("float32"), ptr=5 << 20), id(out): out})
    assert facts(call) == facts(moved), "no address is part of them"
    assert facts(call) != facts(AllReduce(out, [x, shown], RANKS + 1))
