"""``describe_training``: the training options of a job as ``result.json`` lists them."""

from __future__ import annotations

from enum import Enum

from semu.hardware.kinds import Provenance
from semu.job.declare import Shown
from semu.job.kinds import Precision
from semu.job.training import OPTIONS
from semu.job.training_job import TrainingJob

_ORDER = (
    *("micro_batch", "global_batch", "seq_len", "precision", "grad_dtype", "optimizer"),
    *("recompute", "recompute_layers", "recompute_method", "attention", "schedule", "software"),
    *("master_dtype", "optimizer_state_dtype", "fp8_weights", "fp8_recipe", "gradient_clipping", "loss_scaling"),
    *("overhead_s", "jitter", "straggler_share", "straggler_slowdown", "workspaces"),
    *("recompute_policy", "recompute_every", "cross_entropy", "gradient_accumulation_fusion", "eager_modules"),
    *("offload", "offload_layers", "offload_fraction", "launch_s", "transfer_stall"),
    *("schedule_file", "activation_limit", "optimizer_post_validation"),
)
"""Order of the keys in a result; an option that is not named here follows in the table's order."""


def describe_training(job: TrainingJob) -> dict[str, object]:
    """Values of the options that are always listed, of those that are not at their default, and what a job decides."""
    training = job.training
    values = {
        row.name: _plain(getattr(training, row.name))
        for row in OPTIONS
        if row.shown is Shown.ALWAYS or (row.shown is Shown.CHANGED and getattr(training, row.name) != row.default)
    }
    values["seq_len"] = job.batch.context_length(training.seq_len)
    if training.recompute_modules is not None:
        values["recompute"] = list(training.recompute_modules)
    if training.precision is Precision.FP8:
        values["fp8_weights"] = job.fp8_weights.value
    provenance = Provenance.SPEC if training.overhead_s else Provenance.DEFAULT
    values["overhead_s"] = {"value": training.overhead_s, "provenance": provenance.value}
    values.pop("straggler_slowdown", None)
    if training.straggler_share:
        values["straggler_slowdown"] = training.straggler_slowdown
    if job.launches:
        _, launch_s = job.launch
        values["launch_s"] = {"value": launch_s.value, "provenance": launch_s.provenance.value}
        stall = job.profile.host.transfer_stall
        if training.is_eager and stall.value > 0 and job.parallel.pp > 1 and job.parallel.tp > 1:
            values["transfer_stall"] = {"value": stall.value, "provenance": stall.provenance.value}
    return {name: values[name] for name in dict.fromkeys((*_ORDER, *values)) if name in values}


def _plain(value: object) -> object:
    """A value as JSON has it."""
    if isinstance(value, tuple):
        return list(value)
    return value.value if isinstance(value, Enum) else value
