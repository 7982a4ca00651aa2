"""The table of training options is all that the keywords, the run file's keys and the documentation are made of."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace
from inspect import signature
from typing import Any

import pytest

import semu
import semu_models
from semu.errors import ConfigError
from semu.job import Training
from semu.job.declare import Influence, ValueKind
from semu.job.training import OPTIONS
from semu.parallel.config import Overlap
from semu.runfile.schema import SCHEMA

NAMES = [row.name for row in OPTIONS]
NO_KEYS = {"overlap", "recompute_modules"}
"""``[overlap]`` is a table of its own, and a list as ``recompute`` names modules."""


def test_every_option_is_a_keyword_a_key_and_a_line_of_the_documentation() -> None:
    assert list(signature(Training).parameters) == NAMES == [item.name for item in fields(Training)]
    assert list(SCHEMA["training"]) == [name for name in NAMES if name not in NO_KEYS]
    assert all(f"        {name}: " in str(Training.__doc__) for name in NAMES)


def test_the_defaults_are_legal_as_they_are_kept() -> None:
    training = Training()
    assert {row.name: getattr(training, row.name) for row in OPTIONS} == {row.name: row.default for row in OPTIONS}
    assert Training(**{row.name: row.default for row in OPTIONS}) == training  # type: ignore[arg-type]


@pytest.mark.parametrize("row", [row for row in OPTIONS if row.value.words], ids=lambda row: row.name)
def test_every_word_of_the_table_is_accepted(row: Any) -> None:
    beside = {
        "fp8_recipe": {"precision": "fp8"},
        "recompute_method": {"recompute": "full", "recompute_layers": 1},
        "recompute_policy": {"recompute": "full"},
        "master_dtype": {"precision": "bf16"},
    }.get(row.name, {})
    for word in row.value.words:
        if (row.name, word) == ("master_dtype", "fp16"):
            beside = {"precision": "fp16"}
        assert getattr(Training(**{**beside, row.name: word}), row.name).value == word
    with pytest.raises(ConfigError) as caught:
        Training(**{**beside, row.name: "nonsense"})
    assert caught.value.where == f"training.{row.name}"
    assert caught.value.expected == "one of " + ", ".join(sorted(row.value.words)) or row.name.endswith("dtype")


WRONG = {
    ValueKind.INTEGER: [0, 1.5, True, "1"],
    ValueKind.NUMBER: [-1, True, "1", float("nan"), float("inf")],
    ValueKind.SWITCH: [1, "true", None],
}


@pytest.mark.parametrize("row", [row for row in OPTIONS if row.value.kind in WRONG], ids=lambda row: row.name)
def test_values_of_another_type_or_out_of_range_are_refused(row: Any) -> None:
    for value in WRONG[row.value.kind]:
        with pytest.raises(ConfigError) as caught:
            Training(**{row.name: value, "offload": "weights"})
        assert caught.value.where == f"training.{row.name}"


PARAMETERS = {"bf16": "bf16", "fp16": "fp16", "fp8": "bf16", "tf32": "fp32", "fp32": "fp32"}
"""Type of the parameters under each precision."""


@pytest.mark.parametrize("precision", PARAMETERS)
def test_options_that_belong_to_a_precision(precision: str) -> None:
    """Master weights are fp32 or of the parameters' type, a loss scale is fp16's, recipes of scales are fp8's."""
    for option, value, is_legal in [
        *(("master_dtype", word, word in ("fp32", PARAMETERS[precision])) for word in ("fp32", "bf16", "fp16")),
        ("loss_scaling", True, precision == "fp16"),
        ("fp8_recipe", "blockwise", precision == "fp8"),
        ("fp8_recipe", "tensorwise", True),
    ]:
        if is_legal:
            Training(**{"precision": precision, option: value})
            continue
        with pytest.raises(ConfigError) as caught:
            Training(**{"precision": precision, option: value})
        assert caught.value.where == f"training.{option}"


def test_training_is_data() -> None:
    training = Training(2, 8, 128, "fp16", overlap=None, offload=["weights", "optimizer"], recompute=["attn_norm"])
    assert training.overlap == Overlap()
    assert replace(training) == training and hash(replace(training)) == hash(training)
    assert replace(training, jitter=0.1) != training
    with pytest.raises(FrozenInstanceError):
        training.jitter = 0.1


def test_an_option_that_says_nothing_of_its_influence_counts_everywhere() -> None:
    unshared = {row.name for row in OPTIONS if row.influence is Influence.STAGES}
    assert {"seq_len", "precision", "recompute", "software", "launch"} <= unshared
    assert not {"micro_batch", "jitter", "overhead_s", "workspaces"} & unshared


@pytest.mark.parametrize(("tp", "replicas"), [(2, 4), (8, 1)])
def test_as_many_microbatches_as_can_be_simulated(tp: int, replicas: int) -> None:
    """Of each replica 2^17; the nearest legal batch is legal, also of one that does not divide."""
    model, cluster, parallel = semu_models.build("gpt2"), semu.Cluster("h100", 1, 8), semu.Parallel(dp=replicas, tp=tp)

    def job(batch: int) -> semu.TrainingJob:
        return semu.TrainingJob(model, cluster, parallel, semu.Training(global_batch=batch, micro_batch=3))

    most = 3 * replicas * 2**17
    assert job(most).num_microbatches == 2**17
    for batch in (most + 3 * replicas, most + 1):
        with pytest.raises(ConfigError) as caught:
            job(batch)
        assert caught.value.where == "training.global_batch" and caught.value.nearest == most
    with pytest.raises(ConfigError) as caught:
        job(3 * replicas + 1)
    assert caught.value.nearest == 3 * replicas
