"""``ExecutionPlan``: what may be in it, and its JSON: the same data again, and an exact place for everything wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation.jobs import job_of, vlm, vlm_items

from semu.errors import ConfigError, ScheduleError, SemuError
from semu.parallel.config import Parallel
from semu.plan.action import KINDS, ActionKind
from semu.plan.compile import compile_plan
from semu.plan.plan import (
    ExecutionPlan,
    PlanChunk,
    PlanEstimates,
    PlanMessages,
    PlanPairs,
    RankActions,
    model_hash_of,
)
from semu.plan.verification.rules import verify
from semu.schedule.stage_plan import STRATEGIES


def numbers(draw: st.DrawFn, count: int, most: int, least: int = 0) -> list[int]:
    return draw(st.lists(st.integers(least, most), min_size=count, max_size=count))


def items(draw: st.DrawFn, replicas: int, count: int) -> np.ndarray[Any, Any]:
    table = np.array(numbers(draw, 2 * replicas * count, 99), dtype=np.int32).reshape(replicas, count, 2)
    return np.sort(table, axis=2)


def times(draw: st.DrawFn, count: int) -> list[float]:
    return draw(st.lists(st.floats(0, 1e6, allow_subnormal=True), min_size=count, max_size=count))


@st.composite
def any_plan(draw: st.DrawFn) -> ExecutionPlan:
    """Data that a plan may hold; hardly ever one that can run."""
    ranks, replicas, microbatches = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(0, 3))
    chunks = []
    for _ in range(draw(st.integers(0 if not microbatches else 1, 3))):
        layers = draw(st.integers(0, 3))
        words = st.lists(st.sampled_from(STRATEGIES), min_size=layers, max_size=layers).map(tuple)
        chunks.append(
            PlanChunk(
                draw(st.sampled_from(["vit", "llm", 'a "b" \u00e9'])),
                draw(st.integers(0, ranks - 1)),
                draw(st.integers(0, 9)),
                layers,
                draw(st.booleans()),
                tuple(draw(st.lists(words, min_size=1, max_size=3))),
                draw(st.integers(0, 1)),
            )
        )
    n = draw(st.integers(0, 4)) if microbatches else 0
    m = draw(st.integers(0, 4)) if n and ranks > 1 else 0
    chunk = numbers(draw, n, len(chunks) - 1) if n else []
    sender = numbers(draw, m, ranks - 1) if m else []
    pairs = PlanPairs(
        chunk=chunk,  # type: ignore[arg-type]  # lists are taken as well
        microbatch=numbers(draw, n, microbatches - 1) if n else [],  # type: ignore[arg-type]
        part=numbers(draw, n, 5),  # type: ignore[arg-type]
        variant=[draw(st.integers(0, len(chunks[c].variants) - 1)) for c in chunk],  # type: ignore[arg-type]
        items=items(draw, replicas, n),
    )
    messages = PlanMessages(
        source=numbers(draw, m, 2 * n - 1) if m else [],  # type: ignore[arg-type]
        target=numbers(draw, m, 2 * n - 1) if m else [],  # type: ignore[arg-type]
        source_rank=sender,  # type: ignore[arg-type]
        target_rank=[(rank + draw(st.integers(1, ranks - 1))) % ranks for rank in sender],  # type: ignore[arg-type]
        tag=numbers(draw, m, 9),  # type: ignore[arg-type]
        num_bytes=np.array(numbers(draw, replicas * m, 2**40), dtype=np.int64).reshape(replicas, m),
        items=items(draw, replicas, m),
    )
    actions = []
    for _ in range(ranks):
        kinds = [kind for kind in KINDS if (n if kind.is_stage or kind.is_exchange else m)]
        rows = []
        for kind in draw(st.lists(st.sampled_from(kinds), max_size=6)) if kinds else []:
            launched = kind in (ActionKind.ISEND, ActionKind.IRECV)
            batch = draw(st.integers(-1, 9)) if launched else -1
            rows.append((kind.code, draw(st.integers(0, (n if kind.is_stage or kind.is_exchange else m) - 1)), batch))
        table = np.array(rows, dtype=np.int64).reshape(-1, 3)
        actions.append(RankActions(table[:, 0], table[:, 1], table[:, 2]))  # type: ignore[arg-type]
    estimates = None
    if draw(st.booleans()):
        spans = [np.array(times(draw, len(own))) for own in actions]
        more = draw(st.booleans())
        estimates = PlanEstimates(
            draw(st.text(max_size=5)),
            *times(draw, 2),
            np.array(numbers(draw, ranks, 2**40), dtype=np.int64),
            tuple(spans),
            tuple(spans),
            draw(st.integers(0, replicas - 1)),
            np.array(times(draw, m if more else 0)),
            np.array(times(draw, m if more else 0)),
            np.array(numbers(draw, ranks if more else 0, 2**40), dtype=np.int64),
        )
    return ExecutionPlan(
        name=draw(st.text(max_size=5)),
        model_hash=model_hash_of(chunks, ranks),
        num_ranks=ranks,
        num_replicas=replicas,
        num_microbatches=microbatches,
        chunks=tuple(chunks),
        pairs=pairs,
        messages=messages,
        actions=tuple(actions),
        limit_bytes=np.array(numbers(draw, ranks, 2**40), dtype=np.int64),
        problem=draw(st.none() | st.just({"model": "a", "batch": [{"text": [1, 2]}]})),
        estimates=estimates,
    )


def parts_of(value: object) -> object:
    """Everything in a plan, arrays with their types."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tolist()
    if isinstance(value, tuple):
        return [parts_of(own) for own in value]
    if hasattr(value, "__dataclass_fields__"):
        return {name: parts_of(getattr(value, name)) for name in value.__dataclass_fields__}
    return value


@settings(max_examples=40, deadline=None)
@given(any_plan())
def test_files_hold_everything(plan: ExecutionPlan) -> None:
    text = plan.to_json()
    again = ExecutionPlan.from_json(text)
    assert parts_of(again) == parts_of(plan)
    assert again.to_json() == text
    assert plan.to_text().startswith(repr(plan))


@pytest.fixture(scope="module")
def compiled() -> ExecutionPlan:
    return compile_plan(job_of(vlm(layers=4), vlm_items(3, seed=4), Parallel(pp=2, dp=1)))


def test_a_file(compiled: ExecutionPlan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    compiled.write(path)
    assert parts_of(ExecutionPlan.read(path)) == parts_of(compiled)
    with pytest.raises(ConfigError, match="cannot read the plan"):
        ExecutionPlan.read(tmp_path / "none.json")
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not a text file"):
        ExecutionPlan.read(path)
    with pytest.raises(ConfigError, match="cannot write"):
        compiled.write(tmp_path / "no" / "plan.json")


Change = Callable[[dict[str, Any]], object]


def put(*path: Any) -> Change:
    """Set ``table[path[0]][path[1]]... = path[-1]``."""

    def change(table: Any) -> None:
        for key in path[:-2]:
            table = table[key]
        table[path[-2]] = path[-1]

    return change


def drop(*path: Any) -> Change:
    def change(table: Any) -> None:
        for key in path[:-1]:
            table = table[key]
        del table[path[-1]]

    return change


DAMAGES: dict[str, tuple[Change, type[SemuError], str]] = {
    "later version": (put("format", "semu plan 2"), ScheduleError, "p.json: format: a plan of a later version of semu"),
    "no version": (put("format", "semu plan 0"), ScheduleError, "a version that never was"),
    "another file": (put("format", "semu schedule 1"), ScheduleError, "p.json: not a plan of this format"),
    "no format": (drop("format"), ScheduleError, "not a plan of this format"),
    "unknown key": (put("speed", 1), ConfigError, "p.json: speed: unknown key 'speed'"),
    "unknown column": (
        put("pairs", "chunks", []),
        ConfigError,
        "plan.pairs: chunks: unknown key 'chunks', did you mean",
    ),
    "unknown estimate": (put("estimates", "mfu", 1), ConfigError, "plan.estimates: mfu: unknown key"),
    "unknown of a chunk": (put("chunks", 0, "layer", 1), ConfigError, "plan.chunks[0]: layer: unknown key"),
    "missing": (drop("pairs"), ScheduleError, "p.json: a key is missing; expected pairs"),
    "missing column": (drop("messages", "tag"), ScheduleError, "plan.messages: a key is missing; expected tag"),
    "missing of a chunk": (drop("chunks", 1, "rank"), ScheduleError, "plan.chunks[1]: a key is missing; expected rank"),
    "a list for a table": (put("pairs", []), ScheduleError, "plan.pairs: not a table"),
    "a word for a list": (put("pairs", "chunk", "0"), ScheduleError, "plan.pairs.chunk: not a list"),
    "a float": (put("pairs", "chunk", 0, 0.5), ScheduleError, "plan.pairs.chunk: not whole numbers"),
    "a word": (put("messages", "tag", 0, "x"), ScheduleError, "plan.messages.tag: not whole numbers"),
    "a flag": (put("num_ranks", True), ScheduleError, "plan.num_ranks: not a valid number"),
    "no ranks": (put("num_ranks", 0), ScheduleError, "plan.num_ranks: not a valid number; expected an integer >= 1"),
    "more ranks": (put("num_ranks", 3), ScheduleError, "plan.limit_bytes: an array of another shape"),
    "a chunk elsewhere": (put("chunks", 0, "rank", 2), ScheduleError, "plan.chunks[0].rank: no such rank"),
    "a strategy": (
        put("chunks", 0, "variants", [["some"] * 6]),
        ScheduleError,
        "plan.chunks[0].variants[0]: unknown mem",
    ),
    "strategies": (
        put("chunks", 0, "variants", [["full"]]),
        ScheduleError,
        "plan.chunks[0].variants[0]: not a strategy",
    ),
    "no variant": (put("chunks", 0, "variants", []), ScheduleError, "plan.chunks[0].variants: no variant"),
    "layers": (put("chunks", 0, "layers", [1]), ScheduleError, "plan.chunks[0].layers: not layers"),
    "a shorter column": (drop("pairs", "part", 0), ScheduleError, "plan.pairs.part: an array of another shape"),
    "no such chunk": (put("pairs", "chunk", 2, 3), ScheduleError, "plan.pairs.chunk[2]: out of range; expected 0 to 2"),
    "no such microbatch": (put("pairs", "microbatch", 0, 3), ScheduleError, "plan.pairs.microbatch[0]: out of range"),
    "no such variant": (put("pairs", "variant", 1, 1), ScheduleError, "plan.pairs.variant[1]: no such variant"),
    "items": (put("pairs", "items", 0, 2, [4, 3]), ScheduleError, "plan.pairs.items[0][2]: items that end before"),
    "items of one": (put("pairs", "items", 0, 2, [4]), ScheduleError, "plan.pairs.items: not a table of numbers"),
    "no such stage": (put("messages", "source", 0, 18), ScheduleError, "plan.messages.source[0]: out of range"),
    "no such rank": (put("messages", "source_rank", 0, 2), ScheduleError, "plan.messages.source_rank[0]: out of range"),
    "to itself": (
        put("messages", "target_rank", 0, 0),
        ScheduleError,
        "plan.messages.target_rank[0]: a message to its",
    ),
    "less than nothing": (
        put("messages", "num_bytes", 0, 1, -1),
        ScheduleError,
        "plan.messages.num_bytes[0][1]: out of",
    ),
    "too much": (put("messages", "tag", 0, 2**31), ScheduleError, "plan.messages.tag[0]: out of range"),
    "no replica": (
        put("messages", "num_bytes", []),
        ScheduleError,
        "plan.messages.num_bytes: an array of another shape",
    ),
    "a replica": (put("num_replicas", 2), ScheduleError, "plan.pairs.items: not a row for every replica"),
    "an action": (put("actions", 1, "F0 X1"), ScheduleError, "plan.actions[1], position 1: not an action"),
    "no line": (put("actions", 1, 5), ScheduleError, "plan.actions[1]: not a line of actions"),
    "no such pair": (
        put("actions", 0, "F9"),
        ScheduleError,
        "plan.actions[0].target[0]: no such pair; expected 0 to 8",
    ),
    "no such message": (put("actions", 0, "F0 s6@0"), ScheduleError, "plan.actions[0].target[1]: no such message"),
    "a batch of a stage": (put("actions", 0, "F0@1"), ScheduleError, "plan.actions[0].batch[0]: a batch of something"),
    "a rank less": (drop("actions", 1), ScheduleError, "plan.actions: not actions of every rank; expected 2; got 1"),
    "a time less": (drop("estimates", "start_s", 0, 0), ScheduleError, "plan.estimates.start_s: not a time for every"),
    "a rank's times": (drop("estimates", "end_s", 0), ScheduleError, "plan.estimates.end_s: not a time for every"),
    "no time": (put("estimates", "makespan_s", -1), ScheduleError, "plan.estimates.makespan_s: not a time"),
    "a peak less": (
        drop("estimates", "peak_memory_bytes", 0),
        ScheduleError,
        "plan.estimates.peak_memory_bytes: of ano",
    ),
    "an arrival less": (
        drop("estimates", "transfer_end_s", 0),
        ScheduleError,
        "plan.estimates.transfer_end_s: of anoth",
    ),
    "another replica": (put("estimates", "replica", 1), ScheduleError, "plan.estimates.replica: no such replica"),
    "a problem": (put("problem", [1]), ScheduleError, "plan.problem: not a table"),
    "a name": (put("name", 3), ScheduleError, "plan.name: not a text"),
    "half a character": (put("name", "\ud800"), ScheduleError, "plan.name: not a text"),
    "a number beyond all": (
        put("num_microbatches", 10**30),
        ScheduleError,
        "plan.num_microbatches: out of range; expected 0 to 2147483647",
    ),
    "a layer beyond all": (
        put("chunks", 0, "layers", [10**30, 6]),
        ScheduleError,
        "plan.chunks[0].first_layer: out of range",
    ),
    "a message beyond all": (
        put("messages", "num_bytes", 0, 1, 2**62),
        ScheduleError,
        "plan.messages.num_bytes[0][1]: out of range",
    ),
    "a stage beyond all": (
        put("estimates", "memory", "held_bytes", 0, 2**63 - 1),
        ScheduleError,
        "plan.estimates.memory.held_bytes[0]: out of range",
    ),
    "no chunks": (put("chunks", {}), ScheduleError, "plan.chunks: not a list"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damages_are_named(compiled: ExecutionPlan, name: str) -> None:
    change, kind, words = DAMAGES[name]
    table = json.loads(compiled.to_json())
    change(table)
    with pytest.raises(kind) as caught:
        ExecutionPlan.from_json(json.dumps(table), "p.json")
    assert type(caught.value) is kind
    assert words in str(caught.value)
    assert "p.json" in str(caught.value.where) or kind is ConfigError
    assert caught.value.exit_code == (4 if kind is ScheduleError else 2)


def test_torn_files(compiled: ExecutionPlan) -> None:
    text = compiled.to_json()
    for end in range(0, len(text) - 2, 997):
        with pytest.raises(ScheduleError, match="not JSON"):
            ExecutionPlan.from_json(text[:end])
    for other in ("[]", "null", "1", '"semu plan 1"', text.replace('"makespan_s": 0.', '"makespan_s": NaN, "x": 0.')):
        with pytest.raises(ScheduleError, match=r"not a plan of this format|not JSON"):
            ExecutionPlan.from_json(other)


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_no_damage_is_a_crash(data: st.DataObject) -> None:
    """Whatever is put in the place of something: a plan, which can run or not, or an error of ours."""
    table = json.loads(small_plan())
    place: Any = table
    while True:
        key = data.draw(st.sampled_from([*place]) if isinstance(place, dict) else st.integers(0, len(place) - 1))
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    odd = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
    place[key] = data.draw(odd | st.lists(odd, max_size=2) | st.dictionaries(st.text(max_size=2), odd, max_size=1))
    try:
        found = ExecutionPlan.from_json(json.dumps(table))
    except SemuError:
        return
    assert ExecutionPlan.from_json(found.to_json()).to_json() == found.to_json()
    with suppress(SemuError):
        verify(found)


@cache
def small_plan() -> str:
    return compile_plan(job_of(vlm(layers=2), vlm_items(1, seed=4), Parallel(pp=2))).to_json()


def test_a_hash_of_the_model(compiled: ExecutionPlan) -> None:
    chunks = compiled.chunks
    assert compiled.model_hash == model_hash_of(chunks, 2)
    other = (replace(chunks[0], variants=(("full",) * 6,)), *chunks[1:])
    assert model_hash_of(other, 2) == compiled.model_hash  # a runtime follows what the plan says
    for change in ({"rank": 1}, {"module": "dit"}, {"first_layer": 1}, {"has_backward": False}, {"flow": 1}):
        assert model_hash_of((replace(chunks[0], **change), *chunks[1:]), 2) != compiled.model_hash  # type: ignore[arg-type]
    assert model_hash_of(chunks, 3) != compiled.model_hash


def test_the_table_of_actions(compiled: ExecutionPlan) -> None:
    text = compiled.to_text()
    assert "chunk 0: vit, layers 0 to 5, on rank 0; none x 6" in text
    assert "rank 0: 12 stages, 3 messages sent, 3 received" in text
    lines = compiled.to_text(1).split("rank 1: ")[1].splitlines()
    assert lines[1].split() == ["at", "action", "what", "peer", "MiB", "batch", "start", "[s]", "end", "[s]"]
    assert lines[2].split()[:9] == ["0", "irecv", "1F0", "->", "2F0", "from", "0", "0.03", "0"]
    assert "backward_stage  2B0 none x 2" in text
    assert len(lines) == 2 + len(compiled.actions[1])
    assert "rank 0:" not in compiled.to_text(1)
    with pytest.raises(ConfigError, match="no such rank"):
        compiled.to_text(2)
    without = replace(compiled, estimates=None)
    assert "start [s]" not in without.to_text() and "expected:" not in repr(without)
