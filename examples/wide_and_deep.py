"""Predict clicks by a wide and a deep part, and compare the AUC with the best that can be reached.

    python examples/wide_and_deep.py

The data are drawn from a model of ours, so the true probability of each click is known, and with it the AUC that
nobody can beat: clicks are random. Wide and deep: Cheng and others, arXiv:1606.07792.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import numpy as np

import minigraph as mg

GROUPS, ITEMS, NUMBERS = 12, 25, 4  # of users, of things shown, facts in numbers
TRAINING, TEST = 24_000, 8_000
BATCH = 400


class Clicks(NamedTuple):
    """Rows of data: ids [N, 1], numbers [N, NUMBERS], clicked [N, 1]; chance is the true probability [N, 1]."""

    group: np.ndarray
    item: np.ndarray
    numbers: np.ndarray
    clicked: np.ndarray
    chance: np.ndarray

    def feed(self, rows: np.ndarray | slice) -> dict[str, np.ndarray]:
        """Without the true probability."""
        return {name: getattr(self, name)[rows] for name in ("group", "item", "numbers", "clicked")}


def drawn(rng: np.random.Generator) -> tuple[Clicks, Clicks]:
    """Training and test data of one model: each pair of group and item has a taste, numbers act together."""
    taste = rng.normal(size=(GROUPS, ITEMS)) + rng.normal(size=ITEMS)
    weights = rng.normal(size=NUMBERS)

    def rows(count: int) -> Clicks:
        group, item = rng.integers(0, GROUPS, (count, 1)), rng.integers(0, ITEMS, (count, 1))
        numbers = rng.normal(size=(count, NUMBERS)).astype("float32")
        together = np.tanh(numbers @ weights) + numbers[:, 0] * numbers[:, 1]
        chance = 1 / (1 + np.exp(1 - taste[group, item] - together[:, None]))
        return Clicks(group, item, numbers, (rng.random((count, 1)) < chance).astype("int64"), chance)

    return rows(TRAINING), rows(TEST)


def area_under_curve(scores: np.ndarray, labels: np.ndarray) -> float:
    """How often a clicked row has a higher score than one that was not clicked."""
    order = np.argsort(scores[:, 0])
    ranks = np.empty(len(order))
    ranks[order] = np.arange(1, len(order) + 1)
    clicked = labels[:, 0] == 1
    pairs = clicked.sum() * (~clicked).sum()
    return float((ranks[clicked].sum() - clicked.sum() * (clicked.sum() + 1) / 2) / pairs)


def network() -> tuple[mg.Variable, mg.Variable, list[mg.Variable]]:
    """Loss, AUC of all rows since its counts were 0, and these counts."""
    group, item = (mg.static.data(name, [None, 1], "int64") for name in ("group", "item"))
    numbers = mg.static.data("numbers", [None, NUMBERS])
    clicked = mg.static.data("clicked", [None, 1], "int64")

    pair = group * ITEMS + item
    wide = mg.nn.Embedding(GROUPS * ITEMS, 1, weight_attr=mg.nn.initializer.Constant(0.0))(pair)
    vectors = [mg.nn.Embedding(size, 8)(ids) for size, ids in ((GROUPS, group), (ITEMS, item))]
    deep = mg.concat([*(mg.reshape(v, [-1, 8]) for v in vectors), numbers], axis=1)
    for size in (64, 32):
        deep = mg.static.nn.fc(deep, size, activation="relu")
    score = mg.reshape(wide, [-1, 1]) + mg.static.nn.fc(deep, 1)

    target = mg.cast(clicked, "float32")
    loss = mg.nn.functional.binary_cross_entropy_with_logits(score, target)
    auc, _, counts = mg.static.auc(mg.nn.functional.sigmoid(score), clicked)
    return loss, auc, counts


def main() -> None:
    options = parse_arguments()
    training, test = drawn(np.random.default_rng(options.seed))
    best = area_under_curve(test.chance, test.clicked)

    main_program, startup = mg.static.Program("wide_and_deep"), mg.static.Program()
    main_program.random_seed = startup.random_seed = options.seed
    with mg.static.program_guard(main_program, startup):
        loss, auc, counts = network()
        testing = main_program.clone(for_test=True)
        mg.optimizer.Adam(4e-3).minimize(loss)

    exe = mg.static.Executor(mg.CPUPlace())
    exe.run(startup)
    shuffle, reached = np.random.default_rng(options.seed), 0.0
    for epoch in range(options.epochs):
        begin_counting(counts)
        order = shuffle.permutation(TRAINING)
        for start in range(0, TRAINING, BATCH):
            found = exe.run(main_program, training.feed(order[start : start + BATCH]), [loss, auc])
        begin_counting(counts)
        (reached,) = exe.run(testing, test.feed(slice(None)), [auc.name])
        print(f"epoch {epoch + 1}: AUC {float(found[1]):.4f} of training rows, {float(reached):.4f} of test rows")
    print(f"reached {float(reached):.4f}; the true probabilities have {best:.4f}, a guess 0.5")


def begin_counting(counts: list[mg.Variable]) -> None:
    """Set the counts of static.auc to 0."""
    for v in counts:
        mg.static.global_scope().find_var(v.name).get_tensor().set(np.zeros(v.shape, "int64"))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
