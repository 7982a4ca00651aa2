"""SHA-256 of what semu writes, for several hundred small jobs: what must stay the same byte for byte.

    python tests/frozen/freeze.py --check              # every case against hashes.json; --quick: some of them
    python tests/frozen/freeze.py --write              # after a deliberate change, which CHANGES.md names
    python tests/frozen/freeze.py --dump out --only zb-h1      # the documents themselves, one file per case
    python tests/frozen/freeze.py --dump other --only zb-h1 --tree ../other-checkout && diff -r out other

A refusal is a result too: the error's kind, message and place are the document.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
HASHES = FOLDER / "hashes.json"
ADDED = ("memory", "is_as_asked", "layer_times")
"""Keys of documents that came later; they are left out before hashing (a key is added, never renamed)."""

if __name__ == "__main__":  # the tree's own semu, whatever is installed; --tree says which tree
    told = [sys.argv[n + 1] for n, word in enumerate(sys.argv[:-1]) if word == "--tree"]
    sys.path[:0] = [str(Path(told[0]).resolve() if told else ROOT), str(ROOT / "tests")]

from frozen.cases import PLANS, Case, What, all_cases  # noqa: E402

import semu  # noqa: E402
from semu.errors import SemuError  # noqa: E402

if TYPE_CHECKING:
    from semu.job import TrainingJob
    from semu.nn import Model
    from semu.schedule.stage_plan import StagePlan


class MissingDataError(Exception):
    """The measured data that a case needs is not there."""


# -- jobs and plans --
_MODELS: dict[tuple[str, ...], Model] = {}
"""Models of setups; jobs that share one share what semu remembers of it, which saves half of the time."""


def job_of(case: Case) -> TrainingJob:
    from semu.runfile import load_run, make_job

    if not isinstance(case.run, str):
        return make_job(case.run)
    job = load_run(case.run, case.changes)
    key = (case.run, *(change for change in case.changes if change.startswith("model.")))
    return replace(job, model=_MODELS.setdefault(key, job.model))


def plan_of(case: Case, job: TrainingJob) -> StagePlan | None:
    """The plan that a case asks for, made of what the job's own execution plan says of its chunks."""
    if case.plan is None:
        return None
    if case.plan not in PLANS:
        raise ValueError(f"{case.name}: no kind of plan is called {case.plan}")
    if case.plan == "empty":
        return semu.StagePlan()
    first = job.model.modules[0].name
    count, stream = job.num_microbatches, job.model.modules[0].inputs[0].stream
    has_parts = len(job.model.modules) > 1
    parts = {first: _parts(job, stream)} if has_parts else {}
    if case.plan == "parts":
        return semu.StagePlan(parts=parts)
    if case.plan == "chunks":
        return semu.StagePlan(parts=parts, layers=_layers(job))
    chunks = _chunks(job)
    words = ("none", "full", "selective")
    variants = tuple(
        ((words[number % 3],) * size, tuple(words[(number + k) % 3] for k in range(size)))
        for number, (_, size) in enumerate(chunks)
    )
    turns = [sum(parts.get(module, (1,) * count)) for module, _ in chunks]
    choice = tuple(
        tuple((number + turn // 2) % len(own) for turn in range(turns[number])) for number, own in enumerate(variants)
    )
    return semu.StagePlan(parts=parts, variants=variants, choice=choice)


def _parts(job: TrainingJob, stream: str) -> tuple[int, ...]:
    """Two and three parts of microbatches in turn, no more than the replica with most has items."""
    found, dp = semu.prepare(job).described()["batch"], job.parallel.dp
    most = [max(item.get(stream, [0])[0] for item in found[at : at + dp]) for at in range(0, len(found), dp)]
    return tuple(min(2 + number % 2, items) for number, items in enumerate(most))


def _chunks(job: TrainingJob) -> tuple[tuple[str, int], ...]:
    """Module and number of layers of every chunk, as the job's execution plan has them."""
    table = json.loads(semu.compile_plan(job, "1f1b" if job.parallel.copies == 1 else None).to_json())
    return tuple((chunk["module"], len(chunk["variants"][0])) for chunk in table["chunks"])


def _layers(job: TrainingJob) -> dict[str, tuple[int, ...]]:
    """The layers of every module (``layers.0``, ...), dealt to pp chunks evenly, the first ones larger."""
    found = {}
    for module in job.model.modules:
        families: dict[str, int] = {}
        for path, _ in module.blocks():
            parent, _, last = path.rpartition(".")
            if last.isdecimal():
                families[parent] = families.get(parent, 0) + 1
        total, pp = max(families.values()), job.parallel.pp
        found[module.name] = tuple(total // pp + (rank < total % pp) for rank in range(pp))
    return found


# -- documents --
def _as_text(document: object) -> str:
    """As ``Report.save`` and ``--json`` write it."""
    return json.dumps(_as_frozen(document), indent=2) + "\n"


def _as_frozen(document: Any) -> Any:
    """A document without the keys that it did not have when it was frozen."""
    if isinstance(document, dict):
        return {key: _as_frozen(value) for key, value in document.items() if key not in ADDED}
    return [_as_frozen(item) for item in document] if isinstance(document, list | tuple) else document


def _report(case: Case) -> Any:
    job = job_of(case)
    return semu.simulate(job, plan=plan_of(case, job), **case.options)


def _result(case: Case) -> str:
    return _as_text(_report(case).to_json())


def _text(case: Case) -> str:
    return repr(_report(case)) + "\n"


def _trace(case: Case) -> str:
    from tempfile import TemporaryDirectory

    from semu.present.traces import write_trace

    report = _report(case)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        write_trace(path, report.timeline, title=report.title, metadata={"semu": report.job})
        return path.read_text(encoding="utf-8")


def _plan(case: Case) -> str:
    job = job_of(case)
    return semu.compile_plan(job, plan_of(case, job), **case.options).to_json()


def _search(case: Case) -> str:
    """The schedule found, what the search says of itself, its simulation and its execution plan."""
    found = semu.search(job_of(case), **case.options)
    document = {**found.to_json(), "report": found.report.to_json()}
    return "\n".join((found.plan.to_json(), _as_text(document), semu.compile_plan(found).to_json()))


def _grid(case: Case) -> str:
    options = dict(case.options)
    return _as_text(semu.grid(job_of(case), options.pop("vary", None), **options).to_json())


def _compare(case: Case) -> str:
    return _as_text(semu.compare_schedules(job_of(case), **case.options).to_json())


def _what_if(case: Case) -> str:
    return _as_text(semu.what_if(job_of(case), **case.options).to_json())


def _baseline(case: Case) -> str:
    found = semu.baselines.BASELINES[str(case.options["name"])](job_of(case))
    return _as_text({"notes": list(found.notes), "report": found.simulate().to_json()})


def _validate(case: Case) -> str:
    from semu.runfile import make_job
    from semu.validation import Row, published_rows, read_rows, validate

    options = dict(case.options)
    runs, every = options.pop("runs", None), int(str(options.pop("every", 1)))
    if runs is None:
        rows = published_rows()
    else:
        data = Path(os.environ.get("SEMU_DATA") or ROOT.parent / "shared" / "data")
        if not (data / str(runs)).is_file():
            raise MissingDataError(f"no measured data at {data / str(runs)}; set SEMU_DATA")
        rows = read_rows(data / str(runs))
    if options.get("pass_times"):
        rows = tuple(row for row in rows if isinstance(row, Row) and row.pass_times is not None)
    return _as_text(validate(rows[::every], make_job, **options).to_json())


def _command(case: Case) -> str:
    from semu.cli import main

    words, printed, said = list(case.options["words"]), io.StringIO(), io.StringIO()  # type: ignore[call-overload]
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
        code = main(words)
    return f"{printed.getvalue()}\nexit code {code}\n"


_MAKERS: Mapping[What, Callable[[Case], str]] = {
    What.RESULT: _result,
    What.TEXT: _text,
    What.TRACE: _trace,
    What.PLAN: _plan,
    What.SEARCH: _search,
    What.GRID: _grid,
    What.COMPARE: _compare,
    What.WHAT_IF: _what_if,
    What.BASELINE: _baseline,
    What.VALIDATE: _validate,
    What.COMMAND: _command,
}


def document_of(case: Case) -> str:
    """What a case writes; of a refusal, the error.

    Raises:
        MissingDataError: the case needs measured data that is not there.
    """
    try:
        return _MAKERS[case.what](case)
    except SemuError as error:
        return _as_text({"refused": type(error).__name__, **error.to_json(), "text": str(error)})
    except MissingDataError:
        raise
    except Exception as error:  # a defect: frozen like all else, until somebody mends it
        return _as_text({"crashed": f"{type(error).__name__}: {error}"})


def digest(text: str) -> str:
    """SHA-256 of a document's UTF-8 bytes."""
    return hashlib.sha256(text.encode()).hexdigest()


# -- a set of cases --
def chosen_cases(only: str = "", *, quick: bool = False) -> list[Case]:
    """Cases whose name has a word in it, in the order of names."""
    return [case for case in all_cases().values() if only in case.name and (case.is_quick or not quick)]


def read_hashes() -> dict[str, str]:
    """The frozen hashes by name."""
    found: dict[str, str] = json.loads(HASHES.read_text(encoding="utf-8"))
    return found


def write_hashes(hashes: Mapping[str, str]) -> None:
    """Write the frozen hashes, one line per case, sorted."""
    HASHES.write_text(json.dumps(dict(sorted(hashes.items())), indent=0) + "\n", encoding="utf-8")


def run_cases(cases: Iterable[Case], tell: Callable[[Case, str | None, float], None]) -> dict[str, str]:
    """Hashes of cases by name, without those that need data that is not there.

    Args:
        cases: in the order in which they run. tell: called with each case, its document (None: no data) and its
            processor time [s].
    """
    found = {}
    for case in cases:
        begin = time.process_time()
        try:
            text: str | None = document_of(case)
        except MissingDataError as reason:
            print(f"skipped {case.name}: {reason}", file=sys.stderr)
            text = None
        tell(case, text, time.process_time() - begin)
        if text is not None:
            found[case.name] = digest(text)
    return found


def differences(found: Mapping[str, str], frozen: Mapping[str, str]) -> list[str]:
    """A sentence for each case that is not as frozen."""
    lines = []
    for name, value in sorted(found.items()):
        if name not in frozen:
            lines.append(f"{name}: not in {HASHES.name}")
        elif frozen[name] != value:
            lines.append(f"{name}: {frozen[name][:12]} became {value[:12]}")
    return lines


def advice(lines: list[str]) -> str:
    """What to do about cases that are not as frozen."""
    shown = lines[:40] + ([f"... and {len(lines) - 40} more"] if len(lines) > 40 else [])
    first = lines[0].split(":")[0]
    return "\n".join(
        (
            f"{len(lines)} frozen documents have changed:",
            *(f"  {line}" for line in shown),
            "See what changed, beside a checkout in which they hold (BASE):",
            f"  python tests/frozen/freeze.py --dump /tmp/mine --only {first}",
            f"  python tests/frozen/freeze.py --dump /tmp/base --only {first} --tree BASE",
            "  diff -r /tmp/base /tmp/mine",
            "A deliberate change is listed with its reason in tests/frozen/CHANGES.md, and then frozen:",
            "  python tests/frozen/freeze.py --write",
            "If everything differs on another machine and not on this one, read tests/frozen/README.md.",
        )
    )


def main() -> int:
    """The command line; 1 where something is not as frozen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--check", action="store_true", help="compare with hashes.json (the default)")
    action.add_argument("--write", action="store_true", help="write hashes.json; with --only or --quick, those lines")
    parser.add_argument("--only", default="", metavar="SUBSTRING", help="cases with it in their name")
    parser.add_argument("--quick", action="store_true", help="the subset that the default tests check")
    parser.add_argument("--dump", type=Path, metavar="DIR", help="write the documents, one file per case")
    parser.add_argument("--reverse", action="store_true", help="run the cases from last to first")
    parser.add_argument("--times", action="store_true", help="print what each case took [s of processor]")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--tree", type=Path, default=ROOT, metavar="DIR", help="checkout whose semu runs the cases")
    options = parser.parse_args()
    cases = chosen_cases(options.only, quick=options.quick)
    if options.list:
        print("\n".join(case.name for case in cases))
        return 0
    if options.reverse:
        cases.reverse()
    refused, crashed = 0, 0

    def tell(case: Case, text: str | None, seconds: float) -> None:
        nonlocal refused, crashed
        if text is None:
            return
        refused += text.startswith('{\n  "refused"')
        if text.startswith('{\n  "crashed"'):
            crashed += 1
            print(f"{case.name}: {text}", file=sys.stderr)
        if options.times:
            print(f"{seconds:8.3f} {case.name}", flush=True)
        if options.dump is not None:
            path = options.dump / f"{case.name}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    begin = time.perf_counter()
    found = run_cases(cases, tell)
    print(
        f"{len(found)} cases of {Path(semu.__file__).parents[1]}, {refused} of them refusals, {crashed} crashes, in "
        f"{time.perf_counter() - begin:.0f} s ({time.process_time():.0f} s of processor)"
    )
    if options.write:
        is_part = bool(options.only) or options.quick or len(found) < len(cases)
        known = read_hashes() if is_part and HASHES.exists() else {}
        names = all_cases()
        write_hashes({name: value for name, value in known.items() if name in names} | found)
        return 0
    if options.dump is not None and not options.check:
        return 0
    lines = differences(found, read_hashes())
    if lines:
        print(advice(lines))
        return 1
    print("all as frozen")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
