"""``read_nccl``: what nccl-tests print, as text or as JSON (``-J FILE``) -> samples.

The text names the collective in no line of its own: it is told by the program's name in the header (``# Collective test
starting: all_reduce_perf``, since 2.14), else by the file's name (``all_reduce_perf.txt``). Out-of-place times count.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from semu.errors import ConfigError
from semu.fitting.samples import MOST_NAMED, Refusal, Sample

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
_HEADER = re.compile(r"#\s*nThread\s+\d+\s+nGpus\s+(\d+)")
_RANK = re.compile(r"#\s*Rank\s+(\d+)\s.*\bon\s+(\S+)")
_ROW = re.compile(r"^\s*(\d+)\s+(\d+)\s+(\w+)\s+(\S+)\s+(-?\d+)\s+(.*)$")


def is_nccl(text: str) -> bool:
    """Whether a text is the output of nccl-tests."""
    head = text[:20_000]
    if head.lstrip().startswith("{"):
        return '"busbw' in text.lower() or '"bus_bw' in text.lower()
    return _HEADER.search(head) is not None or ("busbw" in head and "# " in head)


def read_nccl(text: str, name: str, profile: str, *, nodes: int = 1) -> tuple[list[Sample], list[Refusal]]:
    """Read one output.

    Args:
        text: the file. name: of the file. profile: name of the device that ran it.
        nodes: of the ranks, where the output does not name the hosts of its ranks.
    Raises:
        ConfigError: no collective can be told, no ranks, no rows, a time that is not positive.
    """
    if text.lstrip().startswith("{"):
        return _read_json(text, name, profile, nodes)
    kind = _kind(text[:2000], name)
    hosts = {int(found[1]): found[2] for found in _RANK.finditer(text)}
    header = _HEADER.search(text)
    ranks = len(hosts) or (int(header[1]) if header else 0)
    if ranks < 2:
        raise ConfigError("no ranks", where=name, expected="lines '# Rank 0 ... on HOST', two at least", got=ranks)
    count = max(len(set(hosts.values())), nodes)
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        found = None if line.lstrip().startswith("#") else _ROW.match(line)
        if found is not None:
            rows.append((f"{name}:{number}", float(found[1]), float(found[6].split()[0])))
    return list(_samples(rows, kind, ranks, count, name, profile)), []


def _read_json(text: str, name: str, profile: str, nodes: int) -> tuple[list[Sample], list[Refusal]]:
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"not JSON: {error.msg}", where=f"{name}:{error.lineno}", expected=EXPECTED) from error
    results = document.get("results")
    if not isinstance(results, list):
        raise ConfigError("no results", where=f"{name} results", expected=EXPECTED, got=", ".join(list(document)[:8]))
    told = str(document.get("collective") or document.get("args") or document.get("test") or "")
    kind = _kind(told, name)
    devices = document.get("devices")
    devices = devices if isinstance(devices, list) else document.get("ranks")
    hosts = [str(item.get("host") or item.get("hostname")) for item in devices] if isinstance(devices, list) else []
    ranks = len(hosts) or _count(document)
    if ranks < 2:
        raise ConfigError("no ranks", where=name, expected="devices, a list of two at least, or nranks", got=ranks)
    rows = []
    for number, result in enumerate(results):
        where = f"{name} results[{number}]"
        try:
            own = result.get("out_of_place") or result.get("out-of-place") or result
            rows.append((where, float(result["size"]), float(own["time"])))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                "a result that cannot be read", where=where, expected="size, out_of_place.time [us]", got=repr(error)
            ) from error
    return list(_samples(rows, kind, ranks, max(len(set(hosts)), nodes), name, profile)), []


def _count(document: Mapping[str, Any]) -> int:
    config = document.get("config")
    for table in (document, config if isinstance(config, dict) else {}):
        for key in ("nranks", "nRanks", "ranks", "ngpus"):
            if isinstance(table.get(key), int):
                return int(table[key])
    return 0


def _kind(told: str, name: str) -> str:
    """The collective, from the output's words or the file's name."""
    for words in (told.lower(), name.lower()):
        found = [kind for word, kind in KINDS.items() if word in words]
        if found:
            return found[0]
    raise ConfigError(
        "nothing tells which collective this is",
        where=name,
        expected="a file named after the test, e.g. all_reduce_perf.txt; one of " + ", ".join(sorted(KINDS)),
    )


def _samples(
    rows: list[tuple[str, float, float]], kind: str, ranks: int, nodes: int, name: str, profile: str
) -> Iterator[Sample]:
    measured = [row for row in rows if row[1] > 0]
    if not measured:
        raise ConfigError("no rows of times", where=name, expected=EXPECTED, got=f"{len(rows)} rows of no bytes")
    bad = [f"{where} ({time})" for where, _, time in measured if not (math.isfinite(time) and time > 0)]
    if bad:
        raise ConfigError(
            f"{len(bad)} times that are not positive numbers",
            where=bad[0].partition(" (")[0],
            expected="times > 0 [us]",
            got=", ".join(bad[:MOST_NAMED]),
        )
    if kind == "p2p":
        ranks, nodes = 2, 2 if nodes > 1 else 1
    port = "nic" if nodes > 1 else "nvlink"
    whole = float(kind == "all_reduce" and port == "nvlink" and ranks == 8)
    for where, moved, time in measured:
        shape = (float(ranks), float(nodes), moved, whole)
        yield Sample(f"link.{port}.{kind}", shape, time * 1e-6, "nccl-tests", profile, where)
