"""compiled.report(): its data, its model under node, and the page in a headless browser where there is one."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import numpy as np
import pytest

import minigraph as mg
from minigraph.compiler.report import page
from minigraph.compiler.report.timeline import timeline
from minigraph.compiler.validate import made_up_values
from minigraph.errors import FeedError, ProgramError
from minigraph.runtime.kernel_list import Kernel
from minigraph.static import BuildStrategy, CompiledProgram
from tests.gpu.capture import Case, trace
from tests.support import gpu_stub, report_pages
from tests.support.report_pages import (
    BAD,
    FOLDER,
    compiled,
    facts_in,
    in_browser,
    network,
    under_node,
)

MOST_BYTES = 2_000_000  # for 1,000 operators


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """(CompiledProgram, path of its report)"""
    made, loss = compiled(name=BAD)
    return made, made.report(tmp_path_factory.mktemp("report") / "report.html", fetch_list=[loss])


@pytest.fixture(scope="module")
def facts(small):
    return facts_in(small[1].read_text(encoding="utf-8"))


def test_the_data_is_the_history(small, facts):
    made, _ = small
    assert len(facts["steps"]) == len(made.history) > 5
    assert [s["flag"] for s in facts["steps"]] == [s.flag for s in made.history]
    assert len(facts["initial"]) == len(made.before.ops)
    source = Path(report_pages.__file__).read_text(encoding="utf-8").splitlines()
    for file, line, first, lines in facts["sites"]:
        assert file.endswith("report_pages.py")
        assert lines[line - first] == source[line - 1]
        assert len(lines) == 7
    assert facts["memory"]["planned"] > 0
    assert facts["summary"][1][0] == f"{len(made.before.ops)} operators"


def test_refusals_have_their_reasons(tmp_path):
    main, loss = network()
    made = CompiledProgram(main, BuildStrategy(fuse_gemm_epilogue=True))
    inner = next(op for op in main.ops if op.type == "elementwise_add").output_arg_names[0]
    made.program_for([loss.name, inner])
    shown = facts_in(made.report(tmp_path / "a.html").read_text(encoding="utf-8"))["refusals"]
    reasons = [(r["rule"], r["where"], r["reason"]) for r in shown]
    reason = f"{inner} is fetched, the fused operator would not produce it"
    assert ("LinearGelu", "gelu gelu_0.tmp_0", reason) in reasons


def test_no_name_is_markup(small):
    text = small[1].read_text(encoding="utf-8")
    assert BAD not in text
    assert text.count("</script>") == 9
    assert text.count("<script") == 9
    assert "://" not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)


def test_text_is_never_read_as_markup():
    """Nothing in our scripts makes elements of text, asks a network or evaluates."""
    for path in FOLDER.glob("*.js"):
        source = path.read_text(encoding="utf-8")
        forbidden = r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|fetch\(|XMLHttp|import\("
        assert not re.search(forbidden, source)
        assert len(source.splitlines()) <= 400
        assert all(len(line) <= 120 for line in source.splitlines())
    assert "default-src 'none'" in (FOLDER / "page.html").read_text(encoding="utf-8")


def test_libraries_are_whole_and_have_their_licences():
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (FOLDER / "bundle").glob("*.js")}
    assert sums == {
        "cytoscape.min.js": "081591ab735b2b6a3b31a3c60f8f3a3e2fee8c92939e0c7820ad1208571b6cd8",
        "cytoscape-dagre.min.js": "c9b231f93aa504cccf6129ca6518929bbebb343a8b1faacb5d5357af147e71b6",
    }
    for name in ("cytoscape", "cytoscape-dagre", "dagre"):
        assert "Permission is hereby granted" in (FOLDER / "bundle" / f"{name}.LICENSE.txt").read_text(encoding="utf-8")


def test_a_thousand_operators_are_less_than_two_megabytes(tmp_path):
    made, loss = compiled(90, scoped=False)
    assert len(made.before.ops) > 900
    assert made.report(tmp_path / "a.html", fetch_list=[loss]).stat().st_size < MOST_BYTES


def test_sizes_that_are_missing_are_said_not_raised(tmp_path):
    main = mg.static.Program("open")
    with mg.static.program_guard(main, mg.static.Program()):
        loss = mg.mean(mg.static.data("x", [None, 3]))
    made = CompiledProgram(main, BuildStrategy())
    unknown = facts_in(made.report(tmp_path / "a.html").read_text(encoding="utf-8"))
    assert "depends on the shape of x" in unknown["memory"]["why"]
    known = facts_in(made.report(tmp_path / "a.html", {"x": [2, 3]}, [loss]).read_text(encoding="utf-8"))
    assert known["memory"]["planned"] > 0
    with pytest.raises(FeedError):
        made.report(tmp_path / "a.html", {"y": [2, 3]})


def test_a_file_that_cannot_be_written_is_one_error(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ProgramError, match="cannot be written"):
        compiled()[0].report(tmp_path / "file" / "a.html")


def test_parts_are_put_in_once():
    shown = page({"name": "{{scripts}}{{facts}}"})
    assert shown.count("function makeModel") == 1


# the model, under node


def test_programs_of_all_steps_are_those_of_python(small, facts, tmp_path):
    made, _ = small
    script = "return [...Array(model.last + 1).keys()].map((i) => model.at(i).map((op) => [op.type, op.name]))"
    found = under_node(facts, script, tmp_path)
    for i, ops in enumerate(found):
        assert ops == [[op.type, next(iter(op.output_arg_names), "")] for op in made.at(i).ops]


def test_folded_boxes_hold_every_operator_once(facts, tmp_path):
    script = """
      const folded = model.view(0, new Set()), all = new Set(model.boxes(0).keys()), open = model.view(0, all);
      return { folded: folded.nodes.map((n) => [n.name, n.count]),
               ops: open.nodes.filter((n) => n.kind === "op").length,
               boxes: open.nodes.filter((n) => n.kind === "open").map((n) => n.box),
               dangling: open.edges.filter((e) => !open.nodes.some((n) => n.id === e.to)).length };"""
    found = under_node(facts, script, tmp_path)
    operators = len(facts["initial"])
    assert sum(count for name, count in found["folded"] if count) == operators == found["ops"]
    assert sorted(name for name, _ in found["folded"]) == sorted([BAD, "forward", "backward", "optimize"])
    assert {"/forward/layer0", "/backward/layer0"} <= set(found["boxes"])
    assert found["dangling"] == 0


def test_an_operator_alone_in_its_box_is_shown_in_its_place(facts, tmp_path):
    script = "return model.view(model.last, new Set()).nodes.map((n) => [n.kind, n.name])"
    found = under_node(facts, script, tmp_path)
    assert ["op", "fused_adamw"] in found
    assert ["box", "optimize"] not in found


def test_gradients_that_were_fused_stay_in_their_layer(facts):
    last = {key: state for step in facts["steps"] for key, _, state in step["changes"]}
    made = [facts["states"][i] for i in last.values() if i >= 0]
    fused = [row[5] for row in made if row[4] == "backward" and row[0] in ("matmul_accumulate", "fused_elementwise")]
    assert fused and all(scope.startswith("layer") for scope in fused)


def test_search_finds_types_names_scopes_and_files(facts, tmp_path):
    script = """return ["gelu layer1", "LINEAR_0.w_0", "report_pages.py:", "no such", ""]
      .map((text) => model.search(text, 0).length)"""
    gelu, weight, file, *nothing = under_node(facts, script, tmp_path)
    assert gelu >= 2
    assert weight >= 3
    assert file == len(facts["initial"])
    assert nothing == [0, 0]


def test_memory_that_lives_is_counted_by_steps(facts, tmp_path):
    live = under_node(facts, "return memory.liveBytes(model.facts.memory.residents)", tmp_path)
    residents = facts["memory"]["residents"]
    expected = [sum(n for _, _, n, a, b, _ in residents if a <= i <= b) for i in range(len(live))]
    assert live == expected
    at = facts["memory"]["at"]
    assert live[at] >= 0.9 * max(live)  # it counts rounded sizes


def test_ten_thousand_operators_are_few_nodes_until_they_are_unfolded(facts, tmp_path):
    many = dict(facts)
    one = next(row for row in facts["states"] if row[0] == "gelu")
    many["states"] = [[*one[:5], "", one[6], i, i, ""] for i in range(10_000)]
    many["initial"], many["steps"] = [[i, i] for i in range(10_000)], []
    script = """const open = model.unfolded(0), view = model.view(0, open);
      const deep = model.view(0, new Set([...open, ...model.around(model.at(0)[7777])]));
      return [view.nodes.length, deep.nodes.some((n) => n.id === "op:7777"), deep.nodes.length]"""
    few, seen, more = under_node(many, script, tmp_path)
    assert few <= 30
    assert seen
    assert more < 150


# the page, in a browser


@pytest.fixture(scope="module")
def page_of(small):
    return small[1]


def test_the_page_loads_selects_steps_and_searches(small, page_of):
    script = """
      const { model, now, panes } = report, say = (id) => document.getElementById(id).textContent, told = {};
      const press = (key, target = document.body) =>
        target.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
      told.titles = [say("left-title"), say("right-title")];
      told.hurt = window.hurt === undefined;
      told.data = panes[0].cy.nodes('[kind = "data"]').map((n) => n.data("node").name);
      document.getElementById("steps").click();
      told.first = now.step;
      press("ArrowRight");
      told.second = now.step;
      told.said = say("told");
      const slider = document.getElementById("step");
      slider.value = model.last; slider.dispatchEvent(new Event("input"));
      told.last = now.step;
      const search = document.getElementById("search");
      search.value = "fused_gemm_epilogue layer1"; search.dispatchEvent(new Event("input"));
      told.found = say("details");
      press("Enter", search);
      told.details = say("details");
      told.selected = panes[1].cy.$(":selected").length;
      press("Escape");
      told.nothing = now.picked;
      document.getElementById("fold").click();
      told.folded = panes[1].cy.nodes().length;
      panes[1].cy.nodes('[kind = "box"]')[0].emit("tap");
      told.unfolded = panes[1].cy.nodes().length;
      const before = panes[1].cy.zoom(); press("+"); told.zoomed = panes[1].cy.zoom() > before;
      const dark = getComputedStyle(document.body).backgroundColor; document.getElementById("theme").click();
      told.themed = getComputedStyle(document.body).backgroundColor !== dark;
      document.getElementById("peak").click();
      told.peak = say("living-title");
      dispatchEvent(new Event("beforeprint")); told.printed = document.querySelectorAll("img.print").length;
      dispatchEvent(new Event("afterprint")); told.cleared = document.querySelectorAll("img.print").length;
      told.wide = document.documentElement.scrollWidth <= innerWidth;
      told.high = document.getElementById("left").clientHeight > 150;
      return told;"""
    found = in_browser(page_of, script)
    assert found["errors"] == []
    told, made = found["result"], small[0]
    assert told["titles"] == [f"Before: {len(made.before.ops)} operators", f"After: {len(made.after.ops)} operators"]
    assert told["hurt"]
    assert told["data"] == [BAD]
    assert (told["first"], told["second"], told["last"]) == (1, 2, len(made.history))
    assert made.history[1].flag in told["said"]
    assert "with “fused_gemm_epilogue layer1”" in told["found"]
    for part in ("fused_gemm_epilogue", "Made of", "matmul linear_3.tmp_0", "linear_2.w_0 : f32[8,8]", "activation"):
        assert part in told["details"]
    assert "report_pages.py" in told["details"]
    assert told["selected"] == 1
    assert told["nothing"] is None
    assert told["folded"] == 4
    assert told["unfolded"] > 4
    assert told["zoomed"]
    assert told["themed"]
    assert "the peak" in told["peak"]
    assert (told["printed"], told["cleared"]) == (2, 0)
    assert told["wide"] and told["high"]


def test_what_was_refused_is_the_first_thing_that_a_page_says(tmp_path):
    main, loss = network(1)
    made = CompiledProgram(main, BuildStrategy(fuse_gemm_epilogue=True))
    inner = next(op for op in main.ops if op.type == "elementwise_add").output_arg_names[0]
    path = made.report(tmp_path / "a.html", fetch_list=[loss, inner])
    script = """
      const say = () => document.getElementById("details").textContent, told = [say()];
      document.querySelector("#details .link").click();
      return [...told, say(), document.getElementById("told").textContent];"""
    found = in_browser(path, script)
    assert found["errors"] == []
    first, picked, told = found["result"]
    reason = f"{inner} is fetched, the fused operator would not produce it"
    assert first.startswith("Refusedgelu gelu_0.tmp_0, fuse_gemm_epilogue: ") and reason in first
    assert "report_pages.py:" in first and picked.startswith("gelu") and reason in picked
    refused = made.reports["fuse_gemm_epilogue"].refused
    assert told == f"Rewrites: {len(made.history)}, refusals: {len(refused)}"


def test_times_of_a_profile_are_shown(tmp_path):
    made, loss = compiled(2)
    exe, scope = mg.static.Executor(), mg.static.Scope()
    for name, value in made_up_values(made.before).items():
        if made.before.vars[name].persistable:
            scope.write(name, value.astype(made.before.vars[name].dtype))
    with mg.profiler.Profiler() as profile:
        exe.run(made, {"x": np.ones((4, 8), "float32")}, [loss], scope=scope)
    path = made.report(tmp_path / "report.html", fetch_list=[loss], profile=profile)
    script = """
      const search = document.getElementById("search");
      search.value = "fused_gemm_epilogue layer1"; search.dispatchEvent(new Event("input"));
      search.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true }));
      const say = (id) => document.getElementById(id).textContent;
      return [say("details"), say("tables")];"""
    found = in_browser(path, script)
    assert found["errors"] == []
    details, tables = found["result"]
    row = next(row for row in profile.rows() if row.name == "fused_gemm_epilogue gelu_1.tmp_0")
    assert f"Measuredtime{row.seconds * 1e3:.4f} ms" in details
    assert f"FLOPs{row.flops:,}" in details
    assert f"Times of a run: {profile.seconds * 1e3:.4f} ms" in tables
    assert f"A run on CPU: {len(profile.runs[0].calls)} calls" in tables
    assert "stream 0 works 100 % of it" in tables


@pytest.fixture
def on_a_gpu(monkeypatch, tmp_path):
    """(Profiler, path of the report) of a step whose graph has two streams, on the stub of a GPU."""
    if gpu_stub.cuda_host.COMPILER is None:
        pytest.skip("kernels on a CPU need g++")
    gpu_stub.installed(monkeypatch)
    case = Case()
    made, exe, scope = case.compiled(), mg.static.Executor(mg.CUDAPlace(0)), case.scope()
    trace(case, made, exe, scope, 2)
    with mg.profiler.Profiler() as profile:
        trace(case, made, exe, scope, 1)
    feed = {name: value.shape for name, value in case.feed(0).items()}
    return profile, made.report(tmp_path / "report.html", feed, [case.total, case.x_grad], profile=profile)


def test_a_run_on_a_gpu_is_a_timeline_of_streams(on_a_gpu, tmp_path):
    profile, path = on_a_gpu
    (run,), facts = profile.runs, facts_in(path.read_text(encoding="utf-8"))
    shown = facts["timeline"]
    assert shown["device"] == "GPU 0"
    assert [call[3:6] for call in shown["calls"]] == [[call.stream, call.start, call.seconds] for call in run.calls]
    assert {call[3] for call in shown["calls"]} == {0, 1}
    kernels = [call.kernel for call in run.calls]
    assert [call[1] for call in shown["calls"]] == [kernel.name for kernel in kernels]
    assert [call[7] for call in shown["calls"]] == ["x".join(map(str, kernel.block or ())) for kernel in kernels]
    tiles = [", ".join(f"{size} {name}" for name, size in kernel.tiles.items()) for kernel in kernels]
    assert [call[8] for call in shown["calls"]] == tiles and any(tiles)
    script = f"const t = require({str(FOLDER / 'timeline.js')!r}), c = model.facts.timeline.calls;" \
        "return [t.lanes(c), t.busy(c)]"  # fmt: skip
    boxes, busy = under_node(facts, script, tmp_path)
    end = max(call.start + call.seconds for call in run.calls)
    for (stream, begin, width), call in zip(boxes, run.calls, strict=True):
        units = 1000 * call.start / end, 1000 * call.seconds / end
        assert (stream, begin, width) == pytest.approx((call.stream, *units))
    for stream, share in busy:
        assert share == pytest.approx(sum(call.seconds for call in run.calls if call.stream == stream) / end)
        assert 0 < share <= 1


def test_a_call_of_the_timeline_is_chosen_by_mouse_and_keyboard(on_a_gpu):
    profile, path = on_a_gpu
    script = """
      const chart = document.getElementById("streams"), say = () => document.getElementById("call").textContent;
      const press = (key) => chart.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
      const told = [chart.querySelectorAll("rect").length, say()];
      press("Home"); told.push(say()); press("ArrowRight"); told.push(say());
      chart.querySelectorAll("rect")[3].dispatchEvent(new MouseEvent("click", { bubbles: true })); told.push(say());
      document.querySelector("#call .link").click(); told.push(document.getElementById("details").textContent);
      told.push(document.documentElement.scrollWidth <= innerWidth);
      return told;"""
    found = in_browser(path, script)
    assert found["errors"] == []
    count, longest, first, second, clicked, details, fits = found["result"]
    calls = profile.runs[0].calls
    assert count == len(calls)
    assert longest.startswith(f"Call {1 + max(range(count), key=lambda i: calls[i].seconds)} of {count}")
    for number, said in ((1, first), (2, second), (4, clicked)):
        call = calls[number - 1]
        assert said.startswith(f"Call {number} of {count}operator{call.op.type} ")
        assert f"kernel{call.kernel.name}" in said and f"stream{call.stream}" in said
    assert details.startswith(calls[3].op.type) and calls[3].kernel.name in details
    assert fits


def test_tiles_are_the_sizes_that_a_source_was_made_for():
    source = "#define BM 64\n#define RELU 1\n#define STAGES 3\n#define BN (BM)\n"
    assert Kernel("f", None, None, 0, None, (), source, "").tiles == {"BM": 64, "STAGES": 3}


def test_a_run_of_another_program_is_no_timeline():
    main, _ = network(1)
    with mg.profiler.Profiler() as profile:
        mg.static.Executor().run(mg.static.Program("other"))
    assert timeline(main, profile.runs) is None


def test_nothing_is_wider_than_a_narrow_window(page_of):
    script = "return [document.documentElement.scrollWidth <= innerWidth, document.getElementById('left').clientHeight]"
    found = in_browser(page_of, script, (500, 844))
    assert found["errors"] == []
    fits, height = found["result"]
    assert fits
    assert height > 150


def test_an_error_in_the_page_is_seen(page_of):
    planted, thrown = in_browser(page_of, "console.error('planted'); return nobody")["errors"]
    assert planted == "planted" and "nobody" in thrown
