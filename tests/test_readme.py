"""README.md and docs/ say what their commands print today: ``make readme`` mends what fails here."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.readme import __main__ as readme
from benchmarks.readme import _weave
from benchmarks.readme._accuracy import ACCURACY
from benchmarks.readme._accuracy import CAUSES as NAMED
from benchmarks.readme._parts import PARTS
from benchmarks.readme._pictures import PICTURES, _figures
from benchmarks.readme._weave import DOCS, PAGES, PICTURES_FOLDER, page_of, part_of, recorded_digests, replace_part
from docs.make import reference
from docs.make.notebooks import notebooks
from semu.simulation.effects.structural import CAUSES

SLOW = {"baselines", "grid", "published"}
STALE = "README.md is stale: make readme"


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in PARTS if name not in ACCURACY],
)
def test_figures_and_tables_are_what_the_commands_print(name: str) -> None:
    assert part_of(page_of(name, PAGES).read_text(encoding="utf-8"), name) == PARTS[name](), STALE


@pytest.mark.slow
@pytest.mark.parametrize("name", ACCURACY)
def test_tables_of_accuracy_are_what_the_commands_print(name: str, data_dir: Path) -> None:
    assert part_of(page_of(name, PAGES).read_text(encoding="utf-8"), name) == PARTS[name](), STALE


@pytest.mark.slow
def test_pictures_show_what_the_commands_find() -> None:
    assert recorded_digests() == {name: picture.digest() for name, picture in PICTURES.items()}, STALE
    assert [name for name in PICTURES if not (PICTURES_FOLDER / name).is_file()] == []


def test_every_mark_of_the_readme_has_a_part_and_every_picture_is_there() -> None:
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
    marks = [name for text in texts.values() for name in re.findall(r"<!-- begin (\S+): make readme -->", text)]
    assert sorted(marks) == sorted(PARTS)
    shown = {
        (page.parent / path).resolve() for page, text in texts.items() for path in re.findall(r"\]\(([^)#:]+)\)", text)
    }
    assert {PICTURES_FOLDER / name for name in PICTURES} <= shown
    made = {(DOCS / page).resolve() for page in (*reference.pages(), *notebooks())}  # when the site is built
    assert [path for path in shown - made if not path.exists()] == []


def test_every_key_of_a_run_file_has_a_meaning() -> None:
    rows = [line for line in reference.run_file().splitlines() if line.startswith("| `")]
    assert len(rows) > 200
    assert [row for row in rows if not row.rsplit("|", 2)[1].strip()] == []


def test_the_readme_is_short() -> None:
    assert len((DOCS.parent / "README.md").read_bytes()) < 8000


def test_the_digest_ignores_what_no_picture_shows_and_the_last_digits() -> None:
    before = {"schema_version": 1, "rows": [{"name": "a", "iteration_time_s": 1 / 3, "mfu": 0.1}]}
    after = {"rows": [{"name": "a", "iteration_time_s": 1 / 3 + 1e-12, "new": []}], "warnings": ["one"]}
    other = {"rows": [{"name": "a", "iteration_time_s": 0.3334, "mfu": 0.1}]}
    assert json.dumps(_figures(before)) == json.dumps({"rows": [{"name": "a", "iteration_time_s": "0.333333333"}]})
    assert _figures(after) == _figures(before)
    assert _figures(other) != _figures(before)


def test_what_is_stale_is_named_and_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "README.md"
    page.write_text("before\n<!-- begin one: make readme -->\nold\n<!-- end one -->\nafter\n")
    monkeypatch.setattr(readme, "PAGES", (page,))
    monkeypatch.setattr(readme, "PARTS", {"one": lambda: "new\n"})
    monkeypatch.setattr(readme, "PICTURES", {})
    monkeypatch.setattr(readme, "WALKED", ())
    assert readme.main(["--check"]) == 1
    assert "stale: one" in capsys.readouterr().err
    assert "old" in page.read_text()
    assert readme.main([]) == 0
    assert page.read_text() == "before\n<!-- begin one: make readme -->\nnew\n<!-- end one -->\nafter\n"
    assert readme.main(["--check"]) == 0
    assert readme.main(["two"]) == 2


def test_a_picture_is_drawn_when_its_figures_change_and_when_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Drawn:
        def __init__(self) -> None:
            self.number, self.times = "1", 0

        def digest(self) -> str:
            return self.number

        def draw(self) -> None:
            self.times += 1

    picture = Drawn()
    monkeypatch.setattr(readme, "PARTS", {})
    monkeypatch.setattr(readme, "WALKED", ())
    monkeypatch.setattr(readme, "PICTURES", {"a.png": picture})
    monkeypatch.setattr(_weave, "DIGESTS", tmp_path / "inputs.json")
    assert readme.main(["--check"]) == 1
    assert picture.times == 0
    for times in (1, 1):  # the second time nothing is stale
        assert readme.main([]) == 0
        assert picture.times == times
    picture.number = "2"
    assert readme.main([]) == 0
    assert readme.main(["a.png"]) == 0
    assert picture.times == 3


def test_marks_that_are_missing_are_said() -> None:
    with pytest.raises(ValueError, match="expected one <!-- begin one: make readme -->"):
        replace_part("nothing", "one", "text")


def test_every_spread_has_a_name_on_the_page() -> None:
    assert set(NAMED) == {cause.name for cause in CAUSES}
