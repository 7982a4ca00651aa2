"""Resolved tables become a ``TrainingJob``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import semu_models
from semu.hardware.cluster import Cluster
from semu.job import Training, TrainingJob
from semu.nn import Model
from semu.parallel.config import Overlap, Parallel
from semu.runfile.transformer import TransformerConfig
from semu.workload import make_batch


def build_job(config: Mapping[str, Mapping[str, Any]]) -> TrainingJob:
    """The job that resolved tables describe.

    Args:
        config: as ``RunConfig.config``.
    Raises:
        ConfigError: values out of range or that do not fit together; ``where`` is the dotted key, or a file's line.
    """
    return TrainingJob(
        model=_model(config["model"]),
        cluster=Cluster(**config["cluster"]),
        parallel=Parallel(**config["parallel"]),
        training=Training(**config["training"], overlap=Overlap(**config["overlap"])),
        batch=make_batch(config["batch"]),
    )


def _model(table: Mapping[str, Any]) -> Model:
    if "name" in table:
        model = semu_models.build(table["name"], where="model.name")
    else:
        model = TransformerConfig.from_table(table["transformer"]).model()
    return model.freeze(table["frozen"])
