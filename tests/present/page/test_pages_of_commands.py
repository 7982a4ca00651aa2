"""Pages of plans, training loops, validations, assignments and context ranks: every number is the command's JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from present.page.test_page import Read  # type: ignore[import-not-found]

from semu.cli import main
from semu.plan.action import KINDS
from semu.plan.plan import ExecutionPlan
from semu.units import GIB, MIB


class Tables(HTMLParser):
    """Tables of a page under their headings: ``{heading: [{column: number or text}]}``."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: dict[str, list[dict[str, Any]]] = {}
        self._heading = self._text = ""
        self._heads: list[str] = []
        self._cells: list[Any] = []
        self._value: str | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        if tag == "table":
            self._heads = []
        if tag in ("h2", "th", "td"):
            self._text, self._value = "", known.get("data-v")
        if tag == "tr":
            self._cells = []

    def handle_data(self, data: str) -> None:
        self._text += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "h2":
            self._heading = self._text
        elif tag == "th":
            self._heads.append(self._text)
        elif tag == "td":
            self._cells.append(self._text if self._value is None else float(self._value))
        elif tag == "tr" and self._cells and len(self._cells) == len(self._heads):
            row = dict(zip(self._heads, self._cells, strict=True))
            self.found.setdefault(self._heading, []).append(row)


@pytest.fixture
def commanded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command with ``--json --html``: its document, the page's tables, and what it carries."""

    def run(*words: str) -> tuple[dict[str, Any], Tables, Read, int]:
        path = tmp_path / "page.html"
        code = main([*words, "--json", "--html", str(path)])
        html = path.read_text(encoding="utf-8")
        return json.loads(capsys.readouterr().out), Tables(html), Read(html), code

    return run


def column(rows: list[dict[str, Any]], name: str) -> list[Any]:
    return [row[name] for row in rows]


SEARCHED = ("vlm-s", "--rollouts", "2", "--workers", "1")


@pytest.mark.parametrize("run", [("lm-7b", "--schedule", "zb-h1"), pytest.param(SEARCHED, marks=pytest.mark.slow)])
def test_plan(commanded: Any, run: tuple[str, ...]) -> None:
    """Ranks as in the document; stages and messages add up; a search says its gap, over Megatron-LM's timeline."""
    document, tables, read, code = commanded("plan", *run)
    assert code == 0
    ranks = tables.found["What every rank does and holds"]
    assert np.array(column(ranks, "peak [GiB]")) * GIB == pytest.approx(document["peak_memory_bytes"])
    assert np.array(column(ranks, "buffers [GiB]")) * GIB == pytest.approx(document["buffer_bytes"])
    assert sum(column(ranks, "stages")) == document["num_stages"]
    assert sum(column(ranks, "messages sent")) == document["num_messages"]
    assert sum(column(ranks, "actions")) == document["num_actions"]
    assert sum(column(ranks, "sent [MiB]")) * MIB == pytest.approx(max(document["num_bytes"]))
    runs = read.charts["chart0"]["runs"]
    assert runs[-1]["iterationS"] == document["iteration_time_s"] and runs[-1]["makespanS"] == document["makespan_s"]
    if "gap" in document:
        assert [one["name"] for one in runs] == ["Megatron-LM", "search"]
        assert document["gap"] == pytest.approx(document["makespan_s"] / document["lower_bound_s"] - 1, abs=1e-3)


def test_a_plan_that_is_there(commanded: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Stages and messages when the plan says; neither operators nor memory, which it does not know."""
    path = tmp_path / "plan.json"
    assert main(["plan", "lm-7b", "--schedule", "zb-h1", "-o", str(path)]) == 0
    capsys.readouterr()
    _, tables, read, code = commanded("plan", "--show", str(path))
    plan = ExecutionPlan.read(path)
    estimates = plan.estimates
    assert code == 0 and estimates is not None
    [run] = read.charts["chart0"]["runs"]
    assert (run["iterationS"], run["makespanS"]) == (estimates.iteration_time_s, estimates.makespan_s)
    starts = [
        start
        for own, times in zip(plan.actions, estimates.start_s, strict=True)
        for kind, start in zip(own.kind, times, strict=True)
        if KINDS[kind].is_stage
    ]
    assert read.of(run["stages"]["start"]).tolist() == starts and len(starts) == plan.num_stages
    assert sorted(read.of(run["outer"]["start"])) == sorted(estimates.transfer_start_s)
    assert run["memory"] == [] and set(map(len, run["stages"]["costly"])) == {0}
    assert sum(column(tables.found["What every rank does and holds"], "actions")) == plan.num_actions


def test_workload(commanded: Any, tmp_path: Path) -> None:
    """Modules and draws as in the document; ``--out`` writes the same page."""
    samples = tmp_path / "samples.jsonl"
    random.seed(3)
    lines = [
        {"text_tokens": random.randint(20, 400), "images": [{"patches": 1024, "tokens": 64}] * random.randint(0, 3)}
        for _ in range(200)
    ]
    samples.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ("workload", "vlm-7b", "--samples", str(samples), "--set", "training.global_batch=8", "--error", "0.3")
    document, tables, _, code = commanded(*words, "--out", str(tmp_path / "out"))
    assert code == 0
    rows = tables.found["Modules"]
    assert column(rows, "module") == [own["module"] for own in document["modules"]]
    assert column(rows, "GPUs in proportion") == [own["wanted_gpus"] for own in document["modules"]]
    assert np.array(column(rows, "share of work [%]")) / 100 == pytest.approx([m["share"] for m in document["modules"]])
    assert column(tables.found["Draws of batches"], "samples of a batch") == [t["samples"] for t in document["trials"]]
    assert (tmp_path / "out/report.html").read_bytes() == (tmp_path / "page.html").read_bytes()


@pytest.mark.slow
def test_training_loop(commanded: Any) -> None:
    document, tables, read, _ = commanded("plan", "vlm-s", "--iterations", "2", "--rollouts", "2", "--workers", "1")
    rows = tables.found["Iterations"]
    for name, key in (("plan [s]", "planned_s"), ("Megatron-LM [s]", "megatron_s"), ("vision", None)):
        expected = [row["items"]["vision"] if key is None else row[key] for row in document["rows"]]
        assert column(rows, name) == expected
    assert column(rows, "planned in [s]") == [row["latency_s"] for row in document["measured"]["rows"]]
    series = read.charts["chart0"]["series"]
    assert read.of(series[2]["of"]).tolist() == [row["megatron_s"] for row in document["rows"]]
    timelines = [chart["runs"] for chart in read.charts.values() if chart["kind"] == "timeline"]
    assert timelines[0][1]["iterationS"] == document["rows"][0]["planned_s"], "the first iteration is among them"
    times = [(row["megatron_s"], row["planned_s"]) for row in document["rows"]]
    assert {tuple(run["iterationS"] for run in runs) for runs in timelines} == set(times), "two: the best and worst"


def test_validation(commanded: Any) -> None:
    """Rows, groups and dots; the worst first among those explained."""
    document, tables, read, _ = commanded("validate", "--group", "h100")
    own = [row for row in document["rows"] if row["scored"]]
    rows = tables.found["Rows"]
    assert column(rows, "row") == [row["id"] for row in document["rows"]]
    assert column(rows, "error [%]") == [row["time_error_percent"] for row in document["rows"]]
    groups = tables.found["Errors of time by group"]
    assert groups[0]["mean error [%]"] == document["overall"]["time"]["mape"]
    assert column(groups[1:], "mean error [%]") == [group["time"]["mape"] for group in document["groups"]]
    dots = read.charts["chart0"]
    assert read.of(dots["x"]["of"]).tolist() == [row["measured_iteration_time_s"] for row in own]
    assert read.of(dots["y"]["of"]).tolist() == [row["predicted_iteration_time_s"] for row in own]
    assert read.of(dots["high"]).tolist() == [row["predicted_interval_high_s"] for row in own]
    assert [bool(one) for one in read.of(dots["fits"])] == [row["inside_interval"] for row in own]
    worst = tables.found["The rows furthest off"]
    assert worst[0]["error [%]"] == document["overall"]["time"]["worst"]
    assert worst[0]["row"] == document["overall"]["time"]["worst_id"]


def test_own_run(commanded: Any, tmp_path: Path) -> None:
    """A run beside a log of Megatron-LM's form."""
    log = tmp_path / "run.log"
    lines = [
        f" [2025-01-01 00:00:00] iteration {number:8d}/ 100 | consumed samples: {number * 64:12d} | "
        f"elapsed time per iteration (ms): {2000 + number % 3}.0 | global batch size:    64 | lm loss: 5.0E+00 |"
        for number in range(1, 30)
    ]
    log.write_text("\n".join(lines) + "\n")
    document, tables, _, _ = commanded("validate", "--run", "lm-7b", "--log", str(log))
    rows = tables.found["Quantities"]
    assert column(rows, "measured") == [row["measured"] for row in document["quantities"]]
    assert column(rows, "simulated") == [row["simulated"] for row in document["quantities"]]


def samples(path: Path, seed: int) -> Path:
    draw = random.Random(seed)
    lines = [
        {
            "id": f"s{i}",
            "text_tokens": draw.randint(50, 900),
            "images": [{"patches": 1024, "tokens": 64}] * draw.randint(0, 6),
        }
        for i in range(400)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_assignment(commanded: Any, tmp_path: Path) -> None:
    """Methods, and the load of every microbatch under each of them."""
    file = samples(tmp_path / "samples.jsonl", 3)
    run = ("vlm-s", "--cluster", "h800:2x8", "--parallel", "dp2-tp2-pp4", "--samples", str(file))
    document, tables, read, _ = commanded("assign", *run, "--method", "order,random")
    methods = tables.found["Methods"]
    for name, key in (("method", "method"), ("iteration [s]", "iteration_time_s"), ("its bound [s]", "bound_s")):
        assert column(methods, name) == [row[key] for row in document["methods"]]
    rows = tables.found[f"Microbatches as {document['best']} has them"]
    for module, loads in document["loads_s"].items():
        assert column(rows, f"{module} [s]") == [load for replica in loads for load in replica]
        heaviest = max(max(replica) for replica in loads) / np.mean(loads)
        best = next(row for row in document["methods"] if row["method"] == document["best"])
        assert heaviest == pytest.approx(best["balance"][module])
    assert sum(column(rows, "tokens")) == next(row["tokens"] for row in document["methods"])
    matrix = read.charts["chart0"]
    assert [panel["name"].split(":")[0] for panel in matrix["panels"]][::2] == [
        r["method"] for r in document["methods"]
    ]
    first = np.array(document["loads_s"]["vit"]).ravel()
    assert np.allclose(read.of(matrix["panels"][0]["of"]), first, rtol=1e-6)


def test_context(commanded: Any) -> None:
    """Policies, tiles of every rank, and squares of a causal mask: half of all, cut on the diagonal alone."""
    run = ("llama3-8b", "--cluster", "h100:2x8", "--parallel", "tp4-cp4", "--set", "training.seq_len=8192")
    document, tables, read, _ = commanded("context", *run, "--policies", "contiguous,lpt")
    by_name = {row["policy"]: row for row in document["policies"]}
    for row in tables.found["Policies"]:
        assert row["iteration [s]"] == by_name[row["policy"]]["iteration_s"]
        assert row["tiles max/mean"] == by_name[row["policy"]]["tiles"]
    work = tables.found["Work of every rank in the largest microbatch"]
    tiles = document["largest_microbatch"]["tiles_of_ranks"]
    assert column(work, "tiles") == [one for own in tiles.values() for one in own]
    matrix = read.charts["chart0"]
    edge = matrix["rows"]["count"]
    assert edge == 8192 // 128
    squares = read.of(next(one["of"] for one in matrix["panels"] if one["name"] == "contiguous")).reshape(edge, edge)
    assert np.array_equal(squares > 0, np.tri(edge, dtype=bool))
    owner, is_full = (squares.astype(int) - 1) // 2, squares % 2 == 0
    below = np.tri(edge, k=-1, dtype=bool)
    assert is_full[below].all() and not is_full[np.eye(edge, dtype=bool)].any()
    assert np.array_equal(owner[:, 0], np.arange(edge) // (edge // 4))
    assert tiles["contiguous"] == [float((owner[np.tri(edge, dtype=bool)] == rank).sum()) for rank in range(4)]


def _written(text: str) -> Iterator[str]:
    yield from (line.split("wrote ")[1] for line in text.splitlines() if "wrote " in line)


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "lm-7b", "--schedule", "1f1b"),
        ("context", "llama3-8b", "--cluster", "h100:2x8", "--parallel", "tp4-cp4", "--policies", "lpt"),
        ("validate", "--group", "h100"),
    ],
    ids=lambda words: words[0],
)
def test_out_has_a_page(words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--out`` writes the page beside the rest and says so."""
    assert main([*words, "--out", str(tmp_path / "out")]) == 0
    written = list(_written(capsys.readouterr().err))
    assert str(tmp_path / "out" / "report.html") in written
    assert sorted(map(str, (tmp_path / "out").iterdir())) == sorted(written)
