"""Scripts in the manner of Paddle 2's documentation; only the import is another."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minigraph as paddle
import minigraph.nn.functional as F
from minigraph import nn, static
from minigraph.base import unique_name
from minigraph.static import InputSpec, Program, program_guard

paddle.enable_static()


def test_linear_regression() -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(200, 3)).astype("float32")
    targets = features @ np.array([[2.0], [-1.0], [0.5]], "float32") + 4.0

    x = paddle.static.data(name="x", shape=[None, 3], dtype="float32")
    y = paddle.static.data(name="y", shape=[None, 1], dtype="float32")
    y_predict = paddle.static.nn.fc(x, size=1)
    cost = paddle.nn.functional.square_error_cost(input=y_predict, label=y)
    avg_loss = paddle.mean(cost)
    sgd_optimizer = paddle.optimizer.SGD(learning_rate=0.1)
    sgd_optimizer.minimize(avg_loss)

    place = paddle.CPUPlace()
    exe = paddle.static.Executor(place)
    exe.run(paddle.static.default_startup_program())
    for _ in range(200):
        (loss,) = exe.run(feed={"x": features, "y": targets}, fetch_list=[avg_loss])
    assert loss < 1e-8
    w = np.array(paddle.static.global_scope().find_var("fc_0.w_0").get_tensor())
    b = np.array(paddle.static.global_scope().find_var("fc_0.b_0").get_tensor())
    np.testing.assert_allclose(w.ravel(), [2.0, -1.0, 0.5], atol=1e-3)
    np.testing.assert_allclose(b, [4.0], atol=1e-3)


def test_mnist_like_mlp_with_a_test_program() -> None:
    rng = np.random.default_rng(1)
    centers = rng.normal(size=(10, 64)) * 2
    labels = rng.integers(0, 10, size=(600, 1))
    images = (centers[labels[:, 0]] + rng.normal(size=(600, 64))).astype("float32").reshape(600, 1, 8, 8)

    paddle.seed(2026)
    main_program, startup_program = static.Program(), static.Program()
    with static.program_guard(main_program, startup_program):
        img = static.data("img", [None, 1, 8, 8], "float32")
        label = static.data("label", [None, 1], "int64")
        hidden = static.nn.fc(img, size=32, activation="relu")
        hidden = F.dropout(hidden, p=0.2)
        prediction = static.nn.fc(hidden, size=10)
        loss = F.cross_entropy(prediction, label)
        acc = paddle.mean(paddle.cast(paddle.equal(paddle.argmax(prediction, axis=1, keepdim=True), label), "float32"))
        test_program = main_program.clone(for_test=True)
        paddle.optimizer.Adam(learning_rate=0.01).minimize(loss)

    exe = static.Executor(paddle.CPUPlace())
    exe.run(startup_program)
    losses = []
    for _ in range(4):
        for start in range(0, 512, 64):
            batch = slice(start, start + 64)
            feed = {"img": images[batch], "label": labels[batch]}
            loss_v, _ = exe.run(main_program, feed=feed, fetch_list=[loss, acc])
            losses.append(float(loss_v))
    feed = {"img": images[512:], "label": labels[512:]}
    (first,) = exe.run(test_program, feed=feed, fetch_list=[acc])
    (second,) = exe.run(test_program, feed=feed, fetch_list=[acc.name])
    assert losses[-1] < 0.2 * losses[0]
    assert first == second > 0.95
    assert len(test_program.global_block().ops) < len(main_program.global_block().ops)


def test_program_guard_keeps_programs_apart() -> None:
    first, second, startup = Program(), Program(), Program()
    with program_guard(first, startup):
        static.data("x", [None, 2])
        static.nn.fc(static.data("x", [None, 2]), 3, name="one")
    with program_guard(second, startup):
        assert not static.default_main_program().global_block().has_var("x")
        static.nn.fc(static.data("x", [None, 4]), 3, name="two")
    assert static.default_main_program() not in (first, second)
    assert {p.name for p in first.all_parameters()} == {"one.w_0", "one.b_0"}
    assert {p.name for p in second.all_parameters()} == {"two.w_0", "two.b_0"}
    assert {v.name for v in startup.list_vars()} == {"one.w_0", "one.b_0", "two.w_0", "two.b_0"}
    for op in first.global_block().ops:
        assert op.type in ("matmul", "elementwise_add")
        assert all(first.global_block().var(name).name == name for name in op.input_arg_names)


def test_a_layer_class_and_fetch_by_name() -> None:
    class LeNetLike(paddle.nn.Layer):
        def __init__(self, num_classes: int = 10) -> None:
            super().__init__()
            self.features = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.LayerNorm(32), nn.Linear(32, 16), nn.GELU())
            self.fc = nn.Linear(16, num_classes)

        def forward(self, inputs: Any) -> Any:
            x = self.features(inputs)
            x = paddle.flatten(x, 1)
            return self.fc(x)

    image = static.data("image", [None, 16], "float32")
    label = static.data("label", [None], "int64")
    net = LeNetLike(num_classes=4)
    logits = net(image)
    loss = nn.CrossEntropyLoss()(logits, label)
    optimizer = paddle.optimizer.Momentum(
        learning_rate=0.05, momentum=0.9, parameters=net.parameters(), weight_decay=paddle.regularizer.L2Decay(1e-4),
        grad_clip=nn.ClipGradByGlobalNorm(clip_norm=1.0),
    )  # fmt: skip
    optimizer.minimize(loss)
    exe = static.Executor()
    exe.run(static.default_startup_program())
    rng = np.random.default_rng(3)
    feed = {"image": rng.normal(size=(32, 16)).astype("float32"), "label": rng.integers(0, 4, 32)}
    before = exe.run(feed=feed, fetch_list=loss)[0]
    for _ in range(100):
        after, grad, weight = exe.run(
            feed=feed, fetch_list=[loss.name, net.fc.weight.name + "@GRAD", net.fc.weight.name]
        )
    assert after < 0.1 * before
    assert grad.shape == weight.shape == (16, 4)
    assert len(net.parameters()) == 8


def test_scope_and_tensors() -> None:
    scope = static.Scope()
    with static.scope_guard(scope):
        w = static.create_parameter(
            [2, 2], "float32", attr=paddle.ParamAttr(name="w", initializer=nn.initializer.Constant(1.0))
        )
        x = static.data("x", [2, 2], "float32")
        out = paddle.matmul(x, w)
        exe = static.Executor(paddle.CPUPlace())
        exe.run(static.default_startup_program())
        t = static.global_scope().find_var("w").get_tensor()
        assert (np.array(t) == 1.0).all()
        t.set(np.eye(2, dtype="float32") * 3, paddle.CPUPlace())
        (value,) = exe.run(feed={"x": np.eye(2, dtype="float32")}, fetch_list=[out])
    assert value.tolist() == [[3.0, 0.0], [0.0, 3.0]]
    assert static.global_scope().find_var("w") is None
    assert scope.find_var("w") is not None


def test_gradients_of_second_order() -> None:
    paddle.set_default_dtype("float64")
    x = static.data("x", [4], "float64")
    x.stop_gradient = False
    y = x**3 + paddle.sin(x) * 2
    (dx,) = static.gradients(y, x)
    (ddx,) = static.gradients([dx], [x])
    (dddx,) = static.gradients(ddx, x)
    exe = static.Executor()
    v = np.array([0.5, -1.0, 2.0, 0.0])
    first, second, third = exe.run(feed={"x": v}, fetch_list=[dx, ddx, dddx])
    np.testing.assert_allclose(first, 3 * v**2 + 2 * np.cos(v), rtol=1e-12)
    np.testing.assert_allclose(second, 6 * v - 2 * np.sin(v), rtol=1e-12)
    np.testing.assert_allclose(third, 6 - 2 * np.cos(v), rtol=1e-12)


def test_gradient_penalty_trains() -> None:
    paddle.seed(4)
    x = static.data("x", [None, 3], "float64")
    x.stop_gradient = False
    paddle.set_default_dtype("float64")
    critic = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    (slope,) = static.gradients(paddle.sum(critic(x)), x)
    norm = paddle.sqrt(paddle.sum(slope * slope, axis=1))
    penalty = paddle.mean((norm - 1.0) ** 2)
    paddle.optimizer.Adam(0.01).minimize(penalty)
    exe = static.Executor()
    exe.run(static.default_startup_program())
    feed = {"x": np.random.default_rng(0).normal(size=(16, 3))}
    values = [float(exe.run(feed=feed, fetch_list=[penalty])[0]) for _ in range(150)]
    assert values[-1] < 0.05 * values[0]


def test_append_backward_by_hand() -> None:
    x = static.data("x", [None, 2], "float32")
    hidden = static.nn.fc(x, 2, weight_attr=paddle.ParamAttr(name="w1"), bias_attr=False)
    frozen = static.nn.fc(hidden, 2, weight_attr=paddle.ParamAttr(name="w2", trainable=False), bias_attr=False)
    loss = paddle.mean(frozen)
    params_grads = static.append_backward(loss)
    assert [(p.name, g.name) for p, g in params_grads] == [("w1", "w1@GRAD")]
    assert static.append_backward(loss, parameter_list=["w1"], no_grad_set={"w1"}) == []
    with pytest.raises(paddle.MinigraphError, match="depends on no trainable parameter"):
        static.append_backward(paddle.mean(x))


def test_learning_rate_schedule() -> None:
    x = static.data("x", [None, 1], "float32")
    loss = paddle.mean(static.nn.fc(x, 1, bias_attr=False, weight_attr=nn.initializer.Constant(0.0)))
    scheduler = paddle.optimizer.lr.StepDecay(learning_rate=0.5, step_size=2, gamma=0.1)
    optimizer = paddle.optimizer.SGD(learning_rate=scheduler)
    optimizer.minimize(loss)
    exe = static.Executor()
    exe.run(static.default_startup_program())
    rates, weights = [], []
    for _ in range(3):
        for _ in range(2):
            exe.run(feed={"x": np.ones((1, 1), "float32")}, fetch_list=[loss])
            weights.append(float(np.array(static.global_scope().find_var("fc_0.w_0").get_tensor())[0, 0]))
        rates.append(optimizer.get_lr())
        scheduler.step()
    np.testing.assert_allclose(rates, [0.5, 0.5, 0.05])
    np.testing.assert_allclose(np.diff([0.0, *weights]), [-0.5, -0.5, -0.5, -0.5, -0.05, -0.05], rtol=1e-4)


def test_unique_name_guard_builds_one_network_twice() -> None:
    def build() -> tuple[Program, Any]:
        main = Program()
        with program_guard(main, startup), unique_name.guard():
            x = static.data("x", [None, 4], "float32")
            return main, nn.Linear(4, 2)(x)

    startup = Program()
    train, out = build()
    evaluate, same = build()
    assert out.name == same.name
    assert str(train).split("\n")[1:] == str(evaluate).split("\n")[1:]
    exe = static.Executor()
    exe.run(startup)
    feed = {"x": np.ones((3, 4), "float32")}
    assert (exe.run(train, feed, [out])[0] == exe.run(evaluate, feed, [same])[0]).all()
    with unique_name.guard("student_"):
        assert nn.Linear(2, 2).weight.name == "student_student_linear_0.w_0"


def test_save_and_load_continue_training(tmp_path: Path) -> None:
    def build() -> tuple[Program, Program, Any]:
        main, startup = Program(), Program()
        with program_guard(main, startup), unique_name.guard():
            x, y = static.data("x", [None, 4]), static.data("y", [None, 1])
            loss = F.mse_loss(nn.Linear(4, 1)(x), y)
            paddle.optimizer.AdamW(0.1, weight_decay=0.1).minimize(loss)
        return main, startup, loss

    rng = np.random.default_rng(7)
    feed = {"x": rng.normal(size=(8, 4)).astype("float32"), "y": rng.normal(size=(8, 1)).astype("float32")}
    exe = static.Executor(paddle.CPUPlace())
    main, startup, loss = build()
    exe.run(startup)
    for _ in range(5):
        exe.run(main, feed=feed, fetch_list=[loss])
    static.save(main, str(tmp_path / "checkpoint"))
    straight = [exe.run(main, feed=feed, fetch_list=[loss])[0] for _ in range(5)]

    with static.scope_guard(static.Scope()):
        main, startup, loss = build()
        exe.run(startup)
        static.load(main, str(tmp_path / "checkpoint"), exe)
        resumed = [exe.run(main, feed=feed, fetch_list=[loss])[0] for _ in range(5)]
    assert straight == resumed


def test_embedding_classifier_with_attention_like_ops() -> None:
    """Masks, batches of products, softmax, slices: a bag of words weighted by a query."""
    paddle.seed(11)
    ids = static.data("ids", [None, 6], "int64")
    label = static.data("label", [None, 1], "int64")
    emb = nn.Embedding(20, 16, padding_idx=0)(ids)
    query = static.create_parameter([16, 1], "float32")
    score = paddle.squeeze(paddle.matmul(emb, query), axis=-1) / 4.0
    mask = paddle.cast(paddle.not_equal(ids, paddle.full([1], 0, "int64")), "float32")
    score = score * mask + (1.0 - mask) * -1e9
    weight = paddle.unsqueeze(F.softmax(score), axis=1)
    pooled = paddle.squeeze(paddle.matmul(weight, emb), axis=1)
    both = paddle.concat([pooled, emb[:, 0, :], paddle.max(emb, axis=1)], axis=-1)
    loss = F.cross_entropy(nn.Linear(48, 2)(both), label)
    paddle.optimizer.Adam(0.02).minimize(loss)
    exe = static.Executor()
    exe.run(static.default_startup_program())
    rng = np.random.default_rng(0)
    words = rng.integers(1, 20, size=(128, 6))
    words[:, 4:] *= rng.integers(0, 2, size=(128, 2))
    feed = {"ids": words, "label": (words == 7).any(axis=1, keepdims=True).astype("int64")}
    values = [float(exe.run(feed=feed, fetch_list=[loss])[0]) for _ in range(150)]
    assert values[-1] < 0.1 * values[0]


def test_causal_mask() -> None:
    paddle.set_default_dtype("float64")
    q = static.data("q", [None, 4, 8])
    mask = paddle.triu(paddle.full([4, 4], -1e9), diagonal=1)
    attention = F.softmax(paddle.matmul(q, q, transpose_y=True) / 8**0.5 + mask)
    value = np.random.default_rng(0).normal(size=(2, 4, 8))
    (out,) = static.Executor().run(feed={"q": value}, fetch_list=[attention])
    assert (out[:, np.triu(np.ones((4, 4)), 1) == 1] == 0).all()
    np.testing.assert_allclose(out.sum(-1), 1, rtol=1e-12)
    scores = np.where(np.tril(np.ones((4, 4))) == 1, value @ value.transpose(0, 2, 1) / 8**0.5, -np.inf)
    expected = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    np.testing.assert_allclose(out, expected, rtol=1e-12)


def test_metrics_without_labels_of_padding() -> None:
    logits = static.data("logits", [None, 5, 3], "float32")
    label = static.data("label", [None, 5], "int64")
    loss = F.cross_entropy(logits, label, ignore_index=-1)
    correct = paddle.logical_and(paddle.argmax(logits, axis=-1) == label, label != -1)
    accuracy = correct.astype("float32").sum() / (label != -1).astype("float32").sum()
    scores = np.random.default_rng(5).normal(size=(2, 5, 3)).astype("float32")
    labels = np.array([[0, 1, 2, -1, -1], [2, 2, 1, 0, -1]])
    loss_v, acc_v = static.Executor().run(feed={"logits": scores, "label": labels}, fetch_list=[loss, accuracy])
    kept = labels != -1
    logs = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    np.testing.assert_allclose(loss_v, -logs[kept][np.arange(7), labels[kept]].mean(), rtol=1e-5)
    np.testing.assert_allclose(acc_v, (scores.argmax(-1) == labels)[kept].mean(), rtol=1e-6)


def test_input_spec_and_data_agree() -> None:
    spec = InputSpec(shape=[None, 784], dtype="float32", name="img")
    data = static.data(spec.name, spec.shape, spec.dtype)
    assert InputSpec.from_tensor(data) == spec


class MultiFCLayer(paddle.nn.Layer):
    """The model of the usage example of Paddle PR #39437."""

    def __init__(self, hidden: int, activation: Any) -> None:
        super().__init__()
        self.linear1 = nn.Linear(hidden, 4 * hidden)
        self.linear2 = nn.Linear(4 * hidden, hidden)
        self.linear3 = nn.Linear(hidden, hidden)
        self.act1, self.act2, self.act3 = activation(), activation(), activation()

    def forward(self, x: Any, matmul_y: Any, ele_y: Any) -> Any:
        output = self.linear1(x)
        output = self.act1(output)
        output = self.linear2(output)
        output1 = paddle.matmul(output, matmul_y)
        output = self.linear3(output)
        output = self.act2(output)
        output = paddle.matmul(output, matmul_y)
        output = paddle.add(output, ele_y)
        output = self.act3(output)
        return paddle.add(output, output1)


@pytest.mark.parametrize("training", [False, True], ids=["forward", "training"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_usage_example_of_the_pull_request(activation: str, training: bool) -> None:
    paddle.set_default_dtype("float64")
    batch, seqlen, hidden = 2, 4, 128
    layer = {"relu": nn.ReLU, "gelu": lambda: nn.GELU(approximate=True)}[activation]
    main, startup = static.Program(), static.Program()
    main.random_seed = startup.random_seed = 2021
    with static.program_guard(main, startup):
        data = static.data(name="_data", shape=[-1, seqlen, hidden], dtype="float64")
        matmul_y = static.data(name="_matmul_y", shape=[1, hidden, hidden], dtype="float64")
        ele_y = static.data(name="_ele_y", shape=[hidden], dtype="float64")
        multi_layer = MultiFCLayer(hidden, layer)
        with static.amp.fp16_guard():
            out = multi_layer(data, matmul_y, ele_y)
            loss = paddle.mean(out)
        fetch = [loss.name]
        if training:
            fetch += [g.name for _, g in static.append_backward(loss)]
    exe = static.Executor(paddle.CPUPlace())
    exe.run(startup)
    rng = np.random.default_rng(0)
    feed = {
        "_data": rng.random((batch, seqlen, hidden)) - 0.5, "_matmul_y": rng.random((1, hidden, hidden)) - 0.5,
        "_ele_y": rng.random(hidden) - 0.5,
    }  # fmt: skip
    unfused = exe.run(main, feed=feed, fetch_list=fetch)

    build_strategy = static.BuildStrategy()
    build_strategy.fuse_gemm_epilogue = True
    program = static.CompiledProgram(main)
    program = program.with_data_parallel(
        loss_name=loss.name, build_strategy=build_strategy, places=static.cpu_places()
    )
    fused = exe.run(program, feed=feed, fetch_list=fetch)
    for a, b in zip(unfused, fused, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
    counts = Counter(op.type for op in program.after.global_block().ops)
    assert counts["fused_gemm_epilogue"] == 3
    assert counts[activation] == 1
    assert counts["fused_gemm_epilogue_grad"] == (3 if training else 0)
    assert counts[f"{activation}_grad"] == (2 if training else 0)
    assert len(unfused) == (7 if training else 1)
