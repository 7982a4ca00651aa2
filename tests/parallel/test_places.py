"""Where groups of layers lie: any map to ranks, and a V in both directions (FlexPipe §4.1, §7.1)."""

from __future__ import annotations

from typing import Any

import pytest

import semu
from semu.errors import ConfigError, ScheduleError
from semu.schedule.placement import Placement
from semu.schedule.registry import ALL_SCHEDULES
from semu_models.text.decoder import decoder_model
from semu_models.text.llama import Llama, LlamaConfig

MODEL = decoder_model("llama", Llama(LlamaConfig(layers=8, hidden=256, ffn=512, heads=8, kv_heads=4, vocab=6144)))


def report(schedule: str = "greedy", **sizes: Any) -> Any:
    parallel = semu.Parallel(**{"dp": 2, "pp": 4, **sizes})
    training = semu.Training(global_batch=16, seq_len=128, micro_batch=1, schedule=schedule)
    return semu.simulate(semu.TrainingJob(MODEL, semu.Cluster("a800", 1, 8), parallel, training))


def figures(found: Any) -> Any:
    return found.iteration_time_s, tuple(found.peak_memory_bytes), [row.chunks for row in found.ranks]


@pytest.mark.parametrize("vocabulary", ["ends", "pipeline"])
@pytest.mark.parametrize(
    ("ranks", "placement"), [([0, 1, 2, 3, 3, 2, 1, 0], "v-shape"), ([0, 1, 2, 3, 0, 1, 2, 3], "circular")]
)
def test_a_map_that_says_a_placement_is_that_placement(ranks: list[int], placement: str, vocabulary: str) -> None:
    told = report(vpp=2, layout={"ranks": ranks}, vocabulary=vocabulary)
    named = report(vpp=2, partition="layers", placement=placement, vocabulary=vocabulary)
    assert figures(told) == figures(named)


def test_any_map_runs_where_a_schedule_follows_the_data() -> None:
    found = report(layout={"ranks": [2, 0, 3, 1]})
    assert [row.chunks.partition(":")[0] for row in found.ranks] == ["1", "3", "0", "2"]
    plain, mapped = report("1f1b", partition="layers"), report("1f1b", layout={"ranks": [2, 0, 3, 1]})
    assert mapped.bubble_ratio == plain.bubble_ratio


@pytest.mark.parametrize(
    ("sizes", "where", "words"),
    [
        ({"layout": {"ranks": [0, 1, 2, 2]}}, "parallel.layout.ranks", "every rank from 0 to 3, 1 times"),
        ({"layout": {"ranks": [0, 1, 2, 4]}}, "parallel.layout.ranks", "0 stages on rank 3"),
        ({"layout": {"ranks": [0, 1, 2]}}, "parallel.layout.ranks", "4 stages"),
        ({"layout": {"ranks": [0, -1, 2, 3]}}, "parallel.layout.ranks", "integers >= 0"),
        (
            {"vpp": 2, "placement": "v-shape", "layout": {"ranks": [0, 1, 2, 3] * 2}},
            "parallel.layout.ranks",
            "placed twice",
        ),
        ({"pp": 3, "vpp": 2, "placement": "v-bidirectional"}, "parallel.pp", "even number of ranks"),
        ({"placement": "v-bidirectional"}, "parallel.vpp", ">= 2"),
    ],
)
def test_refusals(sizes: dict[str, Any], where: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        semu.Parallel(**{"dp": 2, "pp": 4, **sizes})
    assert caught.value.where == where
    assert words in str(caught.value)


def test_a_v_in_both_directions() -> None:
    shape = Placement.V_BIDIRECTIONAL.shape(4, 8)
    held = [[(shape.chunk_flow[c], c % 8) for c in shape.chunks_of(rank)] for rank in range(4)]
    assert held[0] == [(0, 0), (0, 7), (1, 3), (1, 4)], "as drawn at the head of semu.schedule.placement"
    ALL_SCHEDULES["greedy"](shape).validate(shape)
    with pytest.raises(ScheduleError, match="even ranks"):
        Placement.V_BIDIRECTIONAL.shape(3, 6)
    found = report(vpp=2, placement="v-bidirectional")
    one = report(vpp=2, placement="v-shape")
    params = [row.parameters for row in found.ranks]
    assert params == params[::-1], "ranks r and p - 1 - r hold the same layers"
    assert sum(params) == 2 * sum(row.parameters for row in one.ranks)
