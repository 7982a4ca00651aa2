"""``read_nccl``: output of nccl-tests, as text or as JSON (``-J FILE``) -> samples.

The collective is the program's name in the header (``# Collective test starting: all_reduce_perf``, since 2.14), else
the file's name (``all_reduce_perf.txt``). Out-of-place times count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from semu.errors import ConfigError
from semu.files import parse_json
from semu.fitting.samples import Refusal, Sample, places
from semu.hardware.known_devices import named_device

EXPECTED = "the output of nccl-tests, e.g. all_reduce_perf -b 8 -e 8G -f 2 -g 8"
KINDS: Mapping[str, str] = {
    "all_reduce": "all_reduce",
    "allreduce": "all_reduce",
    "all_gather": "all_gather",
    "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "sendrecv": "p2p",
    "send_recv": "p2p",
}
_SHORTEST_US, _LONGEST_US = 1e-6, 1e15
_LARGEST_BYTES = 1e15
_HEADER = re.compile(r"#\s*nThread\s+\d+\s+nGpus\s+(\d+)")
_TEST = re.compile(r"#\s*Collective test starting:\s*(\w+)")
_NAMED = re.compile(r"#\s*(Collective test starting|nccl-tests version)")
_RANK = re.compile(r"#\s*Rank\s+(\d+)\s.*\bon\s+(\S+)\s+device\s+\d+\s*(?:\[[^]]*\])?(.*)")
_LAUNCHER = re.compile(r"^\[\d+,\d+\](<\w+>)?:?\s?")
"""What mpirun --tag-output puts before each line."""
_ROW = re.compile(r"^\s*(\d+)\s+(\d+)\s+(\w+)\s+(\S+)\s+(-?\d+)\s+(.*)$")


def is_nccl(text: str) -> bool:
    """Whether a text is the output of nccl-tests."""
    head = text[:20_000]
    if head.lstrip().startswith("{"):
        return '"busbw' in text.lower() or '"bus_bw' in text.lower()
    return _HEADER.search(head) is not None or ("busbw" in head and "# " in head)


def read_nccl(text: str, name: str, profile: str, *, nodes: int = 1) -> tuple[list[Sample], list[Refusal]]:
    """Read one file: an output, or several texts one behind the other.

    Args:
        text: the file. name: of the file. profile: name of the device, for an output that names none.
        nodes: number of nodes, for an output that does not name the hosts of its ranks.
    Raises:
        ConfigError: neither the output nor the file's name has a collective; no ranks, no rows, a time that is not
            positive, a rate that does not agree with its time.
    """
    if text.lstrip().startswith("{"):
        return _read_json(text, name, profile, nodes)
    lines = [_LAUNCHER.sub("", line) for line in text.splitlines()]
    starts = [number for number, line in enumerate(lines) if _HEADER.search(line)] or [0]
    for which, begin in enumerate(starts):  # the collective's line comes right before the header
        while begin > 0 and _NAMED.search(lines[begin - 1]):
            begin -= 1
        starts[which] = begin
    starts[0] = 0
    samples: list[Sample] = []
    refusals: list[Refusal] = []
    for begin, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        read, left = _read_output(lines, begin, end, name if len(starts) == 1 else "", profile, nodes, name)
        samples += read
        refusals += left
    return samples, refusals


def _read_output(
    lines: list[str], begin: int, end: int, hint: str, profile: str, nodes: int, name: str
) -> tuple[list[Sample], list[Refusal]]:
    """The output in some lines of a file; ``hint`` is the file's name where it may name the collective."""
    text = "\n".join(lines[begin:end])
    test = _TEST.search(text)
    if test is not None and not any(word in test[1].lower() for word in KINDS):
        return [], [Refusal(f"{name}:{begin + 1}", f"no section describes {test[1]}")]
    head = text[:2000].partition("Using devices")[0]
    kind = _kind(head, hint, f"{name}:{begin + 1}" if begin else name)
    listed = list(_RANK.finditer(text))
    hosts = {int(rank[1]): rank[2] for rank in listed}
    header = _HEADER.search(text)
    ranks = len(hosts) or (int(header[1]) if header else 0)
    if ranks < 2:
        raise ConfigError("no ranks", where=name, expected="lines '# Rank 0 ... on HOST', two at least", got=ranks)
    count = max(len(set(hosts.values())), nodes)
    rows = []
    refusals = []
    for number in range(begin, end):
        row = None if lines[number].lstrip().startswith("#") else _ROW.match(lines[number])
        if row is None:
            continue
        where = f"{name}:{number + 1}"
        cells = row[6].split()
        if len(cells) < 3:
            refusals.append(Refusal(where, "cut off"))
            continue
        wrong = cells[3] if len(cells) > 3 else "0"
        if wrong.isdigit() and int(wrong) > 0:
            refusals.append(Refusal(where, "its results are wrong, as nccl-tests says"))
            continue
        try:
            rows.append((where, float(row[1]), float(cells[0]), float(cells[1])))
        except ValueError as error:
            raise ConfigError(
                "a row that cannot be read", where=where, expected="time [us], algbw, busbw [GB/s]", got=str(error)
            ) from error
    device = named_device((rank[3] for rank in listed), profile)
    return list(_samples(rows, kind, ranks, count, name, device)), refusals


def _read_json(text: str, name: str, profile: str, nodes: int) -> tuple[list[Sample], list[Refusal]]:
    document = parse_json(text, name, EXPECTED)
    results = document.get("results")
    if not isinstance(results, list):
        raise ConfigError("no results", where=f"{name} results", expected=EXPECTED, got=", ".join(list(document)[:8]))
    kind = _kind(str(document.get("collective") or document.get("args") or document.get("test") or ""), name, name)
    devices = document.get("devices")
    devices = devices if isinstance(devices, list) else document.get("ranks")
    items = devices if isinstance(devices, list) else []
    if not all(isinstance(item, dict) for item in items):
        raise ConfigError("not a list of devices", where=f"{name} devices", expected="tables with a hostname each")
    hosts = [str(item.get("host") or item.get("hostname")) for item in items]
    ranks = len(hosts) or _count(document)
    if ranks < 2:
        raise ConfigError("no ranks", where=name, expected="devices, a list of two at least, or nranks", got=ranks)
    rows = []
    for number, result in enumerate(results):
        where = f"{name} results[{number}]"
        try:
            times = result.get("out_of_place") or result.get("out-of-place") or result
            rate = times.get("alg_bw", times.get("algbw", 0.0)) or 0.0
            rows.append((where, float(result["size"]), float(times["time"]), float(rate)))
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise ConfigError(
                "a result that cannot be read", where=where, expected="size, out_of_place.time [us]", got=repr(error)
            ) from error
    device = named_device((str(item.get("device_name") or "") for item in items), profile)
    return list(_samples(rows, kind, ranks, max(len(set(hosts)), nodes), name, device)), []


def _count(document: Mapping[str, Any]) -> int:
    config = document.get("config")
    for table in (document, config if isinstance(config, dict) else {}):
        for key in ("nranks", "nRanks", "ranks", "ngpus"):
            if isinstance(table.get(key), int):
                return int(table[key])
    return 0


def _kind(head: str, name: str, where: str) -> str:
    """The collective, from the output's words or the file's name."""
    for words in (head.lower(), name.lower()):
        for word, kind in KINDS.items():
            if word in words:
                return kind
    raise ConfigError(
        "nothing tells which collective this is",
        where=where,
        expected="a file named after the test, e.g. all_reduce_perf.txt; one of " + ", ".join(sorted(KINDS)),
    )


def _samples(
    rows: list[tuple[str, float, float, float]], kind: str, ranks: int, nodes: int, name: str, device: str
) -> Iterator[Sample]:
    """Samples of rows (place, size [bytes], time [us], size over time [GB/s], 0 without)."""
    measured = [row for row in rows if row[1] > 0]
    if not measured:
        raise ConfigError("no rows of times", where=name, expected=EXPECTED, got=f"{len(rows)} rows of no bytes")
    large = [(where, size) for where, size, _, _ in measured if size > _LARGEST_BYTES]
    if large:
        raise ConfigError("not a size", where=large[0][0], expected=f"up to {_LARGEST_BYTES:g} bytes", got=large[0][1])
    bad = [f"{where} ({time})" for where, _, time, _ in measured if not _SHORTEST_US <= time <= _LONGEST_US]
    if bad:
        raise ConfigError(
            f"{len(bad)} times that are not positive numbers",
            where=bad[0].partition(" (")[0],
            expected="times > 0 [us]",
            got=places(bad),
        )
    for where, moved, time, rate in measured:
        expected = moved / time * 1e-3
        if rate > 0 and abs(expected - rate) > 0.1 * expected + 0.01:
            raise ConfigError(
                "time and rate do not agree: mixed units?",
                where=where,
                expected=f"algbw about {expected:.4g} GB/s for this time [us]",
                got=rate,
            )
    if kind == "p2p":
        ranks, nodes = 2, 2 if nodes > 1 else 1
    port = "nic" if nodes > 1 else "nvlink"
    whole = float(kind == "all_reduce" and port == "nvlink" and ranks == 8)
    for where, moved, time, _ in measured:
        shape = (float(ranks), float(nodes), moved, whole)
        yield Sample(f"link.{port}.{kind}", shape, time * 1e-6, "nccl-tests", device, where)
