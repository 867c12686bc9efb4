"""What mixed precision refuses, and that nothing is lost then."""

from __future__ import annotations

import copy

import pytest

import minigraph as mg
from minigraph import nn, static
from minigraph.compiler.rewrite import rewrite
from minigraph.errors import AttrError, DTypeError, MinigraphError, ProgramError
from minigraph.program import unique_name
from minigraph.types import float32
from tests.support.mixed_training import Training, feeds, mlp


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"level": "O3"}, "level must be O0, OD, O1 or O2, is 'O3'"),
        ({"dtype": "float64"}, "float16 and bfloat16, not 'float64'"),
        ({"dtype": "int8"}, "float16 and bfloat16, not 'int8'"),
        ({"dtype": 3.5}, "float16 and bfloat16, not 3.5"),
        ({"init_loss_scaling": 0}, "init_loss_scaling must be > 0 and finite, is 0"),
        ({"init_loss_scaling": -2.0}, "init_loss_scaling must be > 0 and finite, is -2.0"),
        ({"init_loss_scaling": float("inf")}, "init_loss_scaling must be > 0"),
        ({"init_loss_scaling": "much"}, "init_loss_scaling must be"),
        ({"incr_every_n_steps": 0}, "incr_every_n_steps must be an int >= 1, is 0"),
        ({"decr_every_n_nan_or_inf": 1.5}, "decr_every_n_nan_or_inf must be an int >= 1, is 1.5"),
        ({"incr_ratio": 1.0}, "incr_ratio must be greater than 1 and finite, is 1.0"),
        ({"decr_ratio": 1.0}, r"decr_ratio must be in \(0, 1\), is 1.0"),
        ({"use_dynamic_loss_scaling": 2}, "use_dynamic_loss_scaling must be a bool, is 2"),
        ({"master_grad": True}, "master_grad=True is not here"),
        ({"amp_lists": {"matmul"}}, "amp_lists must be AutoMixedPrecisionLists"),
    ],
)  # fmt: skip
def test_bad_settings_are_refused(facts, message):
    with pytest.raises((AttrError, DTypeError), match=message):
        static.amp.decorate(mg.optimizer.SGD(0.1), **facts)


def test_other_bad_input_is_refused():
    with pytest.raises(AttrError, match=r"decorate takes an optimizer of mg\.optimizer"):
        static.amp.decorate("sgd")  # type: ignore[arg-type]
    with pytest.raises(AttrError, match="matmull"):
        static.amp.CustomOpLists(custom_white_list={"matmull"})
    with pytest.raises(AttrError, match="both hold softmax"):
        static.amp.CustomOpLists({"softmax"}, {"softmax"})
    with pytest.raises(AttrError, match="must be a set or list of names"):
        static.amp.CustomOpLists("softmax")
    assert static.amp.CustomOpLists(custom_black_list=["conv2d"]).black_list
    with pytest.raises(ProgramError, match="takes a Program"):
        static.amp.cast_model_to_fp16("main")  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match="loss must be a variable"):
        static.amp.decorate(mg.optimizer.SGD(0.1)).minimize(3)  # type: ignore[arg-type]
    optimizer = static.amp.decorate(mg.optimizer.SGD(0.1))
    with pytest.raises(ProgramError, match="before minimize"):
        optimizer.get_loss_scaling()
    with pytest.raises(ProgramError, match="comes after minimize"):
        optimizer.amp_init(None)
    assert optimizer.get_lr() == 0.1


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_where_minimize_is_refused_both_programs_stay(level):
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup), unique_name.guard():
        x = static.data("x", [None, 4])
        frozen = nn.Linear(4, 4)
        for p in frozen.parameters():
            p.stop_gradient = True
        loss = mg.mean(frozen(x))
        texts = str(main), str(startup)
        optimizer = static.amp.decorate(mg.optimizer.SGD(0.1), level=level)
        with pytest.raises(MinigraphError):
            optimizer.minimize(loss)
        assert (str(main), str(startup)) == texts
        assert all(p.dtype == float32 for p in main.all_parameters())
        trained = nn.Linear(4, 1)
        optimizer.minimize(mg.mean(trained(frozen(x))))
    assert any(op.type == "sgd" for op in main.ops)


def test_a_program_that_was_minimized_is_refused():
    t = Training("mlp")
    text = str(t.main)
    with static.program_guard(t.main, t.startup), pytest.raises(ProgramError, match="gradients or updates already"):
        static.amp.decorate(mg.optimizer.SGD(0.1)).minimize(t.loss)
    assert str(t.main) == text
    with pytest.raises(ProgramError):
        rewrite(t.main, [])


def test_a_refusal_behind_the_updates_leaves_the_optimizer_as_it_was_too():
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup), unique_name.guard():
        loss = mlp()
        texts, inner = (str(main), str(startup)), mg.optimizer.Adam(0.1)
        with pytest.raises(AttrError, match="incr_every_n_steps must lie in"):
            static.amp.decorate(inner, incr_every_n_steps=1 << 25).minimize(loss)
        assert (str(main), str(startup)) == texts
        static.amp.decorate(inner).minimize(loss)
    assert any(op.type == "adam" for op in main.ops)


def test_the_older_form_by_place_is_refused_with_a_hint():
    with pytest.raises(AttrError, match="give init_loss_scaling by its name"):
        static.amp.decorate(mg.optimizer.SGD(0.1), None, 128.0)  # type: ignore[arg-type]


def test_a_decorated_optimizer_is_copied():
    optimizer = static.amp.decorate(mg.optimizer.SGD(0.25))
    assert copy.copy(optimizer).get_lr() == copy.deepcopy(optimizer).get_lr() == 0.25


def test_a_checkpoint_in_float32_comes_in_through_a_program_that_has_float32(tmp_path):
    """`load` refuses it for the cast program; the clone from before `minimize` takes it, and `amp_init` rounds it."""
    plain, t = Training("mlp").start(), Training("mlp", {"level": "O2"}).start()
    with static.scope_guard(plain.scope):
        static.save(plain.main, str(tmp_path / "model"))
    before = t.states()
    with static.scope_guard(t.scope), pytest.raises(MinigraphError, match=r"holds linear_0\.w_0 as float32"):
        static.load(t.main, str(tmp_path / "model"), t.exe)
    assert all(x.tobytes() == before[n].tobytes() for n, x in t.states().items())
    with static.scope_guard(t.scope):
        static.load(t.test, str(tmp_path / "model"), t.exe)
    t.optimizer.amp_init(mg.CPUPlace(), t.scope, rewrite_master_weight=True)
    for p in t.main.all_parameters():
        wide = plain.scope.read(p.name)
        assert t.scope.read(p.name).tobytes() == wide.astype(p.dtype).tobytes()
        assert p.dtype == float32 or t.scope.read(f"{p.name}_fp32_master_0").tobytes() == wide.tobytes()
    t.step(next(feeds("mlp", 1)))
