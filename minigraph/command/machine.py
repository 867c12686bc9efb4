"""Commands that look at no program: info, error, cache, completion."""

from __future__ import annotations

import importlib.metadata
import platform
from argparse import Namespace
from contextlib import suppress
from typing import Any

from minigraph import cuda
from minigraph.errors import raise_unknown
from minigraph.errors.kinds import KINDS, UNKNOWN_NAME
from minigraph.kernels.cores import get_num_threads
from minigraph.kernels.cuda.record import compile as compiled_kernels
from minigraph.runtime.version import VERSION
from minigraph.types import CUDAPlace

PACKAGES = (
    "numpy", "numba", "networkx", "ml_dtypes", "cupy-cuda12x", "cupy-cuda13x", "nvmath-python", "nvidia-cuda-nvrtc",
    "nvidia-cublas",
)  # fmt: skip
NAMES = "info demo launch dump explain report summary diff compile profile verify bench error cache completion"
SHELLS = {
    "bash": f'complete -o default -W "{NAMES}" minigraph',
    "zsh": f'autoload -U bashcompinit && bashcompinit && complete -o default -W "{NAMES}" minigraph',
    "fish": f'complete -c minigraph -n __fish_use_subcommand -a "{NAMES}"',
}


def info(options: Namespace) -> tuple[dict[str, Any], str]:
    """Versions, devices, caches."""
    versions = {"minigraph": VERSION, "python": platform.python_version()}
    for package in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    gpus = [str(cuda.runtime(CUDAPlace(i)).peaks(cuda.allows_tf32())) for i in range(cuda.device_count())]
    data = {
        "versions": versions, "system": platform.platform(), "threads": get_num_threads(), "gpus": gpus,
        "why_no_gpu": cuda.why_not(), "cache": _cached(),
    }  # fmt: skip
    lines = [f"{name:<20} {version}" for name, version in versions.items()]
    lines += [f"{'system':<20} {data['system']}", f"{'threads':<20} {data['threads']}"]
    lines += [f"{'GPU ' + str(i):<20} {gpu}" for i, gpu in enumerate(gpus)]
    lines += [f"{'no GPU':<20} {cuda.why_not()}"] if cuda.why_not() else []
    return data, "\n".join([*lines, _line(data["cache"])])


def cache(options: Namespace) -> tuple[dict[str, Any], str]:
    """Show or clear the folder of compiled kernels and of what autotune measured."""
    if options.do == "clear":
        before = _cached()
        for path in _files():
            with suppress(OSError):  # another process may clear it, too
                path.unlink()
        left = _cached()
        return {"cleared": before, "left": left}, f"cleared: {_line(before)}"
    found = _cached()
    return found, _line(found)


def error(options: Namespace) -> tuple[dict[str, Any], str]:
    """What a code says, why, and what to do."""
    kind = KINDS.get(options.code.upper())
    if kind is None:
        raise_unknown("code", options.code, KINDS, UNKNOWN_NAME)
    lines = [f"{kind.code}  {kind.error.__name__}: {kind.what}", f"  cause: {kind.cause}", f"  what to do: {kind.mend}"]
    data = {"code": kind.code, "class": kind.error.__name__, "what": kind.what, "cause": kind.cause, "mend": kind.mend}
    return data, "\n".join(lines)


def completion(options: Namespace) -> tuple[dict[str, Any], str]:
    """What a shell evaluates."""
    return {"script": SHELLS[options.shell]}, SHELLS[options.shell]


def _files() -> list[Any]:
    folder = compiled_kernels.CACHE
    return [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []


def _cached() -> dict[str, Any]:
    files = _files()
    sizes = []
    for path in files:
        with suppress(OSError):
            sizes.append(path.stat().st_size)
    tuned = sum(path.name.startswith("tuned-") for path in files)
    return {"folder": str(compiled_kernels.CACHE), "files": len(files), "tuned": tuned, "bytes": sum(sizes)}


def _line(found: dict[str, Any]) -> str:
    return (
        f"{'kernels on disk':<20} {found['files']} files, {found['bytes'] / 1e6:.1f} MB, {found['tuned']} of them from"
        f" autotune, in {found['folder']}"
    )
