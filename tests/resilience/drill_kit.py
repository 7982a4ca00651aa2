"""Templates by hand of a model with six layers, for drills."""

from __future__ import annotations

import numpy as np

import semu
from semu.resilience.templates.composing import Speed
from semu.resilience.templates.drilled import Arranger
from semu.resilience.templates.planner import Stage
from semu.resilience.templates.template_set import PipelineTemplate, TemplateSet
from semu_models.text.decoder import decoder_model
from semu_models.text.gpt import GPT, GPTConfig

CUTS = ([3, 3], [1, 2, 3])


def a_template_set(nodes: int, batch: int = 6) -> TemplateSet:
    """Pipelines of two and of three nodes, one failure at once."""
    job = semu.TrainingJob(
        decoder_model("gpt", GPT(GPTConfig(6, 64, 4, vocab=256, positions=64))),
        semu.Cluster("h100", 1, 1),
        semu.Parallel(zero=0),
        semu.Training(global_batch=batch, seq_len=64),
    )
    found = []
    for cut in CUTS:
        ends = np.cumsum(cut).tolist()
        stages = tuple(Stage(end - size, end, 1) for end, size in zip(ends, cut, strict=True))
        found.append(PipelineTemplate(Speed(len(cut), 1.0, 2.0 / len(cut)), stages, 1.0))
    layer_bytes = np.ones(6)
    return TemplateSet("six layers", job, 1, nodes, tuple(found), layer_bytes, 1.0, np.zeros(6, dtype=np.int64))


def an_arranger(nodes: int, fewest: int = 4, batch: int = 6) -> Arranger:
    return Arranger(a_template_set(nodes, batch), fewest)
