"""Items dealt to groups of ranks: every item once, the busiest group's figures, against a slow reference."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from simulation.reference.modules import dealt

from semu.workload import Microbatch
from semu.workload.batch import shape_columns
from semu.workload.spread import Spread, deal, group_key, spread_columns

LENGTHS = st.lists(st.integers(0, 60), max_size=12)


@given(LENGTHS, st.integers(1, 6))
def test_the_longest_goes_to_the_emptiest(lengths: list[int], groups: int) -> None:
    found = deal(np.array(lengths, dtype=np.int64), groups).tolist()
    by_group = dealt(lengths, groups)
    sums = [[sum(lengths[i] for i in range(len(lengths)) if found[i] == g) for g in range(groups)]]
    sums.append([sum(lengths[i] for i in own) for own in by_group])
    if len(set(lengths)) > 1:
        assert [[i for i in range(len(lengths)) if found[i] == g] for g in range(groups)] == list(map(sorted, by_group))
    assert sorted(sums[0]) == sorted(sums[1])
    assert max(sums[0]) <= sum(lengths) / groups + max(lengths, default=0)  # Graham 1966


def test_equal_items_go_round() -> None:
    assert deal(np.full(7, 16, dtype=np.int64), 3).tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_the_busiest_group_decides() -> None:
    """Clips of 9, 5, 4 and 3 tokens on 2 groups: 9 + 3 and 5 + 4; padded to an even number of tokens."""
    item = Microbatch({"text": [1, 2, 3, 4], "video": [9, 5, 4, 3], "other": [7]}, samples=4)
    columns = {key: column.tolist() for key, column in spread_columns([item], Spread("dit", "video", 2, 2)).items()}
    assert {key: value for key, value in columns.items() if "@" not in key} == {
        "video.dit.shard": [6],
        "video.dit.pairs": [81 + 9],
        "video.dit.sequences": [2],
        "text.dit.shard": [3],
        "text.dit.pairs": [1 + 16],
        "text.dit.sequences": [2],
        "video*text.dit.pairs": [9 * 1 + 3 * 4],
        "text*video.dit.pairs": [9 * 1 + 3 * 4],
    }
    assert columns["video.dit.shard@1"] == [5]
    assert columns["text.dit.pairs@1"] == [4 + 9]


@given(st.lists(LENGTHS, min_size=1, max_size=4), st.integers(2, 5), st.integers(1, 2))
def test_groups_together_have_everything(lengths: list[list[int]], groups: int, cp: int) -> None:
    items = [Microbatch({"vision": own, "vision_tokens": [n // 4 for n in own]}, samples=1) for own in lengths]
    parts = 2 * cp if cp > 1 else 1
    columns = spread_columns(items, Spread("vit", "vision", groups, parts, parts))
    whole = shape_columns(items, parts, parts)
    for name in ("vision", "vision_tokens"):
        for what in ("shard", "pairs", "sequences"):
            key = f"{name}.vit.{what}"
            every = np.stack([columns[group_key(key, group)] for group in range(groups)])
            assert np.array_equal(every.sum(axis=0), whole[f"{name}.{what}"])
            assert ((every == columns[key]).any(axis=0)).all()
