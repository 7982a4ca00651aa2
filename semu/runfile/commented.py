"""``commented_run``: a resolved run as a run file with a word on every key, defaults as comments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from semu.job import Training
from semu.job.training import OPTIONS
from semu.parallel.config import Overlap, Parallel
from semu.runfile.config import RunConfig
from semu.runfile.sources import options_table
from semu.runfile.toml_text import comment_lines, format_toml

_SAYS: Mapping[str, str] = {
    "model.name": "see: semu list models",
    "model.hf_config": "a config.json of HuggingFace transformers",
    "model.frozen": 'without weight gradients, e.g. ["encoder"]',
    "model.vocab_multiple": "rounds the token table up to a multiple of this x tp",
    "cluster.device": "see: semu list devices, or the path of a profile",
    "cluster.nodes": "nodes x gpus_per_node = dp x tp x pp x cp",
    "parallel.dp": "data parallel; without it, as many replicas as the GPUs hold",
    "parallel.tp": "tensor parallel, within a node",
    "parallel.pp": "pipeline ranks",
    "parallel.vpp": "model chunks (virtual stages) per pipeline rank",
    "parallel.cp": "context parallel: splits sequences",
    "parallel.ep": "expert parallel, within dp x cp",
    "parallel.etp": "tensor parallel of experts",
    "parallel.sequence_parallel": "activations are sharded between tensor-parallel regions",
    "parallel.zero": "0, 1 (distributed optimizer), 2, 3 (FSDP)",
    "parallel.partition": "stages balanced by parameters, latency or forward, or evenly by layers",
    "parallel.placement": "circular, v-shape or bidirectional; schedules bring their own",
    "parallel.vocabulary": "embedding and head at the ends, or split over the pipeline's ranks",
    "parallel.loss": "of towers: on one head's rank, or on all towers' last ranks, which meet or send",
    "overlap.grad_reduce": "gradients are reduced while the last backward computes",
    "overlap.param_gather": "parameters are gathered while the first forward computes",
    "overlap.expert_parallel": "exchanges of experts' tokens hide behind another microbatch",
    "batch.kind": "text, vlm, t2v, mixed, pairs or file (JSONL metadata of real samples)",
    "batch.seed": "of the drawn samples",
}
_HEADS: Mapping[str, str] = {
    "model": "What is trained: name, hf_config, [model.transformer], or [model.encoder] with [model.llm].",
    "cluster": "Where: equal nodes. oversubscription = 2 halves the bandwidth between them; fabric = 'efa': AWS's.",
    "parallel": "How it is spread.",
    "training": "How it is trained.",
    "overlap": "Which communication may hide behind computation.",
    "batch": "What is read.",
}
_LONGEST = 86
"""Characters of what is said about a key; what is longer is left out."""


def commented_run(run: RunConfig, title: str) -> str:
    """A run file that loads to the same run.

    Args:
        run: resolved. title: first line, without the hash.
    """
    known = {table: dict(options) for table, options in _defaults().items()}
    lines = [*comment_lines(title), "# Keys behind a hash have the value that they get without being named.", ""]
    for name, table in run.config.items():
        lines += comment_lines(_HEADS[name]) if name in _HEADS else []
        lines += [*_table(name, table, known.get(name, {})), ""]
    return "\n".join(lines).rstrip() + "\n"


def _defaults() -> dict[str, dict[str, Any]]:
    options: dict[str, Parallel | Training | Overlap] = {"parallel": Parallel(), "training": Training()}
    options["overlap"] = Overlap()
    return {name: options_table(option, name) for name, option in options.items()}


def _table(name: str, table: Mapping[str, Any], defaults: Mapping[str, Any]) -> Iterator[str]:
    """Lines of a table: what differs from the defaults, then the defaults, then the tables in it."""
    yield f"[{name}]"
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    always = ("dp", "tp", "pp", "micro_batch", "global_batch", "seq_len", "precision", "recompute", "schedule")
    is_default = {key: key in defaults and key not in always and defaults[key] == value for key, value in plain.items()}
    for key in sorted(plain, key=is_default.__getitem__):  # stable: the schema's order
        line = ("# " if is_default[key] else "") + format_toml({key: plain[key]}).strip()
        says = _says(name, key)
        noted = f"{line:<30}  # {says}" if says and len(says) <= _LONGEST else line
        if len(noted) > 80:
            yield from comment_lines(says)
        yield noted if len(noted) <= 80 else line
    nested = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    if nested:
        yield format_toml({name: nested}).rstrip()


def _says(table: str, key: str) -> str:
    if table == "training":
        row = next((row for row in OPTIONS if row.name == key), None)
        if row is None:
            return ""
        words = " | ".join(row.value.words) if 1 < len(row.value.words) < 8 else ""
        return words or f"{row.doc.partition(';')[0]}{f' [{row.unit}]' if row.unit else ''}"
    return _SAYS.get(f"{table}.{key}", "")
