"""The store of what is remembered: bounds, threads, scopes, ``clear``; and that nothing is remembered elsewhere."""

from __future__ import annotations

import ast
import gc
import pickle
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import semu
from semu import memo

ROOT = Path(semu.__file__).parent


class Owner:
    """Something that values are remembered of."""


# -- tables ------------------------------------------------------------------------------------------------------------
@given(bound=st.integers(1, 6), keys=st.lists(st.integers(0, 8), max_size=80))
def test_the_last_values_asked_for_stay(bound: int, keys: list[int]) -> None:
    """Each until half as many other keys have been asked for as there may be values."""
    table, made, values = memo.Table[int]("t", bound), count(), dict[int, int]()
    for number, key in enumerate(keys):
        before, since = values.get(key), keys[:number][::-1]
        values[key] = table.get(key, lambda: next(made))
        if before is not None and len({*since[: since.index(key)]}) <= max(0, bound // 2 - 1):
            assert values[key] == before
        assert table.peek(key) == values[key]
        assert len(table) <= bound
    assert table.made == next(made)


@given(
    bound=st.integers(1, 3),
    owners=st.integers(1, 3),
    asked=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=60),
)
def test_objects_share_no_value_and_are_bounded(bound: int, owners: int, asked: list[tuple[int, int]]) -> None:
    table, every = memo.ScopedTable[tuple[int, int]]("t", bound, owners), [Owner() for _ in range(6)]
    for number, key in asked:
        assert table.get(every[number], key, lambda number=number, key=key: (number, key)) == (number, key)  # type: ignore[misc]
        assert len(table) <= bound * owners
        assert table.statistics().owners <= owners


@given(alive=st.lists(st.booleans(), min_size=1, max_size=8))
def test_values_go_with_their_object(alive: list[bool]) -> None:
    table, every = memo.ScopedTable[int]("t", 2), [Owner() for _ in alive]
    for number, owner in enumerate(every):
        table.get(owner, "key", lambda number=number: number)  # type: ignore[misc]
    kept = [owner for owner, is_kept in zip(every, alive, strict=True) if is_kept]
    del every, owner
    gc.collect(0)  # the young ones: what other tests made is much
    assert len(table) == table.statistics().owners == len(kept)
    assert [table.get(owner, "key", lambda: -1) for owner in kept] == [n for n, is_kept in enumerate(alive) if is_kept]


def test_a_value_may_be_none_and_another_may_take_its_place() -> None:
    table, made = memo.Table[int | None]("t", 2), count()
    assert table.get("key", lambda: None) is None
    assert table.get("key", lambda: next(made)) is None
    assert table.put("key", 5) == 5
    assert table.get("key", lambda: next(made)) == 5
    assert table.made == 2


def test_what_fails_is_not_remembered() -> None:
    table = memo.Table[float]("t", 3)
    with pytest.raises(ZeroDivisionError):
        table.get("a", lambda: 1 / 0)
    assert table.get("a", lambda: 1.0) == 1.0


def test_making_a_value_may_ask_the_same_table() -> None:
    table = memo.Table[int]("t", 100)

    def fibonacci(n: int) -> int:
        return table.get(n, lambda: n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2))

    assert fibonacci(50) == 12_586_269_025


def asked_at_once(ask: Callable[[], list[object]]) -> list[list[object]]:
    together, seen = threading.Barrier(8), list[list[object]]()

    def run() -> None:
        together.wait()
        seen.append(ask())

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seen


def test_threads_get_one_value() -> None:
    table, scoped, owners = memo.Table[object]("t", 8), memo.ScopedTable[object]("t", 8), [Owner(), Owner()]
    asks: list[Callable[[], list[object]]] = [
        lambda: [table.get(n % 8, object) for n in range(400)],
        lambda: [scoped.get(owners[n % 2], n % 8, object) for n in range(400)],
    ]
    for ask in asks:
        seen = asked_at_once(ask)
        assert len(seen) == 8
        assert all(values == seen[0] for values in seen)
        assert len({*seen[0]}) == 8


def test_threads_that_come_and_go_stay_within_the_bounds() -> None:
    table = memo.ScopedTable[int]("t", 4, owners=5)

    def ask() -> list[object]:
        return [table.get(Owner(), n % 7, lambda n=n: n) == n for n in range(500)]  # type: ignore[misc]

    assert all(all(values) for values in asked_at_once(ask))
    gc.collect()
    assert table.statistics().owners <= 5


# -- the store ---------------------------------------------------------------------------------------------------------
def test_clear_forgets_everything_and_statistics_tell_how_much_there_is() -> None:
    table, scoped, owner, calls = memo.Table[int]("a table", 3), memo.ScopedTable[int]("scoped", 2), Owner(), count()

    @memo.remembered(4)
    def square(n: int) -> int:
        next(calls)
        return n * n

    def mine() -> dict[str, memo.Statistics]:
        names = {"a table", "scoped", f"{square.__module__}.{square.__qualname__}"}
        return {row.name: row for row in memo.statistics() if row.name in names}

    def fill() -> None:
        assert [square(n % 3) for n in range(6)] == [0, 1, 4] * 2
        for n in range(5):
            table.get(n, lambda: 0)
        scoped.get(owner, 0, lambda: 0)

    fill()
    assert sorted(row[1:] for row in mine().values()) == [(2, 1, 1, 1), (3, 1, 3, 5), (4, 1, 3, 3)]
    memo.clear()
    assert [row[3:] for row in mine().values()] == [(0, 0)] * 3
    fill()
    assert next(calls) == 6


def test_large_values_stay_until_there_are_too_many_bytes_of_them() -> None:
    """All large tables forget what they hold when new values have come to ``LARGE_BYTES``, small tables never; within
    ``room`` later, until the next large value after it."""
    large, other = (memo.Table[object](name, 64, is_large=True) for name in ("large", "another"))
    small, half = memo.Table[int]("small", 4), memo.LARGE_BYTES // 2

    def holding(size: int) -> object:
        loop: list[object] = []
        loop.append(loop)
        held: dict[str, object] = {"columns": (np.empty(size, dtype=np.uint8), "text"), "none": None, "loop": loop}
        return held | {"again": [held] * 2}  # which is counted once

    memo.clear()
    small.get(0, lambda: 0)
    for key, held in (("a", 1), ("b", 2), ("c", 0), ("a", 1)):
        size = half - 1 if key != "c" else 2
        large.get(key, lambda size=size: holding(size))  # type: ignore[misc]
        assert len(large) == held, key
    other.get("d", lambda: holding(half))
    assert len(other) == 1
    other.get("e", lambda: holding(half))
    assert (len(large), len(other), len(small)) == (0, 0, 1)
    with memo.room(4 * memo.LARGE_BYTES):
        for number in range(7):
            large.get(number, lambda: holding(half))
        assert len(large) == 7
    large.get("after", lambda: holding(0))
    assert len(large) == 0


def test_a_scope_is_one_thing_in_a_copy_of_what_holds_it() -> None:
    scope = memo.Scope()
    one, same = pickle.loads(pickle.dumps((scope, scope)))
    assert one is same
    assert one is not scope


def test_the_same_objects_are_one_key_and_equal_ones_are_not() -> None:
    table, one, other = memo.Table[int]("t", 4), [1], [1]
    keys = [memo.Same([one, one]), memo.Same((one, one)), memo.Same([one, other]), memo.Same([one])]
    assert [table.get(key, lambda n=n: n) for n, key in enumerate(keys)] == [0, 0, 2, 3]  # type: ignore[misc]
    assert keys[0] != (one, one)


def test_every_table_says_what_it_holds() -> None:
    """Two tables of one name could not be told apart; a bound of nothing would never remember."""
    for room in ("searcher", "simulation", "workload"):
        import_module(f"semu.{room}")
    rows = memo.statistics()
    names = [row.name for row in rows if row.name not in {"t", "a table", "scoped"}]
    assert len(names) == len({*names}) > 20
    assert all(row.bound > 0 for row in rows)


# -- nothing is remembered elsewhere -----------------------------------------------------------------------------------
def trees() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(ROOT.rglob("*.py")):
        yield str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))


NOT_RESULTS = {
    ("searcher/engines/local.py", "_WORK"),  # what a worker process is for
    ("ahead.py", "_running"),  # the command whose kernels are compiled
    ("ahead.py", "_trouble"),  # why compiled kernels cannot be kept
    ("stored.py", "_linkers"),  # the process' one linker of stored machine code
    ("compiler.py", "_types_of_calls"),  # of numba's own functions, as many as kernels have calls of different types
    ("compiler.py", "_without_variables"),  # of numba's statements, which has some dozen
}


def is_empty_container(node: ast.expr | None) -> bool:
    if isinstance(node, ast.Dict | ast.List):
        return not (node.keys if isinstance(node, ast.Dict) else node.elts)
    return (
        isinstance(node, ast.Call)
        and not node.args
        and ast.unparse(node.func).split("[")[0].rpartition(".")[2]
        in {
            *(
                "dict",
                "list",
                "set",
                "defaultdict",
                "OrderedDict",
                "WeakKeyDictionary",
                "WeakValueDictionary",
                "Values",
            ),
        }
    )


def test_no_other_file_has_a_table_of_its_own() -> None:
    """Containers of modules that begin empty are filled later: they remember something. So do caches of functools."""
    found = set()
    for name, tree in trees():
        if name == "memo.py":
            continue
        for node in tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and is_empty_container(node.value):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                found.add((name, ast.unparse(target)))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module in {"functools", "weakref"}:
                found |= {(name, alias.name) for alias in node.names if alias.name in {"lru_cache", "cache"}}
    assert found <= NOT_RESULTS


def test_tables_are_declared_at_the_top_of_files() -> None:
    for name, tree in trees():
        top = {id(node.value) for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).split("[")[0] in {
                "memo.Table",
                "memo.ScopedTable",
            }:
                assert id(node) in top, f"{name}:{node.lineno}"


WITHIN_A_CALL = {
    *("compile/structure.py", "executor/backward.py", "executor/model.py", "memo.py", "nn/layers/lora.py"),
    *("nn/model.py", "nn/module.py", "nn/trace/autograd.py", "nn/trace/tracing.py", "present/traces/columns.py"),
    *("searcher/grid/content.py", "searcher/grid/hunt.py", "simulation/checks/modality_inputs.py"),
    *("simulation/data_parallel/step.py", "simulation/pipeline.py", "simulation/replica_costs.py"),
    *("simulation/contexts/policies.py", "simulation/schedules/exploring.py", "validation/traces/gpu_work.py"),
    *("workload/derived.py", "workload/masked.py"),
    "stored.py",  # addresses of None, exceptions and its own environment, which machine code is linked to
}
"""Files that tell objects apart by ``id(...)`` as long as one call holds all of them."""


def test_no_key_holds_an_identity() -> None:
    """``id(...)`` is given to another object when the first one is gone: what is remembered has no such key."""
    found = {
        name
        for name, tree in trees()
        for node in ast.walk(tree)
        if (isinstance(node, ast.Call) and ast.unparse(node.func) == "id")
        or (isinstance(node, ast.Call) and any(ast.unparse(item) == "id" for item in node.args))
    }
    assert found <= WITHIN_A_CALL
