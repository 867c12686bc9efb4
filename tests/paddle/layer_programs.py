"""Whole layers with parameters, and what stands around layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.paddle.programs import filled, raised, run, started

WORDS = np.sin(np.arange(2 * 3 * 8)).reshape(2, 3, 8).astype("float32")
MEMORY = np.cos(np.arange(2 * 4 * 8)).reshape(2, 4, 8).astype("float32")
SEEN = np.array([[1, 1, 0, 0], [1, 1, 1, 1]]).reshape(2, 1, 1, 4)


def encoders(paddle: Any) -> Any:
    x, mask = paddle.static.data("x", [2, 4, 8]), paddle.static.data("mask", [2, 1, 1, 4], "bool")
    first = paddle.nn.TransformerEncoder(paddle.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), 2)
    layer = paddle.nn.TransformerEncoderLayer(8, 4, 12, 0.0, "gelu", normalize_before=True, bias_attr=False)
    second = paddle.nn.TransformerEncoder(layer, 1, paddle.nn.LayerNorm(8))
    outs = [first(x, mask), second(x)]
    loss = paddle.mean(outs[0] * outs[1])
    gradients = paddle.static.append_backward(loss)
    named = sorted(g.name for _, g in gradients)
    return [len(named), run(paddle, [*outs, *named[:4]], x=MEMORY, mask=SEEN.astype(bool))]


def transformers(paddle: Any) -> Any:
    x, y = paddle.static.data("x", [2, 4, 8]), paddle.static.data("y", [2, 3, 8])
    net = paddle.nn.Transformer(8, 2, 1, 2, 16, 0.0, weight_attr=[None, None], bias_attr=[None, False])
    mask = net.generate_square_subsequent_mask(3)
    names = [p.name for p in net.parameters()]
    return [sorted(names), run(paddle, [net(x, y, tgt_mask=mask), mask], x=MEMORY, y=WORDS)]


def caches(paddle: Any) -> Any:
    """A text word by word gives what it gives at once."""
    x, y = paddle.static.data("x", [2, 4, 8]), paddle.static.data("y", [2, 3, 8])
    decoder = paddle.nn.TransformerDecoder(paddle.nn.TransformerDecoderLayer(8, 2, 16, 0.0), 2)
    made, outs = decoder.gen_cache(x), []
    for i in range(3):
        out, made = decoder(y[:, i : i + 1], x, cache=made)
        outs.append(out)
    pairs = decoder.gen_cache(x, do_zip=True)
    encoder = paddle.nn.TransformerEncoderLayer(8, 2, 16, 0.0)
    first, cache = encoder(y[:, :2], cache=encoder.gen_cache(y))
    second, _ = encoder(y[:, 2:], cache=cache)
    return [len(pairs), len(pairs[0]), run(paddle, [*outs, first, second], x=MEMORY, y=WORDS)]


def batch_norm(paddle: Any) -> Any:
    x = paddle.static.data("x", [2, 3, 8])
    norm = paddle.nn.BatchNorm(3, act="relu", momentum=0.5, moving_mean_name="m", moving_variance_name="v")
    still = paddle.nn.BatchNorm(3, is_test=True)
    outs = [norm(x), still(x)]
    exe = started(paddle)
    found = exe.run(feed={"x": WORDS}, fetch_list=outs)
    kept = [np.array(paddle.static.global_scope().find_var(n).get_tensor()) for n in ("m", "v")]
    return [found, kept, sorted(norm.state_dict())]


def spectral_norm(paddle: Any) -> Any:
    w = paddle.static.data("w", [3, 2, 4])
    norm = paddle.nn.SpectralNorm([3, 2, 4], dim=1, power_iters=40)
    found = run(paddle, [norm(w)], w=WORDS.reshape(6, 8)[:3].reshape(3, 2, 4))
    return found


def weight_norms(paddle: Any) -> Any:
    return [weight_norm_of(dim, paddle) for dim in (None, 0, 1)]


def weight_norm_of(dim: int | None, paddle: Any) -> Any:
    """Shapes of the parameters; how |v| begins; three runs, with training for one length."""
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup), paddle.utils.unique_name.guard():
        x = paddle.static.data("x", [None, 3])
        half = paddle.nn.initializer.Constant(0.5)
        attr = paddle.static.WeightNormParamAttr(dim=dim, name=f"wn{dim}", initializer=half, learning_rate=0.5)
        out = paddle.static.nn.fc(x, 4, weight_attr=attr, bias_attr=f"b{dim}")
        loss = paddle.mean(paddle.square(out))
        if dim is None:  # Paddle cannot compute the gradient of the others
            paddle.optimizer.SGD(0.1).minimize(loss)
        shapes = sorted((p.name, list(p.shape)) for p in main.all_parameters())
        first = started(paddle).run(feed={"x": WORDS[0, :, :3]}, fetch_list=[f"wn{dim}_g", out])
        exe = filled(paddle)
        return [shapes, first, [exe.run(feed={"x": WORDS[0, :, :3]}, fetch_list=[loss]) for _ in range(3)]]


def hooks(paddle: Any) -> Any:
    layer = paddle.nn.Linear(3, 2)
    hook = layer.register_state_dict_hook(lambda state: {f"{name}!": v for name, v in state.items()})
    changed = sorted(layer.state_dict())
    hook.remove()
    return [changed, sorted(layer.state_dict())]


def names_of_layers(paddle: Any) -> Any:
    x, y = paddle.static.data("x", [None, 3]), paddle.static.data("y", [None, 1], "int64")
    loss = paddle.nn.loss.CrossEntropyLoss()(x, y)
    schedule = paddle.optimizer.lr.NoamDecay(d_model=0.01, warmup_steps=4)
    main = paddle.static.default_main_program()
    main.global_seed(7)
    return [run(paddle, [loss, x.cpu()], x=WORDS[0, :, :3], y=np.array([[0], [2], [1]])), schedule(), main.random_seed]


def loaders(paddle: Any) -> Any:
    """Loaders that get their generator later."""
    x, y = paddle.static.data("x", [None, 2]), paddle.static.data("y", [None, 1], "int64")
    loss = paddle.mean(x) + paddle.cast(paddle.sum(y), "float32")
    exe, place, found = started(paddle), paddle.CPUPlace(), []

    def samples() -> Any:
        for i in range(5):
            yield np.array([i, 0.5]), np.array([i])  # float64, which a loader makes float32

    def batches() -> Any:
        for i in range(2):
            yield np.full([3, 2], i, "float32"), np.full([3, 1], i)

    for loader in (paddle.base.io.DataLoader.from_generator([x, y], 4), paddle.base.io.PyReader([x, y], 4)):
        oldest = hasattr(loader, "decorate_batch_generator")
        (loader.decorate_batch_generator if oldest else loader.set_batch_generator)(batches, place)
        found.append([exe.run(feed=feed, fetch_list=[loss]) for feed in loader()])
    for drop_last in (True, False):
        loader = paddle.base.io.DataLoader.from_generator([x, y], capacity=2)
        loader.set_sample_generator(samples, batch_size=2, drop_last=drop_last, places=place)
        found.append([exe.run(feed=feed, fetch_list=[loss]) for feed in loader()])
    loader = paddle.base.io.DataLoader.from_generator([x, y], capacity=2)
    loader.set_sample_list_generator(paddle.batch(samples, 3), places=place)
    return [found, [exe.run(feed=feed, fetch_list=[loss]) for feed in loader()]]


def masks_and_clips(paddle: Any) -> Any:
    lengths, x = paddle.static.data("n", [2, 2], "int64"), paddle.static.data("x", [2, 4, 8])
    outs = [
        paddle.nn.functional.sequence_mask(lengths, 4), paddle.nn.functional.sequence_mask(lengths, 3, "float32"),
        paddle.full([2], "0.5"),
        paddle.nn.clip.clip_by_norm(x, 2.0), paddle.nn.clip.clip_by_norm(x, 90.0),
    ]  # fmt: skip
    gains = [paddle.nn.initializer.calculate_gain(name) for name in ("conv1d", "conv3d_transpose", "tanh")]
    kinds = paddle.static.BuildStrategy.ReduceStrategy, paddle.static.BuildStrategy.GradientScaleStrategy
    numbers = [int(kinds[0].Reduce), int(kinds[1].One), int(paddle.static.BuildStrategy().reduce_strategy)]
    return [run(paddle, outs, x=MEMORY, n=np.array([[1, 3], [0, 2]])), [float(g) for g in gains], numbers]


def refusals(paddle: Any) -> Any:
    return [
        raised(lambda: paddle.nn.TransformerEncoderLayer(8, 3, 16)) != "",
        raised(lambda: paddle.nn.TransformerEncoderLayer(8, 2, 0)) != "",
        raised(lambda: paddle.nn.TransformerEncoderLayer(8, 2, 4, activation="none")) != "",
        raised(lambda: paddle.nn.Transformer(8, 2, 1, 1, 4, weight_attr=[None] * 4)) != "",
        raised(lambda: paddle.full([2], "half")) != "",
    ]  # fmt: skip
