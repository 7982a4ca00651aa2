"""Every pair of options in a run: what a report conserves (DESIGN §3.10) whatever is chosen, and how runs are refused.

The option table says what there is: an option that joins it joins these runs. Beside it vary how ranks lie, the
network, adapters, batches of other lengths and what a report is asked for. A run that is refused names the option that
it cannot have; that one falls back to its default, until the run is taken.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from functools import cache
from itertools import combinations, pairwise
from pathlib import Path

import pytest

import semu
from semu.errors import SemuError
from semu.graph.tensor import Role
from semu.job.declare import ValueKind
from semu.job.kinds import Workspaces
from semu.job.training import OPTIONS
from semu.parallel.config import Overlap, Parallel
from semu.present.report import Report
from tests.proof.pairs import covering

TRAINING: dict[str, tuple[str, ...]] = {
    "micro_batch": ("1", "2"),
    "bf16_first_layers": ("1",),
    "recompute": ('"selective"', '"full"', '["mlp"]', '["core_attn", "layernorm"]'),
    "recompute_layers": ("1", "2"),
    "recompute_every": ("2",),
    "offload": ('"activations"', '"optimizer"'),
    "memory_margin": ("0.1",),
    "attention_mask": ('"document"', '"prefix"'),
    "software_date": ('"2023-01"', '"2025-06"'),
    "cuda_graphs": ('"layer"',),
    "moe_imbalance": ("1.5",),
    "moe_capacity_factor": ("1.25",),
    "activation_limit": ('"2p"',),
    "schedule": ('"gpipe"', '"zb-h1"', '"zb-v"', '"dualpipe-v"'),
    "overhead_s": ("0.001",),
    "jitter": ("0.02",),
    "straggler_share": ("0.1",),
    "straggler_slowdown": ("1.2",),
}
"""Values of the options that are neither words nor switches."""
WITHOUT = {
    "global_batch": "the setup's",
    "seq_len": "the setup's",
    "schedule_file": "a file",
    "overlap": "a table, whose keys are below",
    "left_out": "what an importer could not read",
    "offload_layers": "numbers of a model's layers",
    "offload_fraction": "of Megatron-LM's optimizer alone",
    "bf16_last_layers": "as bf16_first_layers",
    "muon_steps": "a count",
    "recompute_modules": "no key: recompute's list of modules",
}
"""Options of training that are not varied, each with the reason."""
PARALLEL: dict[str, tuple[str, ...]] = {
    "layout": (
        *("dp4-tp2-pp1", "dp2-tp2-pp2", "dp1-tp4-pp2", "dp2-tp1-pp2-vpp2", "dp2-tp1-pp2-cp2", "dp4-tp2-pp1-ep2"),
        *("dp2-tp1-pp1-cp4", "dp4-tp1-pp2-ep2", "dp4-tp1-pp2-vpp2-ep4"),
    ),
    "sequence_parallel": ("true", "false"),
    "zero": ("0", "1", "2", "3"),
    "zero_group": ("", "2"),
    "partition": ('"parameters"', '"layers"', '"latency"'),
    "rank_order": ('"tp-cp-dp-pp"', '"tp-cp-pp-dp"'),
    "reshard_after_forward": ("true", "false"),
    "cp_kind": ('"ring"', '"all_gather"', '"all_to_all"'),
    "cp_balance": ('"zigzag"', '"lpt"', '"hybrid"'),
    "cp_overlap": ('"none"', '"heads"'),
    "vocabulary": ('"ends"', '"pipeline"'),
}
OTHERS: dict[str, tuple[str, ...]] = {
    "cluster": ("h100:1x8", "h100:2x4", "a100-80g:4x2"),
    "cluster.nics_per_node": ("", "1"),
    "model.lora.rank": ("", "4"),
    "batch": ("", "file"),
    "report.contention": ("", "true"),
    "report.samples": ("", "5"),
}
"""What no option of training or parallelism says: nodes, adapters, samples of other lengths, and what ``semu.simulate``
is asked for."""
LENGTHS = (40, 512, 7, 300, 511, 120)
"""Of the samples in a file [tokens], over and over."""
APART = ("parallel.layout", "report.contention", "report.samples")
"""Axes that are no keys of a run file."""
SAID = {"adapters": "model.lora.rank"}
"""Words of messages for options."""
LONGEST = 30
"""Options that may fall back before a run is taken."""
TOML_MODEL = """\
[model.transformer]
layers = 4
hidden = 256
heads = 4
vocab = 1024
%s
[cluster]
device = "h100"
nodes = 1
gpus_per_node = 8
[parallel]
dp = 8
[training]
global_batch = 16
seq_len = 512
%s
"""
MODELS = {
    "dense": (TOML_MODEL % ("", ""), []),
    "experts": (TOML_MODEL % ("experts = 4\ntop_k = 2\nmoe_ffn = 128", ""), []),
    "vlm-7b": (None, ["training.global_batch=16"]),
    "vlm-frozen": ("vlm-7b", ["training.global_batch=16", 'model.frozen=["encoder"]']),
}


@cache
def axes() -> dict[str, tuple[str, ...]]:
    """Key of a run file -> its values as ``--set`` takes them, the default first (an empty text)."""
    found: dict[str, tuple[str, ...]] = {f"parallel.{name}": values for name, values in PARALLEL.items()}
    for option in OPTIONS:
        if option.name in WITHOUT:
            continue
        if option.name in TRAINING:
            values = TRAINING[option.name]
        elif option.value.kind is ValueKind.SWITCH:
            values = (str(not option.default).lower(),)
        elif option.value.kind is ValueKind.AUTO_SWITCH:
            values = ("true", "false")
        else:
            values = tuple(f'"{word}"' for word in option.value.words)
        assert values, f"training.{option.name}: give it values here, or a reason in WITHOUT"
        found[f"training.{option.name}"] = ("", *values)
    for field in dataclasses.fields(Overlap):
        found[f"overlap.{field.name}"] = ("", str(not field.default).lower())
    return found | OTHERS


@cache
def rows() -> list[dict[str, str]]:
    """Runs in which every pair of values occurs."""
    table = covering([len(values) for values in axes().values()])
    return [{name: axes()[name][number] for name, number in zip(axes(), row, strict=True)} for row in table]


def taken(name: str, row: dict[str, str], folder: Path) -> tuple[semu.TrainingJob, Report, list[SemuError]]:
    """The run with as many of a row's options as it can have, its report, and what was refused on the way."""
    text, more = MODELS[name]
    path = text or name
    if text is not None and "[" in text:
        (folder / "run.toml").write_text(text)
        path = str(folder / "run.toml")
    chosen = dict(row)
    refused: list[SemuError] = []
    while True:
        settings = [f"{key}={value}" for key, value in chosen.items() if value and "." in key and key not in APART]
        if chosen["batch"]:
            sample = {"text_tokens": 0} | ({"images": 1} if "vlm" in name else {})
            lines = [json.dumps(sample | {"text_tokens": length}) + "\n" for length in LENGTHS * 40]
            (folder / "samples.jsonl").write_text("".join(lines))
            settings += ['batch.kind="file"', f'batch.path="{folder / "samples.jsonl"}"']
        try:
            job = semu.load_run(path, [*more, *settings], cluster=chosen["cluster"], parallel=chosen["parallel.layout"])
            asked = bool(chosen["report.contention"]), int(chosen["report.samples"] or 0)
            return job, semu.simulate(job, contention=asked[0], samples=asked[1]), refused
        except SemuError as error:
            refused.append(error)
            assert error.exit_code in (2, 3, 4), f"{settings}: {error}"
            assert error.where, f"refused without a place: {error}"
            assert len(refused) <= LONGEST, [str(one) for one in refused]
            _fall_back(chosen, error)


def _fall_back(chosen: dict[str, str], error: SemuError) -> None:
    """Take back the option that an error names: where it stands, else in its text."""
    said = f"{error.where} {error.message} {error.expected}"
    words = re.findall(r"[a-z_0-9]+", said)
    for key in (name for word in words for name in chosen if name.rsplit(".", 1)[-1] == word):
        if chosen[key] not in ("", axes()[key][0]):
            chosen[key] = axes()[key][0]
            return
    for key in (SAID[word] for word in words if word in SAID):
        if chosen[key]:
            chosen[key] = ""
            return
    for key, value in chosen.items():
        if value.strip('"') in re.findall(r"[a-z_0-9-]+", said) and value != axes()[key][0]:
            chosen[key] = axes()[key][0]
            return
    if chosen["parallel.layout"] != "dp4-tp2-pp1":
        chosen["parallel.layout"] = "dp4-tp2-pp1"
        return
    raise AssertionError(f"refused, and names no option of the run: {error}")


def check_conserved(report: Report, job: semu.TrainingJob) -> None:
    """What holds of every report."""
    has_workspaces = job.training.workspaces is not Workspaces.NONE
    # After the optimizer's check of the past step, ranks begin and end an iteration apart: it is shorter than its span.
    last = max(report.makespan_s if job.training.optimizer_post_validation else 0.0, report.iteration_time_s)
    exposed = report.breakdown_s["exposed_communication"]
    assert isinstance(exposed, dict)
    parts = {name: float(one) for name, one in report.breakdown_s.items() if name != "exposed_communication"}  # type: ignore[arg-type]
    parts |= {f"exposed {name}": float(one) for name, one in exposed.items()}
    total = report.iteration_time_s
    assert math.isfinite(total)
    assert sum(parts.values()) == pytest.approx(total, rel=1e-9)
    assert min(parts.values()) >= -1e-9 * total, parts
    for rank, static, peak in zip(
        report.timeline.ranks, report.static_memory_bytes, report.peak_memory_bytes, strict=True
    ):
        curve = rank.memory
        kept = int(curve.by_role[list(curve.roles).index(Role.WORKSPACE), -1]) if has_workspaces else 0
        assert curve.total[-1] == static + kept  # a library's workspace is taken at its first use and kept
        assert (curve.by_role.sum(axis=0) == curve.total).all()
        assert curve.by_role.min() >= 0
        assert curve.total.max() <= peak
        assert (curve.times_s[1:] >= curve.times_s[:-1]).all()
        assert sum(rank.peak.by_role.values()) == rank.peak.size_bytes
        spans: dict[str, list[tuple[float, float]]] = {}
        for _, operators in rank.stage_operators():
            for stream, start, end in zip(operators.table.streams, operators.start_s, operators.end_s, strict=True):
                spans.setdefault(stream, []).append((start, end))
        for stream, slices in spans.items():
            slices.sort()
            assert slices[0][0] >= 0, stream
            assert all(first[1] <= second[0] for first, second in pairwise(slices)), stream
            assert slices[-1][1] <= last * (1 + 1e-12), stream
    assert 0 < report.model_flop <= report.hardware_flop * (1 + 1e-12)
    assert 0 < report.mfu <= report.hfu * (1 + 1e-12) <= 1


def cases() -> list[tuple[str, int]]:
    """Every row of the language models; of those with images the encoder trains in every second."""
    images = ("vlm-7b", "vlm-frozen")
    return [(name, number) for number in range(len(rows())) for name in ("dense", "experts", images[number % 2])]


@pytest.mark.sampled(50)
@pytest.mark.parametrize(("name", "number"), cases())
def test_pairs_of_options(name: str, number: int, tmp_path: Path) -> None:
    """A report's own sums; the same figures where only they are asked for, and from a job that was prepared; transfers
    that share ports take no less time, drawn iterations vary about the one without noise."""
    job, report, _ = taken(name, rows()[number], tmp_path)
    check_conserved(report, job)
    plain = semu.evaluate(job)
    assert semu.prepare(job).estimate() == plain
    if report.contention is None:
        for figure in ("iteration_time_s", "makespan_s", "mfu", "hfu", "bubble_ratio", "breakdown_s"):
            assert getattr(plain, figure) == getattr(report, figure), figure
        assert plain.peak_memory_bytes == tuple(report.peak_memory_bytes)
    else:  # which leaves launches out
        alone_s = report.contention.iteration_time_alone_s
        assert report.iteration_time_s >= alone_s
        assert alone_s == plain.iteration_time_s or "launch" in plain.breakdown_s
    assert plain.static_memory_bytes == tuple(report.static_memory_bytes)
    if report.samples is not None:
        times = plain.iteration_time_s, report.samples.p50_s, report.samples.p95_s
        assert times[1] <= times[2]
        if not job.training.jitter:  # stragglers take no less time, and nothing else is drawn
            assert times[0] <= times[1]
            assert job.training.straggler_share or len(set(times)) == 1


def test_every_option_is_varied_or_has_a_reason() -> None:
    names = {option.name for option in OPTIONS}
    assert set(TRAINING) | set(WITHOUT) <= names
    assert not set(TRAINING) & set(WITHOUT)
    assert {name for name in PARALLEL if name != "layout"} <= {field.name for field in dataclasses.fields(Parallel)}


def test_every_pair_of_values_is_in_a_row() -> None:
    wanted = {
        ((first, one), (second, two))
        for first, second in combinations(axes(), 2)
        for one in axes()[first]
        for two in axes()[second]
    }
    assert wanted == {pair for row in rows() for pair in combinations(row.items(), 2)}
    assert len(rows()) < 150
