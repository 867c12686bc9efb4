"""Records what Paddle gives for the programs: `python -m tests.paddle.record [subject ...]`."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from .programs import FOLDER, SUBJECTS, fresh, programs, result


def main(subjects: list[str]) -> None:
    import paddle  # pyright: ignore[reportMissingImports]  # is there in a job of its own

    paddle.enable_static()
    for subject in subjects:
        results = {}
        for name, run in programs(subject).items():
            with fresh(paddle), tempfile.TemporaryDirectory() as folder:
                results[name] = result(run, paddle, Path(folder))
        rows = ",\n".join(f"    {json.dumps(name)}: {json.dumps(value)}" for name, value in results.items())
        page = f'{{\n  "paddle": "{paddle.__version__}",\n  "results": {{\n{rows}\n  }}\n}}\n'
        (FOLDER / "recorded" / f"{subject}.json").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:] or SUBJECTS)
