"""``python -m benchmarks.paper``: the papers' tables and figures, theirs beside ours, as one report.

Every script's result is kept as JSON in ``--out``, so that ``--resume`` goes on where a run was stopped. One that fails
is reported, and the rest goes on. Exit: 0 ok, 1 a script failed, 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.paper._page import Page, number
from benchmarks.paper._results import PaperResult
from benchmarks.paper._run import Store, run_scripts, say
from benchmarks.paper._scripts import SCRIPTS, find_script
from benchmarks.paper.choices import CHOICES
from semu.errors import ConfigError, SemuError
from semu.files import make_folder, write_file, write_text

PUBLISHED = Path(__file__).parent
"""Where ``--publish`` puts the report: README.md, and pictures in ``pictures/``."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run scripts and write their report; see the module."""
    options = _parser().parse_args(arguments)
    try:
        names = _names(options.names, is_all=options.all)
        if options.publish and options.quick:
            raise ConfigError("small sizes are no results", where="--publish", expected="no --quick", got="--quick")
        store = Store(make_folder(options.out), options.quick, CHOICES)
        results, failed, is_stopped = run_scripts(names, store, resume=options.resume, jobs=options.jobs)
        text = Page.of(results, CHOICES).text(quick=options.quick, failed=failed)
        say(f"wrote {write_text(store.folder / 'README.md', text)}")
        if options.publish and not failed and not is_stopped:
            publish(results, PUBLISHED)
    except SemuError as error:
        if options.json:
            print(json.dumps({"error": error.to_json()}, indent=1))
        say(str(error))
        return error.exit_code
    if options.json:
        document = {"results": [result.to_json() for result in results], "failed": failed}
        print(json.dumps(document, indent=1, allow_nan=False))
    else:
        print_rows(results)
    return 130 if is_stopped else 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"scripts: {', '.join(SCRIPTS)}")
    parser.add_argument("--all", action="store_true", help="all of them")
    parser.add_argument("--quick", action="store_true", help="small sizes, a minute or so; no results")
    parser.add_argument("--out", type=Path, default=Path("out/paper"), metavar="DIR", help="default: out/paper")
    parser.add_argument("--resume", action="store_true", help="keep what is finished in DIR")
    parser.add_argument("--jobs", type=_count, default=2, metavar="N", help="scripts at a time; default: 2")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--publish", action="store_true", help="put them into this folder's README.md and pictures/")
    return parser


def _count(text: str) -> int:
    """An integer >= 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer >= 1, got {text!r}")
    return int(text)


def _names(given: Sequence[str], *, is_all: bool) -> tuple[str, ...]:
    """The scripts to run, in their order.

    Raises:
        ConfigError: an unknown name, or none.
    """
    for name in given:
        if name not in SCRIPTS:
            find_script(name)
    if not given and not is_all:
        raise ConfigError("nothing to run", where="NAME", expected="--all, or names", nearest="--all")
    return tuple(name for name in SCRIPTS if is_all or name in given)


def publish(results: Sequence[PaperResult], folder: Path) -> None:
    """Put results into the report for readers of the repository: README.md, and pictures in a folder of their own.

    Raises:
        ConfigError: the report has results of other scripts that were made with other choices.
    """
    page, report = Page.of(results, CHOICES, "pictures/"), folder / "README.md"
    if report.is_file():
        page = Page.read(report.read_text(encoding="utf-8")).updated(page, SCRIPTS)
    pictures = make_folder(folder / "pictures")
    for path in (path for result in results for path in result.pictures):
        write_file(pictures / path.name, partial(shutil.copyfile, path))
    say(f"wrote {write_text(report, page.text())}")


def print_rows(results: Sequence[PaperResult]) -> None:
    """All rows, a line each."""
    print(f"{'from':16} {'what':60} {'theirs':>10} {'ours':>10} {'unit':8} {'ratio':>6} verdict")
    for result in results:
        for row in result.rows:
            ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
            theirs, ours = number(row.theirs), number(row.ours)
            line = f"{result.source:16} {row.what:60} {theirs:>10} {ours:>10} {row.unit:8} {ratio:>6}"
            print(f"{line} {row.verdict.value}")


if __name__ == "__main__":
    sys.exit(main())
