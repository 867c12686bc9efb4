"""CompiledProgram: Program -> Graph -> passes -> Program, and what happened on the way.

    program --to_graph--> Graph --pass, verify--> ... --to_program--> program that runs

A program is compiled once for each set of fetched names, since a fetched value must survive every pass, and for each
kind of place, since what saves memory on one may take more on the other. It is compiled once more for runs with
`use_prune`: operators that do not run must not share a kernel with operators that do.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from minigraph.errors import FeedError, ProgramError, require
from minigraph.errors.kinds import CHANGED
from minigraph.ir.convert import to_graph, to_program
from minigraph.ir.diff import diff
from minigraph.ir.graph import Graph
from minigraph.ir.recorded import RecordedGraph
from minigraph.ir.verify import verify, verify_changes
from minigraph.kernels.groups import present
from minigraph.passes.communication.reductions import verify_reductions
from minigraph.passes.engine.history import BlockHistory, History, Recorder
from minigraph.passes.engine.log import PassReport
from minigraph.program import Operator, Program
from minigraph.program.blocks.held import sub_programs
from minigraph.program.copies import NotPickled
from minigraph.program.garbage import without_collection
from minigraph.program.prune import Prune, pruned_ops
from minigraph.program.text.html import folded, text
from minigraph.runtime import flags
from minigraph.runtime.devices import BACKENDS, PLANS_FOR, RUNS_AT, backend_of, kind_of
from minigraph.runtime.feeds import feed_types
from minigraph.runtime.kernel_list import KernelList, kernels_of
from minigraph.runtime.memory_report import MemoryReport, memory_report
from minigraph.runtime.options import RunOptions
from minigraph.runtime.parallel.traffic import traffic
from minigraph.runtime.targets import check_known, check_updates, read_targets

from . import report
from .data_parallel import DataParallel
from .dump_files import write_dot, write_texts
from .explanation import Explanation, kernel_remarks, rank_lines
from .paddle_graph import PaddleGraph
from .strategy import PASSES, RUN_FLAGS, BuildStrategy
from .validate import validate


class CompiledProgram(NotPickled):
    """A Program with the rewrites that a BuildStrategy asks for; run it like a Program.

    before, after  Programs; their str() shows one operator per line
    places         of the ranks in this process, if it has several
    Passes weigh memory for the kind of place, CPU or GPU: that of the Executor which runs it or of a report; where
    nobody names one, that of the default device. All that tells of a compilation tells of the latest one.
    Where the Program was changed after it was compiled, all but `before` refuse to speak of it.
    """

    _instead = "make another one with CompiledProgram(program, build_strategy)"
    places: tuple[Any, ...] = ()
    to_onnx: Callable[..., None]  # minigraph/onnx/faces.py hangs it on this class

    def __init__(self, program_or_graph: Program, build_strategy: BuildStrategy | None = None) -> None:
        program = program_or_graph  # Paddle's name; graphs are made inside
        require(isinstance(program, Program), f"CompiledProgram takes a Program, not {program!r}", ProgramError)
        require(
            build_strategy is None or isinstance(build_strategy, BuildStrategy),
            f"build_strategy is {build_strategy!r}, not a BuildStrategy", ProgramError,
        )  # fmt: skip
        self._program = program
        self._strategy = build_strategy if build_strategy is not None else BuildStrategy()
        self._parallel: DataParallel | None = None  # where ranks run it together
        self._made = _Compilations(program, self._strategy)

    def with_data_parallel(
        self, loss_name: str | None = None, build_strategy: BuildStrategy | None = None,
        exec_strategy: Any = None, share_vars_from: Any = None, places: Any = None,
    ) -> CompiledProgram:  # fmt: skip
        """The program for several ranks, each with its part of the batch. What is not named here changes nothing.

        loss_name  whose gradient begins as 1 / ranks, see BuildStrategy.gradient_scale_strategy
        places     one for each rank of this process; with fewer than two the ranks are the processes of the group
        """
        made = CompiledProgram(self._program, build_strategy if build_strategy is not None else self._strategy)
        parallel = DataParallel.of(loss_name, places, made._strategy, exec_strategy, share_vars_from)
        made._parallel = made._made.parallel = parallel
        made.places = parallel.places if parallel else ()
        return made

    def program_for(self, fetches: Any = (), prune: Prune = False, place: Any = None) -> Program:
        """The rewritten program in which values still exist, as those of a fetch_list; the Executor asks for it.

        prune   only with updates and what these values depend on, as `use_prune` of a run; a tuple of Operators
                names the updates
        place   where it will run, for which passes weigh memory; the default device for None, as of an Executor
        """
        return self._made.one_for(read_targets(fetches, self._program)[0], prune, place).after

    @property
    def options(self) -> RunOptions:
        """How Plans run the program."""
        return self._strategy.run_options()

    @property
    def strategy(self) -> BuildStrategy:
        return self._strategy

    @property
    def reports(self) -> dict[str, PassReport]:
        """What each pass of the latest compilation did and refused, by flag."""
        return self._made.latest().reports

    @property
    def before(self) -> Program:
        return self._program

    @property
    def after(self) -> Program:
        """The program of the latest run, or that of one on the default device that fetches nothing inside a fusion."""
        return self._made.latest().after

    @property
    def history(self) -> History:
        """Every rewrite in order: pass, rule, operators before and after, reason, user's line; print it.

        BuildStrategy(keep_history=True) keeps it while compiling; else the program is compiled once more, here.
        """
        compilation = self._made.latest()
        if compilation.history is None:
            with without_collection():
                compilation.history = compilation.again(self._strategy)
        return compilation.history

    def at(self, step: int) -> Program:
        """The program after so many rewrites of `history`: 0 is the program before the first one."""
        return self.history.at(step)

    @property
    def _graph(self) -> PaddleGraph:
        """`after` as Paddle's tests of passes read it."""
        return PaddleGraph(self.after)

    def diff(self) -> str:
        """The changes of the passes, one operator per line, `-` before and `+` after."""
        return diff(self.before, self.after)

    def explain(self) -> Explanation:
        """For each pass its rewrites, its refusals with reasons, its nearest miss; which other flags are on and off.

        And the kind of place. With several ranks what each sends. After a run on a GPU where its kernels differ from
        what operators ask for.
        """
        reports = (compilation := self._made.latest()).reports
        flags = [*(step.flag for step in PASSES), *RUN_FLAGS]
        lines = [report.render() for report in compilation.reports.values()]
        lines.append(f"{'compiled for':<32} {compilation.runs_at.__name__}")
        for state in ("on", "off"):
            named = [f for f in flags if f not in reports and getattr(self._strategy, f) == (state == "on")]
            lines += [f"{state:<32} {', '.join(named)}"] if named else []
        lines += [f"{flag:<32} on, but minigraph has no pass for it" for flag in self._strategy.idle_flags()]
        ranks = rank_lines(traffic(compilation.after, self._ranks), compilation.whole)
        return Explanation("\n".join([*lines, *ranks, *kernel_remarks(compilation.after)]))

    @property
    def _ranks(self) -> int:
        """How many ranks run the program together."""
        return self._parallel.ranks if self._parallel is not None else present().size

    def _repr_html_(self) -> str:
        """For notebooks: operators before and after, what changed and why, folded."""
        before, after = len(self.before.ops), len(self.after.ops)
        title = f"CompiledProgram {self.before.name}: {before} operators before, {after} after"
        parts = {"changes": text(self.diff()), "passes": self.explain()._repr_html_(), "program": text(str(self.after))}
        return folded(title, "".join(folded(name, part) for name, part in parts.items()), is_open=True)

    def memory_report(
        self, feed: Mapping[Any, Any] | None = None, fetch_list: Any = None, place: Any = None
    ) -> MemoryReport:
        """The memory of a run's temporaries: planned peak, largest residents, savings by sharing; print it.

        feed        {data variable or its name: array or shape}; needed where its sizes are not all declared
        fetch_list  as for Executor.run: fetched values live to the end
        place       a GPU for None, which need not be there; mg.CPUPlace() for a CPU
        """
        with without_collection():
            return memory_report(*self._as_run(feed, fetch_list, place), ranks=self._ranks)

    def kernels(
        self, feed: Mapping[Any, Any] | None = None, fetch_list: Any = None, place: Any = None, gpu: str = ""
    ) -> KernelList:
        """What a run gives to the GPU, call by call: name, grid, bytes, operators, user's line, source; print it.

        As for memory_report, a PlaceError for a CPU; `gpu` names one that need not be there ("h200", "a100").
        """
        program, types, fetches, at, options = self._as_run(feed, fetch_list, place)
        return kernels_of(backend_of(at), program, types, fetches, options, gpu)

    def report(
        self, path: str | Path, feed: Mapping[Any, Any] | None = None, fetch_list: Any = None, place: Any = None,
        profile: Any = None,
    ) -> Path:  # fmt: skip
        """Write one HTML file about this compilation, which a browser opens without a network; returns its path.

        Before and after side by side, each rewrite, refusals with reasons, source lines, the memory of a run.
        feed, fetch_list, place   those of memory_report; for None what the latest run fetched, where it was. Where
                                  sizes are missing the page says which
        profile   a profiler.Profiler of runs of this program: its times, and the last run as a timeline of streams
        """
        latest = self._made.latest()
        fetches = sorted(latest.fetches) if fetch_list is None else fetch_list
        at = latest.runs_at() if place is None else place
        memory: MemoryReport | FeedError
        try:
            memory = self.memory_report(feed, fetches, at)
        except FeedError as problem:
            if feed:
                raise
            memory = problem
        if fetch_list is None and type(at) is latest.runs_at:
            self._made.newest = latest  # perhaps of a run that was pruned
        latest = self._made.latest()
        with without_collection():
            facts = report.facts(latest.source, latest.after, self.history, latest.reports, memory, profile)
        return report.write(path, facts)

    def _as_run(self, feed: Mapping[Any, Any] | None, fetch_list: Any, place: Any) -> tuple[Any, ...]:
        """(program, types of feeds, names of fetches, place, options) of a run that is looked at without running it."""
        names, updates = read_targets([] if fetch_list is None else fetch_list, self._program)
        check_updates(updates, self._program)
        at = PLANS_FOR if place is None else place
        program = self.program_for(names, updates or False, at)
        types, options = feed_types(program, feed or {}), flags.applied(self.options, flags.values)
        return program, types, names, at, options


class _Compilations:
    """The compilations of one program, each made when it is first asked for.

    newest   of which a CompiledProgram speaks
    """

    def __init__(self, program: Program, strategy: BuildStrategy) -> None:
        self.program, self.strategy = program, strategy
        self.parallel: DataParallel | None = None
        self.known: dict[tuple[frozenset[str], Prune, type], _Compilation] = {}
        self.newest: _Compilation | None = None

    def latest(self) -> _Compilation:
        """The newest one; where there is none, that of a run on the default device that fetches nothing."""
        self._check_unchanged()
        return self.newest if self.newest is not None else self.one_for(())

    def one_for(self, fetches: Sequence[str], prune: Prune = False, place: Any = None) -> _Compilation:
        """That of a run at a place, the default device for None; now it is the newest one."""
        self.strategy.freeze()
        self._check_unchanged()
        key = frozenset(fetches), prune, kind_of(RUNS_AT.get() if place is None else place)
        if key not in self.known:
            check_known(fetches, self.program)
            with without_collection():
                self.known[key] = _Compilation(self.program, self.strategy, *key, self.parallel)
        self.newest = compilation = self.known[key]
        self._check_unchanged()  # another thread may add to the program meanwhile, and may set `newest`
        return compilation

    def _check_unchanged(self) -> None:
        require(
            self.newest is None or self.newest.version == self.program.version,
            f"program {self.program.name} was changed after it was compiled", CHANGED,
            "make a new CompiledProgram, or compile after the last change",
        )  # fmt: skip


class _Compilation:
    """One pass pipeline over one graph.

    source    the program before all passes: the user's, or what a rank runs of it
    runs_at   the kind of place that passes weigh memory for
    history   the rewrites in order, None where it is not kept
    """

    def __init__(
        self, program: Program, strategy: BuildStrategy, fetches: frozenset[str], prune: Prune, runs_at: type,
        parallel: DataParallel | None = None,
    ) -> None:  # fmt: skip
        program.check_whole()
        self.version, self.fetches, self.source, self.runs_at = program.version, fetches, program, runs_at
        self.whole: list[str] = []
        alone = parallel is None and strategy.gradient_scale_strategy.name == "Customized"
        require(not alone, "gradient_scale_strategy is Customized, and one rank runs the program", ProgramError,
                "pass target_gradients= to static.gradients, or places to with_data_parallel")  # fmt: skip
        if parallel is not None:
            program, self.whole = parallel.applied(program, fetches)
            self.source = program
            if isinstance(prune, tuple):
                numbers = {op.number for op in prune}
                prune = tuple(op for op in program.ops if op.number in numbers)
        self.ops = pruned_ops(program.ops, fetches, prune) if prune is not False else program.ops
        self.history: History | None = None
        try:
            self.after = self._passed(program, strategy, strategy.verify == "each_pass")
        except Exception:
            if strategy.verify == "structure":  # look after each pass, to say which one it was
                self._passed(program, strategy, True)
            raise
        if strategy.debug_graphviz_path:
            write_dot(Path(strategy.debug_graphviz_path), program, self.after)
        if strategy.dump_dir and self.history is not None:
            write_texts(Path(strategy.dump_dir), self.history, list(self.reports))

    def again(self, strategy: BuildStrategy) -> History:
        """The history of the same passes, which run once more."""
        other = object.__new__(_Compilation)
        other.version, other.fetches, other.runs_at = self.version, self.fetches, self.runs_at
        other.ops, other.source = self.ops, self.source
        kept = copy.copy(strategy)
        kept.keep_history, kept.verify = True, "off"
        other._passed(self.source, kept, False)
        assert other.history is not None
        return other.history

    def _passed(self, program: Program, strategy: BuildStrategy, each: bool) -> Program:
        """The program that runs; `each` verifies the graph after each pass, not only at the end."""
        self.reports: dict[str, PassReport] = {}
        self.history = None
        kept = strategy.keep_history or bool(strategy.dump_dir)
        return self._rewritten(program, self.ops, strategy, self.fetches, each, kept)

    def _rewritten(
        self, program: Program, ops: Sequence[Operator], strategy: BuildStrategy, fetches: frozenset[str], each: bool,
        kept: bool = False,
    ) -> Any:  # fmt: skip
        """These operators of the program after all passes; blocks that operators hold go through the same passes.

        kept   whether `history` keeps the rewrites
        """
        graph = to_graph(program, fetches, ops, RecordedGraph if kept else Graph)
        graph.on_gpu = BACKENDS[self.runs_at].is_gpu
        positions, blocks = {op: key for key, op in enumerate(graph.ops)} if kept else {}, list[BlockHistory]()
        for op, name, block in sub_programs(graph.ops):
            op.attrs[name] = self._rewritten(block, block.ops, strategy, frozenset(), each, kept)
            if self.history is not None:
                blocks.append(BlockHistory(positions[op], name, self.history))
        recorder = Recorder(graph, program, ops, blocks) if isinstance(graph, RecordedGraph) else None
        if recorder is not None:
            self.history = recorder.history
        previous = program if ops is program.ops else to_program(graph, program)
        if each:
            verify(graph)
        for step in PASSES:
            flag = step.flag
            if not getattr(strategy, flag):
                continue
            report = self.reports.setdefault(flag, PassReport(flag))
            start, count = time.perf_counter(), len(graph.nodes)
            if recorder is not None:
                recorder.listen(report, step.apply)
            step.apply(graph, report, **{name: getattr(strategy, name) for name in step.options})
            if recorder is not None:
                recorder.close(report, step.apply)
            report.seconds += time.perf_counter() - start
            changed = bool(graph.changed) or len(graph.nodes) != count
            if each:
                verify_changes(graph, flag)
            if changed and strategy.verify == "each_pass":
                now = to_program(graph, program)
                report.note = validate(previous, now, flag, graph.fetched, step.rounds, step.mends) or report.note
                previous = now
        if not self.reports:
            return previous
        if strategy.verify != "off":
            verify(graph, "the last pass", types=not each and graph.changed)
            verify_reductions(graph)
        return to_program(graph, program)
