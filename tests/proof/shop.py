"""``Shop``: commands in processes of their own, their files, and what they leave behind."""

from __future__ import annotations

import csv
import gzip
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.proof.doors import RUN

ROOT = Path(__file__).resolve().parents[2]
MARK = "SEMU_FAULTS"
PATIENCE_S = 900.0
"""For a command that takes seconds on a quiet machine."""
GONE_S = 15.0
"""Within which everything that a command started has ended."""
BEGIN = (
    "import sys\n"
    "from semu.__main__ import run\n"
    "sys.stderr.write('\\x00'); sys.stderr.flush()\n"
    "sys.argv[0] = 'semu'\n"
    "run()\n"
)
"""Says when semu's own part of the process begins; what is before is Python's."""
SMALL = RUN.replace("dp = 2\ntp = 2\npp = 2\nzero = 1", "pp = 3\nzero = 0").replace("per_node = 8", "per_node = 3")
"""Three ranks."""
NODES = SMALL.replace("nodes = 1\ngpus_per_node = 3", "nodes = 3\ngpus_per_node = 1")
ENDS = ("semu: error", "semu: interrupted", "semu: stopped")
"""How the message begins with which a command ends."""
NOT_AGAIN = {
    *("time_s", "search_s", "prepare_s", "measured", "latency_s", "cpu_s", "trained_s", "stall_s"),
    *("losses_s", "seconds", "notice_s", "first_notice_s", "composed_s", "copied_s", "again_s"),
}
"""Keys of documents that say how long something took here."""
MEASURED = {"iterations.png"}
"""Pictures of them."""
RAN = {"measured_makespan_s", "simulated_makespan_s", "makespan_error", "order_agreement", "timeline.png"}
"""Of ``semu run``: what ranks measured, and what is simulated from that."""
DRILLED = {"iteration_s", "arrange_s", "connect_s", "build_s", "copy_s"}
"""Of ``semu drill``."""


@dataclass(frozen=True)
class Done:
    """A command that has ended. Attributes: code: of the exit; below 0: the signal. out, err: what it printed."""

    code: int
    out: str
    err: str

    def fault(self, *codes: int) -> str:
        """What is wrong with how it ended: none of some exit codes, a traceback, no message; "" if nothing."""
        if self.code not in codes:
            return f"exit code {self.code}, not one of {codes}: {self.err.strip()[-300:]}"
        for word in ("Traceback", "Exception ignored", "this is a defect", "terminate called", "Segmentation"):
            if word in self.err:
                return f"{word}: {self.err.strip()[-600:]}"
        said = [line for line in self.err.splitlines() if line.startswith(ENDS)]
        if self.code not in (0, 7) and len(said) != 1:
            return f"{len(said)} messages for exit code {self.code}: {self.err.strip()[-300:]}"
        return ""


@dataclass
class Started:
    """A command that runs. Attributes: process: its own. place: folder of what it prints."""

    process: subprocess.Popen[bytes]
    place: Path

    def has_begun(self) -> bool:
        """Wait until semu's part of the process begins; whether it has."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            if b"\0" in (self.place / "err").read_bytes():
                return True
            if self.process.poll() is not None:
                return False
            time.sleep(0.005)
        return False

    def end(self, patience_s: float = PATIENCE_S) -> Done:
        """Wait for it."""
        try:
            code = self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            code = 1
        out, err = ((self.place / name).read_text(errors="replace") for name in ("out", "err"))
        hung = f"\nno end within {patience_s:.0f} s" if code == 1 else ""
        return Done(code, out, err.replace("\0", "") + hung)


@dataclass
class Shop:
    """Runs of a small model, and processes that belong to nobody else.

    Attributes:
        folder: where everything is put. mark: in the environment of all processes that are started here.
    """

    folder: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    count: int = 0

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for name, text in (("run.toml", RUN), ("small.toml", SMALL), ("nodes.toml", NODES)):
            (self.folder / name).write_text(text)
        published = json.loads((ROOT / "semu" / "validation" / "published.json").read_text())
        (self.folder / "rows.json").write_text(json.dumps([row for row in published if row["gpus"] <= 64][:8]))

    def at(self, name: str) -> str:
        """Path of a file of the shop."""
        return str(self.folder / name)

    def new(self) -> Path:
        """A new folder."""
        self.count += 1
        path = self.folder / f"case{self.count}"
        path.mkdir()
        return path

    def start(
        self, words: Sequence[str], *, largest_bytes: int | None = None, code: str = BEGIN, **more: str
    ) -> Started:
        """Start a command. ``largest_bytes``: of a file that it may write. ``more``: environment."""
        place = self.new()
        limits = None
        if largest_bytes is not None:
            limits = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (largest_bytes, largest_bytes))  # noqa: E731
        path = os.pathsep.join(filter(None, (more.pop("path", ""), str(ROOT))))
        with (place / "out").open("wb") as out, (place / "err").open("wb") as err:
            process = subprocess.Popen(
                [sys.executable, "-c", code, *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=place,
                env={**os.environ, "PYTHONPATH": path, MARK: self.mark, **more},
                preexec_fn=limits,
            )
        return Started(process, place)

    def run(self, words: Sequence[str], **options: Any) -> Done:
        """Run a command to its end."""
        return self.start(words, **options).end()

    def mine(self) -> list[int]:
        """Processes that were started here and have not ended."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if f"{MARK}={self.mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                    state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                    if state not in "ZX":
                        found.append(int(folder.name))
        return found

    def children(self, parent: int, word: bytes = b"") -> list[int]:
        """Processes of this shop that a process started itself. ``word``: in their command lines."""
        found = []
        for number in self.mine():
            with suppress(OSError):
                own = int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])
                line = Path(f"/proc/{number}/cmdline").read_bytes()
                if own == parent and word in line and b"resource_tracker" not in line:
                    found.append(number)
        return sorted(found)

    def ranks(self, parent: int) -> list[int]:
        """Ranks that a process started: children of the server that begins them, or its own."""
        servers = self.children(parent, b"forkserver")
        return sorted(
            [*self.children(parent, b"spawn_main"), *(rank for one in servers for rank in self.children(one))]
        )

    def left(self) -> str:
        """Processes that stay behind, which are then ended; "" where there are none."""
        until = time.monotonic() + GONE_S
        while (rest := self.mine()) and time.monotonic() < until:
            time.sleep(0.05)
        lines = []
        for number in rest:
            with suppress(OSError):
                lines.append(Path(f"/proc/{number}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:80])
                os.kill(number, signal.SIGKILL)
        return f"left behind: {lines}" if lines else ""


def halves(folder: Path) -> str:
    """Files below a folder that are not whole, and temporary ones; "" where there are none."""
    for path in sorted(folder.rglob("*")) if folder.exists() else ():
        if path.is_dir() or path.name.endswith(("-wal", "-shm", "-journal")):
            continue
        if path.name.startswith("."):
            return f"{path.name} stayed"
        if fault := _half(path):
            return f"{path.name}: {fault}"
    return ""


def _half(path: Path) -> str:
    data = path.read_bytes()
    try:
        if path.suffix == ".gz":
            json.loads(gzip.decompress(data))
        elif path.suffix == ".json":
            json.loads(data)
        elif path.suffix == ".csv":
            rows = list(csv.reader(data.decode().splitlines()))
            if len({len(row) for row in rows}) != 1 or not data.endswith(b"\n"):
                return "rows of different lengths"
        elif path.suffix == ".png" and not (data.startswith(b"\x89PNG") and data.endswith(b"IEND\xaeB`\x82")):
            return "half a picture"
        elif path.suffix == ".html" and not data.rstrip().endswith(b"</html>"):
            return "half a page"
    except (ValueError, EOFError, OSError) as error:
        return f"half written: {error}"
    return ""


def contents(folder: Path) -> dict[str, Any]:
    """What files below a folder say, without how long something took here: documents, tables, sizes of traces."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix == ".json":
            found[name] = json.loads(path.read_bytes())
        elif path.suffix == ".gz":
            found[name] = json.loads(gzip.decompress(path.read_bytes()))
        elif path.suffix in (".csv", ".png", ".toml") and name not in MEASURED:
            found[name] = path.read_bytes()
    result = found.get("result.json")
    more = RAN if isinstance(result, dict) and "measured_makespan_s" in result else set()
    return _timeless(found, NOT_AGAIN | more | (DRILLED if "drill.json" in found else set()))


def _timeless(value: Any, names: set[str]) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(one, names) for key, one in value.items() if key not in names}
    return [_timeless(one, names) for one in value] if isinstance(value, list) else value


def different(one: Path, other: Path) -> str:
    """The first file in which two folders differ; "" where none does."""
    first, second = contents(one), contents(other)
    if first.keys() != second.keys():
        return f"files {sorted(first.keys() ^ second.keys())} of one only"
    return next((f"{name} differs from an undisturbed run's" for name in first if first[name] != second[name]), "")


class NotHere(Exception):
    """A fault that cannot be made on this machine, with the reason."""


@contextmanager
def disk(folder: Path, *, size: int = 1 << 26) -> Iterator[Path]:
    """A small file system of its own.

    Raises:
        NotHere: it may not be mounted.
    """
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if done.returncode != 0:
        raise NotHere(f"no file system can be mounted: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def make_read_only(folder: Path) -> None:
    """Of a file system that ``disk`` made."""
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)


def wait_for(happens: Any, process: subprocess.Popen[bytes], patience_s: float = PATIENCE_S) -> bool:
    """Whether something happens before a process ends."""
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        if happens():
            return True
        if process.poll() is not None:
            return False
        time.sleep(0.01)
    return False


def emptied(folder: Path) -> Path:
    """A folder with nothing in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def moment(draw: random.Random, longest_s: float) -> float:
    """A random moment: often early, where files are read and processes start [s]."""
    return longest_s * draw.random() ** draw.choice((1, 3))
