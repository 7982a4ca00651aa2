"""``python -m benchmarks.paper``: the frame around its scripts, with scripts made here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.paper import __main__ as frame
from benchmarks.paper import _run, _scripts, table1, worked_example
from benchmarks.paper._jobs import baseline, job_of, on_batch, seeds_of
from benchmarks.paper._page import Page, number
from benchmarks.paper._results import PaperResult, PaperRow, Verdict
from benchmarks.paper.choices import CHOICES, Choices
from semu.errors import ConfigError

ROWS = (
    PaperRow("a time", 10.0, 10.2, "s", sensitivity={"vpp 4": 12.0}, note="Table 0"),
    PaperRow("a gain", 20.0, 60.0, "%", note="nobody knows"),
    PaperRow("ours alone", None, 1.5, "GiB"),
)


class Made:
    """Scripts that return rows, or raise; remembers which ran."""

    def __init__(self, **errors: BaseException) -> None:
        self.errors = errors
        self.ran: list[str] = []

    def find(self, name: str) -> Made:
        self.name = name
        return self

    def run(self, choices: Choices, *, quick: bool, out: Path) -> PaperResult:
        self.ran.append(self.name)
        if self.name in self.errors:
            raise self.errors[self.name]
        picture = out / f"{self.name}.png"
        picture.write_bytes(b"\x89PNG")
        return PaperResult(self.name, "A title", f"DIP {self.name}", ROWS, (picture,), "What was run.")


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Made]:
    def use(**errors: BaseException) -> Made:
        made = Made(**errors)
        monkeypatch.setattr(frame, "SCRIPTS", ("one", "two", "three"))
        monkeypatch.setattr(_run, "find_script", made.find)
        return made

    return use


def test_all_scripts_run_in_order_and_one_that_fails_is_reported(
    scripts: Callable[..., Made], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = scripts(two=ConfigError("no such thing", where="here"))
    assert frame.main(["--all", "--jobs", "1", "--json", "--out", str(tmp_path)]) == 1
    assert made.ran == ["one", "two", "three"]
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert [item["name"] for item in document["results"]] == ["one", "three"]
    assert list(document["failed"]) == ["two"]
    assert "no such thing" in document["failed"]["two"]
    assert [row["verdict"] for row in document["results"][0]["rows"]] == ["settled", "differs", "not said"]
    report = (tmp_path / "README.md").read_text()
    assert "2 of 4 numbers that the papers print are settled, 2 differ" in report
    assert "Not finished: two." in report
    assert "| [DIP one](#one) | a time | 10 | 10.2 | s | 1.02 | settled | vpp 4: 12 |" in report
    assert "![DIP three: A title](three.png)" in report
    assert all(f"`{name}`" in report for name, _ in CHOICES)


def test_resume_takes_what_is_finished_under_the_same_choices(scripts: Callable[..., Made], tmp_path: Path) -> None:
    made = scripts(two=ValueError("broken"))
    assert frame.main(["--all", "--jobs", "1", "--out", str(tmp_path)]) == 1
    made = scripts()
    assert frame.main(["--all", "--jobs", "1", "--resume", "--out", str(tmp_path)]) == 0
    assert made.ran == ["two"]
    made = scripts()
    assert frame.main(["--all", "--jobs", "1", "--resume", "--quick", "--out", str(tmp_path)]) == 0
    assert made.ran == ["one", "two", "three"]  # small sizes are another kind of result
    (tmp_path / "one.png").unlink()
    (tmp_path / "two.json").write_text("{")
    made = scripts()
    assert frame.main(["--all", "--jobs", "1", "--resume", "--quick", "--out", str(tmp_path)]) == 0
    assert made.ran == ["one", "two"]


def test_a_changed_choice_is_another_result(tmp_path: Path) -> None:
    store = _run.Store(tmp_path, False, CHOICES)
    store.write(PaperResult("one", "t", "s", ROWS))
    assert store.read("one") == PaperResult("one", "t", "s", ROWS)
    assert _run.Store(tmp_path, False, CHOICES.changed(vpp=3)).read("one") is None
    other_paper = CHOICES.changed(cornstarch_split=32)
    assert _run.Store(tmp_path, False, other_paper).read("one") is not None
    store.write(PaperResult("cornstarch_balance", "t", "s", ROWS))
    assert _run.Store(tmp_path, False, other_paper).read("cornstarch_balance") is None


def test_ctrl_c_keeps_what_is_finished(scripts: Callable[..., Made], tmp_path: Path) -> None:
    made = scripts(two=KeyboardInterrupt())
    assert frame.main(["--all", "--jobs", "1", "--out", str(tmp_path)]) == 130
    assert made.ran == ["one", "two"]
    assert "DIP one" in (tmp_path / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.multiprocess
def test_scripts_in_processes_of_their_own(tmp_path: Path) -> None:
    results, failed, _ = _run.run_scripts(
        ["fig04", "nothing", "worked_example"], _run.Store(tmp_path, True, CHOICES), resume=False, jobs=2
    )
    assert [result.name for result in results] == ["fig04", "worked_example"]
    assert "ConfigError" in failed["nothing"]


def test_names_choose_scripts_and_unknown_ones_are_bad_input(
    scripts: Callable[..., Made], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = scripts()
    assert frame.main(["three", "one", "--jobs", "1", "--out", str(tmp_path)]) == 0
    assert made.ran == ["one", "three"]
    assert frame.main(["--out", str(tmp_path)]) == 2
    assert frame.main(["--publish", "--quick", "one", "--out", str(tmp_path)]) == 2
    with pytest.raises(ConfigError, match="tabel5"):
        _scripts.find_script("tabel5")
    capsys.readouterr()


def test_publishing_puts_pictures_into_a_folder(
    scripts: Callable[..., Made], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts()
    monkeypatch.setattr(frame, "PUBLISHED", tmp_path / "published")
    (tmp_path / "published").mkdir()
    assert frame.main(["--all", "--jobs", "1", "--publish", "--out", str(tmp_path / "out")]) == 0
    report = (tmp_path / "published" / "README.md").read_text()
    assert "](pictures/one.png)" in report
    assert (tmp_path / "published" / "pictures" / "one.png").is_file()


def test_one_script_is_published_among_the_others(
    scripts: Callable[..., Made], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripts()
    out, page = str(tmp_path / "out"), tmp_path / "README.md"
    monkeypatch.setattr(frame, "PUBLISHED", tmp_path)
    assert frame.main(["--all", "--jobs", "1", "--publish", "--out", out]) == 0
    before = page.read_text()
    rows = (PaperRow("a gain", 20.0, 20.1, "%"), PaperRow("odd", 2.0, 1.0, "x", note="3 and 4", is_contradicted=True))
    monkeypatch.setattr(Made, "run", lambda self, choices, *, quick, out: PaperResult("two", "T", "DIP two", rows))
    assert frame.main(["two", "--publish", "--out", out]) == 0
    after = page.read_text()
    assert (
        "2 of 6 numbers" not in before and "3 of 6 numbers that the papers print are settled, 2 differ, 1 are" in after
    )
    assert "inconsistent in the source |" in after and "- **odd** (inconsistent in the source): 3 and 4" in after
    kept = [line for line in before.splitlines() if "(#two)" not in line and "numbers that" not in line]
    assert all(line in after for line in kept if "two" not in line)
    changed = CHOICES.changed(vpp=3)
    monkeypatch.setattr(frame, "CHOICES", changed)
    assert frame.main(["two", "--publish", "--out", out]) == 2
    assert "another value of the choice vpp" in capsys.readouterr().err
    assert page.read_text() == after


def test_the_published_page_is_what_is_read_of_it() -> None:
    text = (frame.PUBLISHED / "README.md").read_text(encoding="utf-8")
    page = Page.read(text)
    assert page.text() == text
    assert list(page.rows) == [name for name in frame.SCRIPTS if name in page.rows]
    assert page.updated(Page.of([], CHOICES), frame.SCRIPTS).sections == page.sections


def test_rows() -> None:
    assert ROWS[0].verdict is Verdict.SETTLED
    assert PaperRow("x", 0.0, 0.0, "").verdict is Verdict.SETTLED
    assert PaperRow("x", 0.0, 1.0, "").verdict is Verdict.DIFFERS
    assert PaperRow("x", 1.0, 1.0, "", is_contradicted=True).verdict is Verdict.INCONSISTENT
    assert PaperRow.from_json(json.loads(json.dumps(ROWS[0].to_json()))) == ROWS[0]
    assert [number(x) for x in (None, 49.0, 1234567.0, 0.123456, 23456.7)] == ["", "49", "1,234,567", "0.1235", "23457"]


def test_choices_can_be_changed_to_their_alternatives_only_by_name() -> None:
    changed = CHOICES.changed(vpp=3, rollouts=0)
    assert (changed.vpp.value, changed.rollouts.value, CHOICES.vpp.value) == (3, 0, 4)
    assert changed.vpp.alternatives == CHOICES.vpp.alternatives
    with pytest.raises(KeyError):
        CHOICES.changed(vvp=4)
    assert all(choice.reason and choice.value not in choice.alternatives for _, choice in CHOICES)


def test_the_report_says_that_a_quick_run_is_none() -> None:
    assert "no results" in Page.of([], CHOICES).text(quick=True)


def test_jobs_and_baselines_are_what_the_choices_say() -> None:
    choices = CHOICES.changed(recompute="full", coefficients="spec", images_mean=2.0, images_max=32)
    job = job_of("vlm-s", choices, seed=3)
    assert job.num_microbatches == CHOICES.microbatches.value == 64
    said = job.batch.describe()
    assert (said["seed"], said["images_mean"], said["images_max"]) == (3, 2.0, 32)
    assert {item.provenance.value for item in job.profile.efficiencies.values()} == {"spec"}
    assert on_batch(job, choices, 9).batch.describe() == {**said, "seed": 9}
    found = baseline("megatron", job, choices)
    assert (found.job.parallel.vpp, found.job.training.recompute.value) == (CHOICES.vpp.value, "full")
    assert job_of("lm-7b", choices).training.global_batch == 73  # Table 1's
    assert list(seeds_of(CHOICES.changed(first_seed=7), 3)) == [7, 8, 9]


@pytest.mark.slow
@pytest.mark.paper
def test_seconds_of_the_worked_example() -> None:
    """DIP §2.2: 8 images take a ViT layer 6.75 ms, 8,192 tokens an LM layer 10.5 ms; semu's H800 as VLM-M runs them."""
    vit, lm = worked_example.layer_times(CHOICES, "8", recompute=0)
    assert 1e3 * vit == pytest.approx(6.75, rel=0.1)
    assert 1e3 * lm == pytest.approx(10.5, rel=0.1)


@pytest.mark.slow
@pytest.mark.paper
def test_table_1_with_two_images_a_sequence() -> None:
    """The one open number that brings both losses of MFU near DIP's 12.5 and 40.3 %."""
    few = CHOICES.changed(images_mean=2.0)
    language = table1.cell("lm-7b", few, None)
    assert table1.lost(table1.static_cell(few, 2), language) == pytest.approx(12.5, abs=5)
    assert table1.lost(table1.dynamic_cell(few, 4), language) == pytest.approx(40.3, abs=10)
