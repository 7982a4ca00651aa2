"""Running rows: what is compared with what, and what goes wrong stays in its row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import semu
from semu.errors import ConfigError
from semu.job import TrainingJob
from semu.runfile import make_job
from semu.validation import BadRow, Quantity, Row, Status, evaluate_row, validate
from semu.validation.evaluate import JobMaker
from semu.validation.jobs import Settings, run_tables
from semu.validation.row import Measure, Scope
from tests.validation.rows_kit import plain_job, row

PIPELINE: dict[str, Any] = {
    "pp": 4,
    "gpus": 8,
    "tp": 2,
    "dp": 1,
    "micro_batch": 1,
    "schedule_kind": "1f1b",
    "peak_mem_bytes": 2e9,
}


def report_of(read: Row, maker: JobMaker = make_job) -> semu.Report:
    assert read.micro_batch is not None
    assert read.vp is not None
    return semu.simulate(maker(run_tables(read, Settings(read.micro_batch, read.vp, read.recompute), read.profile)))


def test_time_and_device_are_those_of_the_simulation() -> None:
    read = row()
    report, result = report_of(read), evaluate_row(read, make_job)
    assert (result.status, result.reason, result.is_scored) == (Status.OK, None, True)
    assert result.compared[Quantity.TIME].predicted == report.iteration_time_s
    assert result.error(Quantity.TIME) == report.iteration_time_s / 0.05 - 1
    assert result.error(Quantity.MEMORY) is None
    assert (result.device, result.precision, result.fits) == ("a100-80g", "bf16", True)
    assert result.resolved == {}


def test_a_row_with_context_parallelism() -> None:
    """What the row says, ring as Megatron-LM's default; its learned positions are a table of the whole length."""
    read = row(cp=4, gpus=8)
    report, result = report_of(read), evaluate_row(read, make_job)
    assert (result.status, result.reason) == (Status.OK, None)
    assert result.compared[Quantity.TIME].predicted == report.iteration_time_s
    assert report.job["parallel"]["cp_kind"] == "ring"  # type: ignore[index]
    assert "cp" in report.timeline.ranks[0].expand(0).table.streams


def test_another_device() -> None:
    result = evaluate_row(row(), make_job, "h100")
    assert result.device == "h100"
    faster, own = (item.compared[Quantity.TIME].predicted for item in (result, evaluate_row(row(), make_job)))
    assert faster is not None
    assert own is not None
    assert faster < own


@pytest.mark.parametrize(
    ("scope", "pick"), [("last_rank", lambda peaks: peaks[-1]), ("first_stage", lambda peaks: peaks[0]), ("max", max)]
)
def test_memory_of_the_scope_that_the_row_names(scope: str, pick: Any) -> None:
    read = row(PIPELINE, peak_mem_scope=scope, peak_mem_measure="allocated")
    report, result = report_of(read, plain_job), evaluate_row(read, plain_job)
    assert len(set(report.peak_memory_bytes)) > 1
    assert result.compared[Quantity.MEMORY].predicted == pick(report.peak_memory_bytes)
    assert result.compared[Quantity.MEMORY].measured == 2e9


def test_reserved_memory_is_the_reports_or_none() -> None:
    read = row(peak_mem_bytes=2e9, peak_mem_scope="max", peak_mem_measure="reserved")
    reserved = report_of(read).reserved_memory_bytes
    result = evaluate_row(read, make_job)
    assert result.compared[Quantity.MEMORY].predicted == (None if reserved is None else max(reserved))
    assert (reserved is None) == any("reserved" in note for note in result.notes)


def test_printed_gigabytes_are_reserved_bytes() -> None:
    read = row(PIPELINE, peak_mem_scope="max", peak_mem_measure="printed_gb")
    assert (
        evaluate_row(read, plain_job).compared
        == evaluate_row(replace(read, measure=Measure.RESERVED), plain_job).compared
    )


def test_unpublished_settings_are_resolved_and_told() -> None:
    result = evaluate_row(row(micro_batch=None, recompute_kind="unknown"), make_job)
    assert set(result.resolved) == {"micro_batch", "recompute"}
    assert result.resolved["recompute"] == "none"
    (note,) = result.notes
    assert note.startswith("not published: micro_batch ")
    times = []
    for micro_batch in (1, 2, 4):
        predicted = evaluate_row(row(micro_batch=micro_batch), make_job).compared[Quantity.TIME].predicted
        assert predicted is not None
        times.append((predicted, micro_batch))
    assert result.resolved["micro_batch"] == min(times)[1]
    assert result.compared[Quantity.TIME].predicted == min(times)[0]


def test_what_does_not_fit_is_said() -> None:
    result = evaluate_row(row({"model.layers": 96, "model.hidden": 8192, "model.head_dim": 2048}), make_job)
    assert (result.status, result.fits) == (Status.OK, False)
    assert "does not fit in memory" in result.notes


# -- closed forms (2205.05198 §4.1 and §4.2.3) ---------------------------------------------------------------------
def closed_form(changes: dict[str, Any]) -> Row:
    return row(
        {
            "trust": "formula",
            "iteration_time_s": None,
            "peak_mem_scope": "first_stage",
            "peak_mem_measure": "analytic",
            "precision_kind": "fp16",
            "sharding_kind": "none",
            "measured_values.activation_bytes": 1e9,
            "measured_values.params_grads_optimizer_bytes": 1e9,
            "model.position": "learned",
            "model.layers": 8,
            "model.hidden": 1024,
            "model.ffn_hidden": 4096,
            "model.heads": 8,
            "model.kv_heads": 8,
            "model.head_dim": 128,
            "model.seq_len": 2048,
            "dp": 1,
            "tp": 4,
            "global_batch": 32,
            **changes,
        }
    )


@pytest.mark.parametrize("pp", [1, 4])
@pytest.mark.parametrize("is_sharded", [False, True])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_closed_forms_of_activations_and_static_memory(pp: int, is_sharded: bool, recompute: str) -> None:
    """With full recomputation 2 s b h of each layer, else all but the attention core, which a fused kernel keeps:
    s b h (10 + 24 / t), or 34 s b h / t under sequence parallelism; pp microbatches of the first 1 / pp of the layers.
    Static: 18 bytes for each of 12 L h^2 / (t pp) parameters.
    """
    read = closed_form({"pp": pp, "gpus": 4 * pp, "sequence_parallel": is_sharded, "recompute_kind": recompute})
    result = evaluate_row(read, plain_job)
    tokens, hidden, layers, t = 2 * 2048, 1024, 8, 4
    if recompute == "full":
        per_layer = 2 * tokens * hidden / (t if is_sharded else 1)
    else:
        per_layer = tokens * hidden * (34 / t if is_sharded else 10 + 24 / t)
    activation, static = (result.compared[quantity].predicted for quantity in (Quantity.ACTIVATION, Quantity.STATIC))
    assert activation == pytest.approx(layers * per_layer, rel=0.0 if recompute == "full" else 0.01)
    assert static == pytest.approx(18 * 12 * layers * hidden**2 / (t * pp), rel=0.005)
    assert activation is not None
    assert static is not None
    assert result.compared[Quantity.MEMORY].predicted == activation + static
    assert result.compared[Quantity.TIME].predicted is None
    assert result.error(Quantity.ACTIVATION) == activation / 1e9 - 1


@pytest.mark.parametrize("microbatches", [4, 8, 40])
def test_the_closed_form_of_interleaved_stages_knows_no_number_of_microbatches(microbatches: int) -> None:
    """L layers' worth x (1 + (p - 1) / (p v)) on the first rank (2205.05198 §4.2.3), also where m = p."""
    read = closed_form(
        {"pp": 4, "gpus": 16, "vp": 2, "schedule_kind": "interleaved", "global_batch": 2 * microbatches}
        | {"recompute_kind": "full", "sequence_parallel": True}
    )
    found = evaluate_row(read, plain_job).compared[Quantity.ACTIVATION].predicted
    assert found == 8 * 2 * 2 * 2048 * 1024 / 4 * (1 + 3 / 8)


# -- what goes wrong -----------------------------------------------------------------------------------------------
def test_a_refusal_is_a_result() -> None:
    results = validate([row(id="a", schedule_kind="unheard-of"), row(id="b")], make_job).rows
    assert [result.status for result in results] == [Status.REFUSED, Status.OK]
    assert results[0].reason is not None
    assert results[0].reason.startswith("training.schedule: ")
    assert "unheard-of" in results[0].reason
    assert (results[0].is_scored, results[0].fits) == (False, None)
    assert results[0].compared[Quantity.TIME].measured == 0.05
    assert results[0].compared[Quantity.TIME].predicted is None


def test_a_recomputation_of_some_layers_covers_the_fewest_with_which_it_fits() -> None:
    result = evaluate_row(row(recompute_kind="partial"), make_job)
    assert result.status is Status.OK
    assert (result.resolved["recompute"], result.resolved["recompute_layers"]) == ("full", 1)


def test_an_unexpected_exception_stops_no_other_row() -> None:
    def broken(tables: dict[str, dict[str, Any]]) -> TrainingJob:
        if tables["training"]["global_batch"] == 16:
            raise ZeroDivisionError("a bug")
        return make_job(tables)

    results = validate([row(id="a"), row(id="b", global_batch=16), row(id="c")], broken).rows
    assert [result.status for result in results] == [Status.OK, Status.ERROR, Status.OK]
    assert results[1].reason == "ZeroDivisionError: a bug"


def test_an_interrupt_is_not_caught() -> None:
    def interrupted(_: object) -> TrainingJob:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate_row(row(), interrupted)


def test_a_bad_row_is_an_error() -> None:
    result = evaluate_row(BadRow("b", "g", "A", "model.layers: missing field"), make_job)
    assert (result.status, result.reason, result.is_scored) == (Status.ERROR, "model.layers: missing field", False)


@pytest.mark.parametrize(("trust", "is_scored"), [("A", True), ("B", True), ("C", False), ("D", False)])
def test_trust_decides_what_is_scored(trust: str, is_scored: bool) -> None:
    result = validate([row(trust=trust)], make_job)
    assert result.rows[0].status is Status.OK
    assert result.rows[0].is_scored == is_scored
    assert (Quantity.TIME in result.overall.scores) == is_scored
    assert bool(result.rows[0].notes) != is_scored


def test_a_reason_names_its_place_once() -> None:
    def refuse(_: object) -> TrainingJob:
        raise ConfigError("parallel.x is not modelled", where="parallel.x")

    assert evaluate_row(row(), refuse).reason == "parallel.x is not modelled"


def test_rows_without_a_scope_have_no_memory() -> None:
    assert row().scope is None
    assert Scope("max") is Scope.MAX
    assert evaluate_row(row(), make_job).compared[Quantity.MEMORY].predicted is None
