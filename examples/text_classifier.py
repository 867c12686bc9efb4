"""Tell praise from blame by attention over words, save the model for inference, load it and serve it.

    python examples/text_classifier.py                                        trains and saves to out/
    python examples/text_classifier.py --load out/text_classifier "not good"  answers with the saved model

The texts are made here: words of praise and blame among others, and `not` before a word turns it round. So words must
be seen together with the one before them. Texts have several lengths: they are padded, and a mask hides the padding.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

import minigraph as mg

PRAISE, BLAME = ["good", "great", "fine", "fun", "clever", "warm"], ["bad", "dull", "poor", "sad", "weak", "cold"]
OTHERS = ["the", "a", "film", "plot", "cast", "end", "was", "is", "it", "and", "very", "so", "with", "of"]
WORDS = ["<padding>", "<unknown>", "not", *PRAISE, *BLAME, *OTHERS]
LONGEST, WIDTH, HEADS = 12, 32, 4
BATCH, TRAINING, TEST = 64, 4000, 1000


def text(rng: np.random.Generator) -> tuple[list[str], int]:
    """Words, and 1 for praise, 0 for blame."""
    while True:
        words, value, length = [], 0, rng.integers(4, LONGEST - 1)
        while len(words) < length:
            kind = rng.integers(4)
            if kind < 2:
                words.append(OTHERS[rng.integers(len(OTHERS))])
                continue
            turned = rng.random() < 0.4
            words += ["not"] * turned + [(PRAISE if kind == 2 else BLAME)[rng.integers(len(PRAISE))]]
            value += (1 if kind == 2 else -1) * (-1 if turned else 1)
        if value:
            return words, int(value > 0)


def padded(texts: list[list[str]]) -> np.ndarray:
    """Numbers of words [N, LONGEST], 0 behind the end."""
    numbers = {word: i for i, word in enumerate(WORDS)}
    rows = [[numbers.get(word, 1) for word in words[:LONGEST]] for words in texts]
    return np.array([row + [0] * (LONGEST - len(row)) for row in rows], "int64")


def classifier(words: mg.Variable) -> mg.Variable:
    """Scores [N, 2] of blame and praise for words [N, LONGEST]."""
    there = mg.cast(words != 0, "float32")
    x = mg.nn.Embedding(len(WORDS), WIDTH, padding_idx=0)(words)
    x = x + mg.nn.Embedding(LONGEST, WIDTH)(mg.arange(LONGEST))
    seen = mg.unsqueeze(words != 0, [1, 2])  # [N, 1, 1, LONGEST]: which keys any place may look at
    x = mg.nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, dropout=0.0)(x, seen)
    total = mg.sum(x * mg.unsqueeze(there, -1), axis=1)
    return mg.nn.Linear(WIDTH, 2)(total / mg.sum(there, axis=1, keepdim=True))


def train(path: Path, steps: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    main, startup = mg.static.Program("text_classifier"), mg.static.Program()
    main.random_seed = startup.random_seed = seed
    with mg.static.program_guard(main, startup):
        words = mg.static.data("words", [None, LONGEST], "int64")
        praised = mg.static.data("praised", [None, 1], "int64")
        scores = classifier(words)
        chances = mg.nn.functional.softmax(scores)
        loss = mg.nn.functional.cross_entropy(scores, praised)
        accuracy = mg.static.accuracy(chances, praised)
        testing = main.clone(for_test=True)
        mg.optimizer.Adam(3e-3).minimize(loss)
    compiled = mg.static.CompiledProgram(main, build_strategy=mg.static.BuildStrategy.all())
    exe = mg.static.Executor(mg.CPUPlace())
    exe.run(startup)
    training = rows(rng, TRAINING)
    for step in range(1, steps + 1):
        chosen = rng.integers(TRAINING, size=BATCH)
        (value,) = exe.run(compiled, {name: array[chosen] for name, array in training.items()}, [loss])
        if step % 100 == 0 or step == steps:
            print(f"step {step}: loss {float(value):.3f}")
    (share,) = exe.run(testing, rows(rng, TEST), [accuracy.name])
    print(f"{float(share):.1%} of {TEST} new texts are told right")
    path.parent.mkdir(parents=True, exist_ok=True)
    mg.static.save_inference_model(str(path), [words], [chances], exe, program=main)
    path.with_suffix(".json").write_text(json.dumps(WORDS), encoding="utf-8")
    print(f"saved {', '.join(sorted(p.name for p in path.parent.glob(path.name + '.*')))}")


def rows(rng: np.random.Generator, count: int) -> dict[str, np.ndarray]:
    pairs = [text(rng) for _ in range(count)]
    return {"words": padded([words for words, _ in pairs]), "praised": np.array([[label] for _, label in pairs])}


def serve(path: Path, texts: list[str]) -> None:
    """Answers of the model in files, which is all that this needs."""
    if json.loads(path.with_suffix(".json").read_text(encoding="utf-8")) != WORDS:
        raise SystemExit(f"{path} was trained with other words")
    with mg.static.scope_guard(mg.static.Scope()):
        exe = mg.static.Executor(mg.CPUPlace())
        program, names, targets = mg.static.load_inference_model(str(path), exe)
        (chances,) = exe.run(program, {names[0]: padded([t.lower().split() for t in texts])}, targets)
    for line, (_, praise) in zip(texts, chances, strict=True):
        print(f"{praise:.0%} praise: {line}")


def main() -> None:
    options = parse_arguments()
    if options.load:
        serve(options.load, options.texts)
        return
    train(options.out / "text_classifier", options.steps, options.seed)
    serve(options.out / "text_classifier", ["the film was great", "the film was not great", "not bad and so clever"])


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*", help="texts to be told, with --load")
    parser.add_argument("--load", type=Path, help="a saved model, without a suffix")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for what is written")
    options = parser.parse_args()
    if bool(options.load) != bool(options.texts):
        parser.error("--load needs texts, and texts need --load")
    return options


if __name__ == "__main__":
    main()
