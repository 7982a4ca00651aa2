"""``Training``: the training options, made of their parts."""

from __future__ import annotations

from semu.job import kernel_options, options, step_options
from semu.job.declare import options_of, part


@part
class Training(
    step_options.NoiseOptions,
    step_options.StepOptions,
    step_options.ShardingOptions,
    options.ScheduleOptions,
    options.ExpertOptions,
    kernel_options.KernelOptions,
    options.MemoryOptions,
    options.PrecisionOptions,
    options.BatchOptions,  # bases from the last to the first: a dataclass takes the fields of the last base first
):
    """Training options (run.toml ``[training]`` and ``[overlap]``): data only, validated at the door.

    An option that is an enum is given as a member or as its value.
    """


OPTIONS = options_of(Training)
"""The table of training options."""
Training.__doc__ = f"{Training.__doc__}\n    Attributes:\n" + "".join(f"        {row.describe()}\n" for row in OPTIONS)
