"""Scores against numbers worked out by hand, the null model against a search over all MFUs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

import semu
from semu.runfile import make_job
from semu.validation import Comparison, Quantity, RowResult, Status, score, validate
from semu.validation.jobs import Settings, run_tables
from semu.validation.scoring import Errors
from tests.validation.rows_kit import row


def result(
    name: str,
    error: float | None = None,
    *,
    group: str = "g",
    mfu: float | None = 0.5,
    is_scored: bool = True,
    device: str = "d",
    precision: str = "bf16",
    memory: float | None = None,
    status: Status = Status.OK,
) -> RowResult:
    """A row whose time is predicted ``error`` too long, and whose memory ``memory`` too large."""
    compared = {}
    if error is not None:
        compared[Quantity.TIME] = Comparison(2.0 * (1 + error), 2.0)
    if memory is not None:
        compared[Quantity.MEMORY] = Comparison(8e9 * (1 + memory), 8e9)
    return RowResult(
        name, group, "A", is_scored, status, device=device, precision=precision, compared=compared, measured_mfu=mfu
    )


def test_errors_worked_out_by_hand() -> None:
    rows = [result("a", 0.10), result("b", -0.20), result("c", 0.05), result("d", 0.0), result("e", -0.05)]
    (group,) = score(rows).groups
    errors = group.scores[Quantity.TIME]
    assert errors.n == 5
    assert errors.mape == pytest.approx((10 + 20 + 5 + 0 + 5) / 5)
    assert errors.median == pytest.approx(5)
    assert errors.bias == pytest.approx(0, abs=1e-9)
    assert errors.worst == pytest.approx(-20)
    assert errors.worst_id == "b"


def test_an_even_number_of_rows_has_its_median_in_the_middle() -> None:
    errors = score([result("a", 0.1), result("b", 0.3)]).overall.scores[Quantity.TIME]
    assert (errors.median, errors.bias) == (pytest.approx(20), pytest.approx(20))


def test_groups_stand_in_the_order_of_the_file_and_all_rows_in_the_last() -> None:
    rows = [result("a", 0.1, group="y"), result("b", 0.3, group="x", memory=0.5), result("c", 0.2, group="y")]
    scored = score(rows)
    assert [group.name for group in scored.groups] == ["y", "x"]
    assert [group.scores[Quantity.TIME].n for group in scored.groups] == [2, 1]
    assert scored.overall.scores[Quantity.TIME].mape == pytest.approx(20)
    assert Quantity.MEMORY not in scored.groups[0].scores
    assert scored.groups[1].scores[Quantity.MEMORY].mape == pytest.approx(50)


def test_what_does_not_count() -> None:
    rows = [
        result("unscored", 9.0, is_scored=False),
        result("refused", None, is_scored=False, status=Status.REFUSED, mfu=None),
        result("no time", None, memory=0.1),
        result("scored", 0.1),
    ]
    scored = score(rows)
    (group,) = scored.groups
    assert group.scores[Quantity.TIME].n == 1
    assert (group.rows, group.counts[Status.OK], group.counts[Status.REFUSED]) == (4, 3, 1)
    assert [mfu.n for mfu in scored.null_model] == [1]


def test_nothing_to_score() -> None:
    scored = score([])
    assert (scored.groups, scored.null_model, scored.overall.scores) == ((), (), {})
    assert scored.beyond(0.0) == []


# -- the null model ------------------------------------------------------------------------------------------------
def cost(mfus: Sequence[float], u: float) -> float:
    """Sum of |log predicted - log measured|: both times are FLOP / (peak x MFU)."""
    return sum(abs(math.log(1 / u) - math.log(1 / mfu)) for mfu in mfus)


@given(st.lists(st.floats(0.05, 0.9), min_size=1, max_size=9))
def test_no_other_mfu_explains_the_times_better(mfus: list[float]) -> None:
    (null,) = score([result(str(number), 0.0, mfu=mfu) for number, mfu in enumerate(mfus)]).null_model
    grid = [0.04 * 1.001**step for step in range(3400)]
    assert grid[-1] > 0.9
    assert cost(mfus, null.mfu) <= min(cost(mfus, u) for u in grid) + 1e-9
    assert null.n == len(mfus)


def test_between_two_equally_good_mfus_lies_their_geometric_mean() -> None:
    (null,) = score([result("a", 0.0, mfu=0.2), result("b", 0.0, mfu=0.8)]).null_model
    assert null.mfu == pytest.approx(0.4)


def test_every_device_and_precision_has_its_own() -> None:
    rows = [
        result("a", 0.0, mfu=0.2),
        result("b", 0.0, mfu=0.3, precision="fp8"),
        result("c", 0.0, mfu=0.4, device="e"),
        result("d", 0.0, mfu=0.5, device="e", group="h"),
        result("f", 0.0, mfu=0.7, device="e", group="h"),
    ]
    scored = score(rows)
    assert {(null.device, null.precision): (null.n, null.mfu) for null in scored.null_model} == {
        ("d", "bf16"): (1, pytest.approx(0.2)),
        ("d", "fp8"): (1, pytest.approx(0.3)),
        ("e", "bf16"): (3, pytest.approx(0.5)),
    }
    errors = {group.name: group.scores[Quantity.TIME] for group in scored.groups}
    assert errors["h"].null_mape == pytest.approx((0 + 40) / 2)
    assert errors["g"].null_mape == pytest.approx((0 + 0 + 20) / 3)
    assert errors["g"].null_median == pytest.approx(0)
    assert scored.overall.scores[Quantity.TIME].null_mape == pytest.approx((0 + 0 + 20 + 0 + 40) / 5)


def test_the_null_model_of_simulated_rows_follows_from_flop_and_time() -> None:
    rows = [
        row(id="a", iteration_time_s=0.03),
        row(id="b", iteration_time_s=0.08, global_batch=16),
        row({"model.layers": 8}, id="c", iteration_time_s=0.05),
    ]
    scored = validate(rows, make_job)
    mfus = []
    for read in rows:
        job = make_job(run_tables(read, Settings(2, 1, "none"), read.profile))
        peak = job.cluster.profile.flop_per_s[semu.DType.BF16].value
        assert read.iteration_time_s is not None
        mfus.append(semu.simulate(job).model_flop / (read.iteration_time_s * read.gpus * peak))
    (null,) = scored.null_model
    assert null.mfu == pytest.approx(sorted(mfus)[1])
    errors = scored.overall.scores[Quantity.TIME]
    assert errors.null_mape == pytest.approx(sum(100 * abs(mfu / sorted(mfus)[1] - 1) for mfu in mfus) / 3)


# -- tolerance -----------------------------------------------------------------------------------------------------
def test_only_groups_of_four_rows_can_be_out_of_tolerance() -> None:
    few = [result(str(number), 0.5, group="few") for number in range(3)]
    many = [result(f"m{number}", 0.1, group="many", memory=-0.2) for number in range(4)]
    scored = score(few + many)
    assert scored.beyond(9.99) == ["many: time MAPE 10.00 % of 4 rows", "many: memory MAPE 20.00 % of 4 rows"]
    assert scored.beyond(10.01) == ["many: memory MAPE 20.00 % of 4 rows"]
    assert scored.beyond(20.01) == []


def test_the_worst_of_equal_errors_is_the_first() -> None:
    assert Errors.of({"a": 0.1, "b": -0.1}).worst_id == "a"
