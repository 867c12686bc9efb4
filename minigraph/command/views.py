"""Commands that look at a program: dump, explain, diff, summary, report, verify; compile makes its kernels."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from minigraph.compiler.compiler import CompiledProgram
from minigraph.errors import VerifyError
from minigraph.ir.diff import diff as program_diff
from minigraph.ir.diff import first_difference
from minigraph.ir.dot import to_dot
from minigraph.kernels.cuda.record.compile import CACHE
from minigraph.program import Program, default_startup_program
from minigraph.runtime.kernel_list import KernelList

from .runs import profiled
from .subject import subject


def dump(options: Namespace) -> tuple[dict[str, Any], str]:
    """The text of a program, at one step or in files."""
    flags = {"dump_dir": options.dir} if options.dir else {}
    compiled = subject(options).compiled(**flags)
    program = compiled.after if options.step is None else compiled.at(options.step)
    text = to_dot(program, compiled.before) if options.dot else str(program)
    return {"text": text, "operators": len(program.ops), "rewrites": len(compiled.history)}, text


def explain(options: Namespace) -> tuple[dict[str, Any], str]:
    """Rewrites and refusals of each pass."""
    compiled = subject(options).compiled()
    passes = {
        flag: {
            "applied": [
                {"rule": a.rule, "old": list(a.old), "new": a.new, "line": str(a.site or "")} for a in r.applied
            ],
            "refused": [
                {"rule": x.rule, "where": x.where, "reason": x.reason, "line": str(x.site or "")} for x in r.refused
            ],
        }
        for flag, r in compiled.reports.items()
    }
    return {"program": compiled.before.name, "passes": passes}, str(compiled.explain())


def diff(options: Namespace) -> tuple[dict[str, Any], str]:
    """Operators before and after the rewrites; of two sources, those of one and of the other."""
    if options.other is None:
        compiled = subject(options).compiled()
        before, after, first = compiled.before, compiled.after, None
    else:
        before, after = _compared(options), _compared(Namespace(**{**vars(options), "source": options.other}))
        first = first_difference(before, after)
    text = program_diff(before, after)
    data = {"before": len(before.ops), "after": len(after.ops), "diff": text.splitlines(), "failed": first is not None}
    return data | {"first_difference": first}, f"{text}\nfirst difference: {first}" if first else text


def _compared(options: Namespace) -> Program:
    """A source's program as it stands; with --passes as they rewrite it."""
    found = subject(options)
    return found.program if options.passes is None else found.compiled().after


def summary(options: Namespace) -> tuple[dict[str, Any], str]:
    """What each operator computes, for the sizes that are fed."""
    found = subject(options)
    program = found.compiled().after if options.after else found.program
    made = program.summary({name: list(map(int, array.shape)) for name, array in _arrays(found.feed).items()})
    rows = [
        {
            "operator": r.op.type, "output": r.output, "type": str(r.type or ""), "parameters": r.parameters,
            "flops": r.flops, "bytes": r.nbytes, "line": str(r.op.site or ""),
        }
        for r in made.rows
    ]  # fmt: skip
    totals = {"operators": len(rows), "parameters": made.parameters, "flops": made.flops, "bytes": made.nbytes}
    return {"program": program.name, "rows": rows, "totals": totals}, str(made)


def compile(options: Namespace) -> tuple[dict[str, Any], str]:
    """Compile the CUDA kernels of a step, and of the default start-up program, for a GPU that need not be there."""
    found, started = subject(options), default_startup_program()
    lists = [found.compiled().kernels(found.feed, found.fetches, gpu=options.gpu)]
    if started.ops:
        lists.append(CompiledProgram(started).kernels(gpu=options.gpu))
    made = KernelList(kernel for one in lists for kernel in one)
    count = made.compile(options.out)
    arch = made[0].arch if made else ""
    data = {"kernels": count, "calls": len(made), "arch": arch, "folder": str(options.out or CACHE)}
    return data, f"{count} kernels for {arch} in {data['folder']}"


def report(options: Namespace) -> tuple[dict[str, Any], str]:
    """The page of compiled.report()."""
    found = subject(options)
    shapes = {name: list(array.shape) for name, array in _arrays(found.feed).items()}
    compiled = found.compiled(keep_history=True)
    profile = profiled(found.runner(compiled), options.profile) if options.profile else None
    path = compiled.report(options.out, shapes, list(found.fetches), found.place, profile)
    return {"path": str(path), "bytes": path.stat().st_size}, f"{path} written; a browser opens it without a network"


def verify(options: Namespace) -> tuple[dict[str, Any], str]:
    """Each pass against the program before it."""
    found = subject(options)
    try:
        compiled = found.compiled(verify="each_pass")
    except VerifyError as problem:
        return {"failed": True, "problem": str(problem)}, f"a pass changed a result\n{problem}"
    notes = {flag: r.note for flag, r in compiled.reports.items() if r.note}
    lines = [f"passes verified: {len(compiled.reports)}; every value that both programs have is the same after each"]
    lines += [f"{flag}: {note}" for flag, note in notes.items()]
    return {"failed": False, "passes": list(compiled.reports), "not_compared": notes}, "\n".join(lines)


def _arrays(feed: Any) -> dict[str, Any]:
    """What is fed and has a shape, by name."""
    return {getattr(key, "name", key): value for key, value in feed.items() if hasattr(value, "shape")}
