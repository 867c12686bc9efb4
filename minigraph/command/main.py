"""What the command line understands; `minigraph --help`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from minigraph.errors import MinigraphError, call_site
from minigraph.kernels.cuda.record.binder import CARDS
from minigraph.runtime.version import VERSION

from . import demo, launch, machine, runs, views
from .subject import NoSubject, ScriptFailed

INTERRUPTED = 130  # as shells have it
Answer = tuple[dict[str, Any], str]  # data for --json, text
CODES = "exit codes: 0 done; 1 an error, or verify or diff of two found a difference; 2 the command line is wrong"
FILES = """a source is a script, which runs until its first compiled step (else until a program is fed a second time,
else to its end), or a saved program: its text, a .pdmodel of save_inference_model, a file of mg.save, an ONNX file"""

# name: function, help; what else it takes
SOURCES: dict[str, tuple[Callable[[argparse.Namespace], Answer], str]] = {
    "dump": (views.dump, "the text of the program after all rewrites, or after --step N; --dir for all passes"),
    "explain": (views.explain, "what each pass did, what it refused and why"),
    "diff": (views.diff, "operators before and after the rewrites; of two sources, what differs between them"),
    "summary": (views.summary, "operators with types, parameters, FLOPs and bytes"),
    "report": (views.report, "one HTML page about the compilation"),
    "verify": (views.verify, "run each pass in float64 on made-up numbers and compare"),
    "compile": (views.compile, "the CUDA kernels of a step, before it runs and without a GPU"),
    "profile": (runs.profile, "times per operator, line or layer"),
    "bench": (runs.bench, "the time of a step without and with the rewrites"),
}
OTHERS: dict[str, tuple[Callable[[argparse.Namespace], Answer], str]] = {
    "info": (machine.info, "versions, GPU or why there is none, threads, caches"),
    "launch": (launch.launch, "run a script on several ranks of this machine: --nproc 4 script.py"),
    "demo": (demo.demo, "train a small network without and with rewrites"),
    "error": (machine.error, "what an error's code means: minigraph error MG-SHAPE-005"),
    "cache": (machine.cache, "compiled kernels on disk: show or clear them"),
    "completion": (machine.completion, "a script for a shell: eval \"$(minigraph completion bash)\""),
}
COMMANDS = {**SOURCES, **OTHERS}


def parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    made = argparse.ArgumentParser(
        prog="minigraph", description="Static graphs, rewritten: look at programs and at what passes do to them.",
        epilog=f"{FILES}; {CODES}",
    )  # fmt: skip
    made.add_argument("--version", action="version", version=f"minigraph {VERSION}")
    commands = made.add_subparsers(dest="command", metavar="command", required=True)
    own = {name: _command(commands, name) for name in COMMANDS}
    for name in SOURCES:
        _add_source(own[name])
    own["dump"].add_argument("--step", type=int, help="after so many rewrites; 0 is the program before them")
    own["dump"].add_argument("--dir", help="a folder for numbered texts, one for each pass")
    own["dump"].add_argument("--dot", action="store_true", help="Graphviz' language")
    own["report"].add_argument("--out", default="report.html", help="the file (report.html)")
    own["report"].add_argument("--profile", type=_count, metavar="STEPS", help="run so many steps and show their times")
    own["compile"].add_argument("--gpu", default="", help=f"{', '.join(CARDS)}; this machine's, else h200")
    own["compile"].add_argument("--out", help="a folder to be taken elsewhere, whose name is minigraph_kernels there")
    own["summary"].add_argument("--after", action="store_true", help="of the rewritten program")
    own["profile"].add_argument("--by", default="operator", choices=("operator", "type", "line", "layer"))
    own["profile"].add_argument("--trace", help="a file for Perfetto")
    for name in ("profile", "bench"):
        own[name].add_argument("--steps", type=_count, default=10, help="timed runs (10)")
    own["diff"].add_argument("other", nargs="?", help="a second script or saved program")
    own["error"].add_argument("code", help="as errors show it")
    own["launch"].add_argument("--nproc", type=int, required=True, metavar="N", help="ranks")
    own["launch"].add_argument("script", help="calls mg.distributed.init_parallel_env(); its arguments stand after --")
    own["cache"].add_argument("do", choices=("show", "clear"), nargs="?", default="show")
    own["completion"].add_argument("shell", choices=("bash", "zsh", "fish"))
    return made


def _command(commands: Any, name: str) -> argparse.ArgumentParser:
    text, notes = COMMANDS[name][1], f"{FILES}; {CODES}" if name in SOURCES else CODES
    made = commands.add_parser(name, help=text, description=text, epilog=notes)
    made.add_argument("--json", action="store_true", help="for programs")
    return made


def _add_source(command: argparse.ArgumentParser) -> None:
    command.add_argument("source", help="a script or a saved program; what stands after -- are the script's arguments")
    command.add_argument("--passes", help="all, none, or flags joined by commas; a script's own, else all")
    command.add_argument("--fetch", help="names joined by commas; what the script fetches, or what nobody reads")
    command.add_argument("--shape", action="append", default=[], metavar="NAME=SIZES",
                         help="x=32,64: sizes of a data variable that nobody feeds")  # fmt: skip
    command.add_argument("--place", choices=("cpu", "gpu"), help="the script's, else cpu")


def _count(text: str) -> int:
    """A whole number above 0."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text} is no number of steps, which is 1 or more")
    return int(text)


def _told(problem: MinigraphError, command: str) -> str:
    """The text of an error; where no line of a script led to it, the command did."""
    started = call_site()  # the line of the console script; None for `python -m minigraph`
    if (problem.site or problem.caller) in (None, started):
        problem.call, problem.site, problem.caller = problem.call or f"minigraph {command}", None, None
    return str(problem)


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; the exit code."""
    known = parser()
    line = list(sys.argv[1:] if arguments is None else arguments)
    end = line.index("--") if "--" in line else len(line)
    options = known.parse_args(line[:end], argparse.Namespace(args=line[end + 1 :]))
    try:
        data, text = COMMANDS[options.command][0](options)
    except NoSubject as problem:
        known.error(str(problem))
    except ScriptFailed as failed:
        sys.excepthook(type(failed.error), failed.error, failed.error.__traceback__)
        return 1
    except MinigraphError as problem:
        sys.stderr.write(f"{_told(problem, options.command)}\n")
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    try:
        sys.stdout.write(f"{json.dumps(data, indent=1) if options.json else text}\n")
        sys.stdout.flush()
    except BrokenPipeError:  # a reader such as `head` may stop early
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return int(data.get("failed", False))
