"""Files of events: ``time_s,node,event,notice_s``; Bamboo's ``timestamp,count`` and ``hours,count``; Slurm's ``sacct``.

``read_events`` tells them apart by their first line. Of files that say how many nodes there are, not which, the node
that goes is the one with the highest number, and the one that comes the lowest that is not there.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from semu.checks import check_integer, check_number
from semu.errors import ConfigError, unknown_name
from semu.resilience.events import LONGEST_S, NodeChange, NodeEvents

_OWN = ("time_s", "node", "event", "notice_s")
_CHANGES = {
    "fail": NodeChange.FAIL,
    "remove": NodeChange.FAIL,
    "preempt": NodeChange.FAIL,
    "join": NodeChange.JOIN,
    "add": NodeChange.JOIN,
    "repair": NodeChange.JOIN,
}
_Row = tuple[int, list[str]]
_Event = tuple[float, int, NodeChange, float]
SACCT_FAULTS = ("NODE_FAIL", "FAILED", "BOOT_FAIL")
"""States of sacct in which a job was interrupted."""


def read_events(path: str | os.PathLike[str], nodes: int) -> NodeEvents:
    """Events of a file.

    Args:
        path: the file. nodes: of the cluster: node names of the file are 0 to nodes - 1.
    Raises:
        ConfigError: a file that cannot be read, of another form, with times out of order, an unknown node, a node that
            fails while it is down or comes while it is there, more nodes than the cluster has.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the trace: {error}", where=str(path), expected="a file of events") from error
    lines = text.splitlines()
    first = next((line for line in lines if line.strip()), "")
    if "|" in first:
        return NodeEvents.of(_sacct(str(path), lines, nodes))
    try:
        rows = [
            (number, [cell.strip() for cell in row])
            for number, row in enumerate(csv.reader(lines), 1)
            if any(cell.strip() for cell in row) and not row[0].lstrip().startswith("#")
        ]
    except csv.Error as error:
        raise ConfigError(f"not a CSV table: {error}", where=str(path), expected="a file of events") from error
    heads = [cell.lower() for cell in rows[0][1]] if rows else []
    if heads[:3] == list(_OWN[:3]):
        return NodeEvents.of(_own(str(path), rows[1:], nodes))
    if heads in (["timestamp", "count"], ["hours", "count"]) or (len(heads) == 2 and _is_number(heads[0])):
        has_head = not _is_number(heads[0])
        scale = 3600.0 if heads[0] == "hours" else 1.0
        return NodeEvents.of(_counts(str(path), rows[has_head:], nodes, scale))
    raise ConfigError(
        "not a trace of nodes",
        where=f"{path}:1",
        expected="a first line time_s,node,event,notice_s, timestamp,count, hours,count or JobID|State|Start|End",
        got=first,
    )


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d*)?([eE][+-]?\d+)?", text) is not None


def _number(text: str, where: str, what: str) -> float:
    try:
        value: object = float(text)
    except ValueError:
        value = text
    return check_number(value, where, what, most=LONGEST_S)


def _own(path: str, rows: list[_Row], nodes: int) -> Iterator[_Event]:
    """``time_s,node,event,notice_s``."""
    last, is_alive = 0.0, [True] * nodes
    for number, row in rows:
        where = f"{path}:{number}"
        if not 3 <= len(row) <= 4:
            raise ConfigError("not an event", where=where, expected=",".join(_OWN), got=",".join(row))
        time = _number(row[0], f"{where} time_s", "a time")
        if time < last:
            raise ConfigError("events out of order", where=f"{where} time_s", expected=f">= {last:g}", got=row[0])
        last = time
        node = check_integer(
            int(row[1]) if row[1].lstrip("-").isdecimal() else row[1],
            f"{where} node",
            "a node of the cluster",
            least=0,
            most=nodes - 1,
        )
        change = _CHANGES.get(row[2].lower())
        if change is None:
            raise unknown_name("event", row[2], _CHANGES, where=f"{where} event")
        if is_alive[node] is not (change is NodeChange.FAIL):
            said = "fails while it is down" if change is NodeChange.FAIL else "comes while it is there"
            other = "join" if change is NodeChange.FAIL else "fail"
            raise ConfigError(f"node {node} {said}", where=where, expected=f"a {other} of node {node} before")
        is_alive[node] = change is NodeChange.JOIN
        notice = _number(row[3], f"{where} notice_s", "a time") if len(row) == 4 and row[3] else 0.0
        yield time, node, change, notice


def _counts(path: str, rows: list[_Row], nodes: int, scale: float) -> Iterator[_Event]:
    """``timestamp,count``: how many nodes there are from then on; the first line's time is the beginning, at which all
    of the cluster's nodes are there."""
    have, begin, last = nodes, None, 0.0
    for number, row in rows:
        where = f"{path}:{number}"
        if len(row) != 2:
            raise ConfigError("not a line of a trace", where=where, expected="a time, a number of nodes", got=row)
        time = _number(row[0], f"{where} time", "a time") * scale
        begin = time if begin is None else begin
        if time - begin < last:
            raise ConfigError("events out of order", where=where, expected=f">= {(last + begin) / scale:g}", got=row[0])
        last = time - begin
        count = int(row[1]) if row[1].isdecimal() else row[1]
        want = check_integer(count, f"{where} count", "a number of nodes that the cluster has", least=0, most=nodes)
        for node in range(have - 1, want - 1, -1):
            yield last, node, NodeChange.FAIL, 0.0
        for node in range(have, want):
            yield last, node, NodeChange.JOIN, 0.0
        have = want


def _sacct(path: str, lines: list[str], nodes: int) -> Iterator[_Event]:
    """Output of ``sacct -P``: every interrupted job is a failure of a node at its ``End``, which another node replaces
    at once; the beginning is the first ``Start``."""
    rows = [
        (number, line.split("|")) for number, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")
    ]
    heads = [cell.strip().lower() for cell in rows[0][1]]
    for needed in ("state", "start", "end"):
        if needed not in heads:
            raise ConfigError(
                f"sacct's output without {needed.capitalize()}",
                where=f"{path}:{rows[0][0]}",
                expected="sacct -P --format=JobID,State,Start,End",
                got="|".join(heads),
            )
    at = {name: heads.index(name) for name in ("state", "start", "end")}
    jobs = []
    for number, row in rows[1:]:
        where = f"{path}:{number}"
        if len(row) < len(heads):
            raise ConfigError("a line of sacct that was cut off", where=where, expected=f"{len(heads)} fields", got=row)
        if row[at["end"]] in ("Unknown", "") or row[at["start"]] in ("Unknown", "None", ""):
            continue  # it has not ended, or never began
        times = [_date(row[at[name]], f"{where} {name.capitalize()}") for name in ("start", "end")]
        jobs.append((times[0], times[1], row[at["state"]].split(" ")[0]))
    begin = min((start for start, _, _ in jobs), default=0.0)
    faults = sorted(end - begin for _, end, state in jobs if state in SACCT_FAULTS)
    for k, time in enumerate(faults):
        yield time, k % nodes, NodeChange.FAIL, 0.0
        yield time, k % nodes, NodeChange.JOIN, 0.0


def _date(text: str, where: str) -> float:
    try:
        return (datetime.fromisoformat(text.strip()) - datetime(2000, 1, 1)).total_seconds()
    except (ValueError, TypeError) as error:
        raise ConfigError("not a date", where=where, expected="2024-05-01T12:00:00", got=text) from error
