"""Settings that are not published: the fastest that fits, against trying everything."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semu.errors import ConfigError, ScheduleError
from semu.validation.jobs import Settings, run_tables
from semu.validation.open_sizes import _time
from semu.validation.resolve import RECOMPUTES, Run, candidates, choose, open_settings
from tests.validation.rows_kit import row

OPEN: dict[str, Any] = {
    "micro_batch": None,
    "vp": None,
    "recompute_kind": "unknown",
    "pp": 2,
    "gpus": 4,
    "global_batch": 8,
}


@dataclass(frozen=True)
class Outcome:
    """What a simulation would find."""

    time_s: float
    memory: int
    is_refused: bool = False

    def run(self, capacity: int) -> Run:
        if self.is_refused:
            raise ConfigError("refused", got=self.time_s)
        report = SimpleNamespace(
            fits=self.memory <= capacity, iteration_time_s=self.time_s, peak_memory_bytes=(self.memory - 1, self.memory)
        )
        return cast(Run, SimpleNamespace(checkpoint=None, report=report))


def test_everything_published_is_one_candidate() -> None:
    assert list(candidates(row(vp=1))) == [Settings(2, 1, "none")]
    assert open_settings(row()) == ()
    assert list(candidates(row(vp=None))) == [Settings(2, 1, "none")]  # one stage has one chunk
    assert open_settings(row(vp=None)) == ()


@pytest.mark.parametrize(
    ("changes", "micro_batches", "chunks"),
    [
        ({"global_batch": 8}, [1, 2, 4], [1, 2]),
        ({"global_batch": 12}, [1, 2], [1, 2]),
        ({"global_batch": 32}, [1, 2, 4, 8], [1, 2]),
        ({"model.layers": 12}, [1, 2, 4], [1, 2, 3, 6]),
        ({"model.layers": 32}, [1, 2, 4], [1, 2, 4, 16]),
        ({"model.layers": 32, "schedule_kind": "interleaved"}, [1, 2, 4], [2, 4, 16]),
        ({"model.layers": 22, "pp": 8, "gpus": 16}, [1, 2, 4], [1, 3]),
        ({"model.layers": 7}, [1, 2, 4], [1, 2, 3, 4]),  # balanced by times
        ({"vp": 2}, [1, 2, 4], [2]),
    ],
)
def test_the_candidates(changes: dict[str, Any], micro_batches: list[int], chunks: list[int]) -> None:
    found = list(candidates(row({**OPEN, **changes})))
    assert found == [Settings(m, v, r, g) for m in micro_batches for v in chunks for r, g in RECOMPUTES]


def test_inputs_in_fp8_are_looked_at_where_nothing_fits_without() -> None:
    gated = {"precision_kind": "fp8", "software": "megatron", "model.gated_mlp": True}
    fp8 = row(gated)
    without, within = candidates(fp8)
    assert (without.fp8_gates, within) == (False, replace(without, fp8_gates=True))
    assert list(candidates(row({**gated, "software": "torch"}))) == [without]
    assert list(candidates(row({**gated, "model.gated_mlp": False}))) == [without]
    for capacity, is_packed in ((100, False), (80, True)):
        found = choose(
            fp8,
            lambda s: Outcome(2.0 if s.fp8_gates else 1.0, 70 if s.fp8_gates else 90).run(capacity),  # noqa: B023
        )
        assert found.resolved == ({"fp8_gates": True} if is_packed else {})
    assert run_tables(fp8, within, "h100")["training"]["fp8_gates"] is True
    assert "fp8_gates" not in run_tables(fp8, without, "h100")["training"]


EXPERTS = {"num_experts": 8, "topk": 2, "moe_ffn_hidden": 256, "shared_expert_ffn": None, "layer_freq": 1}
STAGES = {
    "model.moe": EXPERTS,
    "model.bias_linear": False,
    "gpus": 4,
    "ep": 2,
    "pp": 2,
    "vp": 2,
    "schedule_kind": "interleaved",
    "software": "megatron",
    "software_date": "2025-09",
}


def test_exchanges_hide_where_that_is_faster_and_megatron_could() -> None:
    beside, hidden = candidates(row(STAGES))
    assert (beside.hides_exchanges, hidden) == (False, replace(beside, hides_exchanges=True))
    for faster in (beside, hidden):
        found = choose(row(STAGES), lambda s: Outcome(1.0 + (s != faster), 1).run(1))  # noqa: B023
        assert found.settings == faster
        assert found.resolved == ({"overlap.moe_a2a": True} if faster is hidden else {})
    tables = run_tables(row(STAGES), hidden, "h100"), run_tables(row(STAGES), beside, "h100")
    assert [table["overlap"].get("expert_parallel") for table in tables] == [True, None]
    for told in (True, False):
        told_row = row({**STAGES, "overlap": {"moe_a2a": told}})
        assert list(candidates(told_row)) == [beside]
        assert run_tables(told_row, beside, "h100")["overlap"]["expert_parallel"] is told


@pytest.mark.parametrize(
    "change",
    [
        {"software": "torch"},
        {"software_date": "2025-08"},
        {"vp": 1, "schedule_kind": "1f1b"},
        {"ep": 1},
        {"pp": 1, "vp": 1, "gpus": 2, "schedule_kind": None},
        {"model.moe": None, "ep": 1},
    ],
)
def test_exchanges_that_could_not_hide(change: dict[str, Any]) -> None:
    assert [settings.hides_exchanges for settings in candidates(row({**STAGES, **change}))] == [False]


@pytest.mark.parametrize(("layers", "pp", "counts"), [(12, 1, [1, 2, 4, 8, 12]), (8, 2, [1, 2, 4]), (6, 2, [1, 2, 3])])
def test_some_layers_are_ever_more_of_each_chunk(layers: int, pp: int, counts: list[int]) -> None:
    found = list(candidates(row({"recompute_kind": "partial", "model.layers": layers, "pp": pp, "gpus": 2 * pp})))
    assert [(settings.recompute, settings.layers) for settings in found] == [("full", count) for count in counts]
    fits = choose(
        row({"recompute_kind": "partial", "model.layers": layers}),
        lambda settings: Outcome(1.0 + (settings.layers or 0), 100 // (settings.layers or 1)).run(50),
    )
    assert fits.settings.layers == 2
    assert fits.resolved == {"recompute": "full", "recompute_layers": 2}


def test_what_was_resolved_is_told() -> None:
    choice = choose(row(OPEN), lambda settings: Outcome(1.0 / settings.micro_batch, 1).run(1))
    assert choice.settings == Settings(4, 1, "none")
    assert choice.resolved == {"micro_batch": 4, "vp": 1, "recompute": "none"}
    assert (choice.tried, choice.passed_over) == (6, 0)
    assert choose(row(), lambda _: Outcome(1.0, 1).run(1)).resolved == {}


times = st.floats(1.0, 2.0)


@given(data=st.data(), capacity=st.integers(0, 100))
def test_the_fastest_that_fits(data: st.DataObject, capacity: int) -> None:
    """More recomputation is slower and needs less, the rest is anything."""
    run_of = row(OPEN)
    outcomes: dict[Settings, Outcome] = {}
    for settings in candidates(run_of):
        before = outcomes.get(replace(settings, **_lighter(settings)))
        time_s = data.draw(times) + (before.time_s if before else 0)
        memory = data.draw(st.integers(1, before.memory if before else 100))
        outcomes[settings] = Outcome(time_s, memory, data.draw(st.booleans()))
    legal = {settings: outcome for settings, outcome in outcomes.items() if not outcome.is_refused}
    fitting = {settings: outcome for settings, outcome in legal.items() if outcome.memory <= capacity}
    if not legal:
        with pytest.raises(ConfigError):
            choose(run_of, lambda settings: outcomes[settings].run(capacity))
        return
    choice = choose(run_of, lambda settings: outcomes[settings].run(capacity))
    chosen = outcomes[choice.settings]
    if fitting:
        assert chosen.time_s == min(outcome.time_s for outcome in fitting.values())
        assert chosen.memory <= capacity
    else:
        least = min(outcome.memory for outcome in legal.values())
        assert (chosen.memory, chosen.time_s) == (
            least,
            min(outcome.time_s for outcome in legal.values() if outcome.memory == least),
        )


def _lighter(settings: Settings) -> dict[str, Any]:
    position = RECOMPUTES.index((settings.recompute, settings.grad_dtype))
    recompute, grad_dtype = RECOMPUTES[position - 1] if position else ("", None)
    return {"recompute": recompute, "grad_dtype": grad_dtype}


def test_equally_fast_ones_are_decided_by_their_order() -> None:
    assert choose(row(OPEN), lambda _: Outcome(1.0, 1).run(1)).settings == Settings(1, 1, "none")


def test_refused_candidates_are_passed_over() -> None:
    def simulate(settings: Settings) -> Run:
        if settings.vp > 1:
            raise ScheduleError("no")
        return Outcome(1.0, 1, is_refused=settings.recompute == "none").run(1)

    choice = choose(row(OPEN), simulate)
    assert choice.settings == Settings(1, 1, "selective")
    assert choice.passed_over == 3 * 2 + 3 * 4


def test_where_all_are_refused_the_first_reason_is_told() -> None:
    def simulate(settings: Settings) -> Run:
        raise ConfigError(f"no {settings.micro_batch} {settings.vp} {settings.recompute}")

    with pytest.raises(ConfigError, match="no 1 1 none"):
        choose(row(OPEN), simulate)


@pytest.mark.parametrize(
    ("memory", "time_s", "chosen"),
    [
        ({"none": 1, "zero1": 1, "fsdp": 1}, {"none": 2.0, "zero1": 3.0, "fsdp": 1.0}, "none"),
        ({"none": 1, "zero1": 1, "fsdp": 1}, {"none": 3.0, "zero1": 2.0, "fsdp": 1.0}, "zero1"),
        ({"none": 9, "zero1": 1, "fsdp": 1}, {"none": 1.0, "zero1": 2.0, "fsdp": 1.0}, "zero1"),
        ({"none": 9, "zero1": 9, "fsdp": 1}, {"none": 1.0, "zero1": 2.0, "fsdp": 3.0}, "fsdp"),
        ({"none": 9, "zero1": 8, "fsdp": 7}, {"none": 1.0, "zero1": 2.0, "fsdp": 3.0}, "fsdp"),
    ],
)
def test_a_sharding_that_is_not_published(memory: dict[str, int], time_s: dict[str, float], chosen: str) -> None:
    """None or ZeRO-1, whichever is faster of those that fit; FSDP is looked at where neither does."""
    choice = choose(
        row({"sharding_kind": "unknown"}),
        lambda settings: Outcome(time_s[settings.sharding or ""], memory[settings.sharding or ""]).run(5),
    )
    assert choice.resolved == {"sharding": chosen}


def test_a_resolved_sharding_is_that_of_the_run() -> None:
    unknown = row({"sharding_kind": "unknown"})
    for sharding in ("none", "zero1", "fsdp"):
        settings = Settings(2, 1, "none", sharding=sharding)
        assert run_tables(unknown, settings, "h100") == run_tables(
            row({"sharding_kind": sharding}), Settings(2, 1, "none"), "h100"
        )


@pytest.mark.parametrize(
    ("measured", "time_s"),
    [
        ({"samples_per_s": 8.0}, 4.0),
        ({"images_per_s": 16.0}, 2.0),
        ({"samples_per_s_per_gpu": 2.0}, 4.0),
        ({"tokens_per_s_per_gpu": 50.0}, 16.0),
        ({"images_per_s": 16.0, "tokens_per_s_per_gpu": 50.0}, 2.0),
        ({"samples_per_s": 0.0, "samples_per_s_per_gpu": 2.0}, 4.0),
        ({"steps": 3.0}, None),
        (None, None),
    ],
)
def test_times_follow_from_rates(measured: dict[str, float] | None, time_s: float | None) -> None:
    """Of 32 samples of 100 tokens on four GPUs."""
    remarks: list[str] = []
    assert _time({"measured_values": measured}, 32, 100, 4, remarks) == time_s
    assert len(remarks) == (time_s is not None)
    assert _time({"measured_values": measured, "iteration_time_s": 7}, 32, 100, 4, []) == 7.0
