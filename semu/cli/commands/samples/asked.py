"""What the commands that look at samples share: the options of a run file and of the command line."""

from __future__ import annotations

import argparse

from semu.errors import ConfigError
from semu.runfile.config import RunConfig
from semu.searcher.assignment.options import AssignmentOptions


def asked_of(arguments: argparse.Namespace, run: RunConfig) -> tuple[AssignmentOptions, str]:
    """The options, and the path of the samples.

    Raises:
        ConfigError: no samples, or an option out of range.
    """
    given = {name: getattr(arguments, name, None) for name in ("samples", "method", "count", "seed")}
    with run.places.located():
        options = AssignmentOptions.of(run.config.get("assignment", {}), **given)
    if options.samples is None:
        expected = "the path of a JSONL file, one sample a line; or assignment.samples of the run file"
        raise ConfigError("no samples", where="--samples", expected=expected)
    return options, options.samples
