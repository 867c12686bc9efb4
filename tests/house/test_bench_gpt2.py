"""bench gpu_gpt2 on the stub of a GPU: every line but the peers' runs, and one arm costs no other."""

from __future__ import annotations

import json
import signal
from types import SimpleNamespace

import numpy as np
import pytest

import minigraph as mg
from bench import gpt2, gpt2_profile, gpu_gpt2, gpu_gpt2_loss, harness
from minigraph.kernels.cuda.record.binder import Device
from minigraph.types import as_dtype
from tests.support import gpu_stub

pytestmark = pytest.mark.skipif(gpu_stub.cuda_host.COMPILER is None, reason="kernels on a CPU need g++")
TINY, ONE_LAYER = (gpt2.Network(layers, 16, 2, 2, block=8, words=24) for layers in (2, 1))


class Card:
    """What the command asks of gpu_timing.Gpu."""

    copied = (np.zeros(8, np.uint8),)

    def facts(self):
        return {"name": "stub"}

    def copy(self):
        """Nothing is moved."""

    def milliseconds(self, calls, repeats):
        return 1e-5


def broken(*_, **__):
    raise RuntimeError("no such mode")


@pytest.fixture
def stub(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu_gpt2, "Gpu", Card)
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    monkeypatch.setattr(gpu_gpt2, "SIZES", {"tiny": ("a tiny one", ONE_LAYER)})
    monkeypatch.setattr(gpu_gpt2, "ceilings", lambda arm, gpu: gpt2_profile.ceilings(arm, gpu, n=256))
    monkeypatch.setattr(gpu_gpt2, "first_steps", lambda peers: [("minigraph", 1.5), ("jax", "no such module")])
    monkeypatch.setattr(gpu_gpt2, "Torch", broken)
    monkeypatch.setattr(gpu_gpt2, "TURN_MS", 0.1)
    monkeypatch.setattr("bench.turns.REST", 0.0)
    monkeypatch.setattr("bench.turns.LONG", 0.0)
    made = gpu_stub.installed(monkeypatch)
    monkeypatch.setattr(made, "device", Device(multiprocessors=1, arch="sm_80"))  # no tensor maps of a driver
    yield made
    mg.set_default_dtype("float32")
    mg.cuda.set_float32_matmul_precision("highest")


def test_the_command_from_its_first_line_to_its_last(stub, tmp_path, capsys):
    gpu_gpt2.BENCH.run(["torch"], 2, "python -m bench gpu_gpt2")
    report = json.loads((tmp_path / "gpu_gpt2.json").read_text())
    (row,) = report["rows"]
    assert set(row["milliseconds"]) == {"minigraph", "minigraph, recompute"}
    assert row["failed"] == {f"torch {m}": "RuntimeError: no such mode" for m in ("compile", "reduce-overhead")}
    whole, again = (row["losses"][t] for t in ("minigraph", "minigraph, recompute"))
    assert whole == again and 3.0 < whole[0] < 3.4, "ln 24 is 3.18"
    assert set(row["peak_mib"]) == set(row["tokens_per_second"]) == set(row["milliseconds"])
    profile = row["profile"]
    assert set(profile["classes"]) == set(gpt2_profile.CLASSES)
    assert all(facts["calls"] and facts["floor_ms"] > 0 for facts in profile["classes"].values())
    assert sum(f["calls"] for f in profile["classes"].values()) == sum(n for n, _ in profile["calls"].values())
    printed = capsys.readouterr().out
    assert "first step, minigraph            1.50 s" in printed
    assert "FAILED torch compile: RuntimeError: no such mode" in printed


def test_the_loss_in_16_bits_stays_near_that_in_float32(stub, monkeypatch, tmp_path):
    network = gpt2.Network(1, 16, 2, 2, block=8, words=256)
    for name, value in {"NETWORK": network, "STEPS": 4, "MEAN": 2, "Gpu": Card}.items():
        monkeypatch.setattr(gpu_gpt2_loss, name, value)
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    gpu_gpt2_loss.BENCH.run([], 1, "python -m bench gpu_gpt2_loss")
    report = json.loads((tmp_path / "gpu_gpt2_loss.json").read_text())
    assert report["failed"] == {}
    assert [len(curve) for curve in report["losses"].values()] == [4, 4, 4]
    assert set(report["differences"]) == {"bfloat16", "float16", gpu_gpt2_loss.LATER}
    assert 0 < max(report["differences"].values()) < 0.05
    spread = {"torch seed 2": [1.0] * 4, "torch seed 3": [1.5] * 4}
    later = {**report["losses"], "minigraph float16": [9.0, 9.0, *report["losses"]["minigraph float16"][2:]]}
    assert gpu_gpt2_loss.verdict({**later, **spread})["within the spread"] == ["bfloat16", gpu_gpt2_loss.LATER]


def test_an_arm_that_takes_too_long_is_given_up():
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(TimeoutError, match="more than 0 s"), gpu_gpt2.limited(0.02):
        signal.pause()
    assert signal.getsignal(signal.SIGALRM) is before


def test_peers_get_the_same_weights_in_their_order():
    values = gpt2.values_of(TINY)
    packed = list(TINY.packed(values))
    assert sum(v.size for v in packed) == sum(v.size for v in values)
    names = [name for name, _ in TINY.weights()]
    second = names.index("q", names.index("q") + 1)
    np.testing.assert_array_equal(packed[2 + 12][:, 16:32], values[second + 2], "K of the second layer")
    assert packed[2 + 12].shape == (16, 48)


def test_what_runs_in_a_new_process_is_python():
    text = gpu_gpt2.FIRST.format(
        root="/", arm="Minigraph", imports="json", sizes=(12, 768, 12, 16), packed=False, options="{}", dtype="float32"
    )
    compile(text, "first", "exec")


def test_every_class_of_calls_has_its_floor():
    kernel = SimpleNamespace(name="columns", op=None, members=(), nbytes=4_000_000)
    found = gpt2_profile.floors([kernel], TINY, 1e12, 4e12)
    assert found["column sums"] == pytest.approx(1e-3)
    assert found["products"] == pytest.approx(TINY.product_flops / 1e12 * 1e3)
    network = gpu_gpt2.SIZES["gpt2_124m"][1]
    assert network.product_flops == pytest.approx(6 * 16384 * 123.57e6, rel=1e-3), "6 for each weight and token"


def test_a_floor_counts_what_is_read_and_written_over_twice():
    """A loss in place of its scores; a norm over its input; an update, whose 16-bit parameter is only written."""

    def variables(*shapes, dtype="float32"):
        return [SimpleNamespace(shape=shape, dtype=as_dtype(dtype)) for shape in shapes]

    def kernel(name, nbytes, members=(), **op):
        op = SimpleNamespace(type="op", **{"opdef": SimpleNamespace(traits=()), **op})
        op.output_vars = [v for given in op.outputs.values() for v in given]
        return SimpleNamespace(name=name, op=op, members=members, nbytes=nbytes)

    def bytes_of(name, *kernels):
        return gpt2_profile.floors(kernels, TINY, 1e12, 1e3)[name]

    rows = {"inputs": {"X": variables((4, 8))}, "outputs": {"Out": variables((4, 8))}}
    assert bytes_of("norms", kernel("fused_rows", 128, ["layer_norm"], **rows)) == 256
    assert bytes_of("loss", kernel("loss_and_gradient", 128, ["fused_linear_cross_entropy"], **rows)) == 256
    states, halves = variables((6,)), variables((6,), dtype="bfloat16")
    step = {
        "inputs": {"Param": halves, "Grad": halves, "Moment1": states, "MasterParam": states},
        "outputs": {"ParamOut": halves, "Moment1Out": states, "MasterParamOut": states},
        "opdef": SimpleNamespace(traits=("optimizer",)),
    }
    assert bytes_of("update", kernel("update", 72, **step)) == 6 * (2 + 4 + 4 + 2 + 4 + 4)
    first = kernel("fused_rows", 100, ["layer_norm"], **rows)
    second = SimpleNamespace(name="totals", op=first.op, members=first.members, nbytes=200)
    assert bytes_of("norms", first, second) == 300, "one operator's kernels are counted together"
