"""``ACCURACY``: what published runs and measurements, which are not shipped, say of semu's accuracy."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.readme._commands import run_json, run_text
from benchmarks.readme._weave import PICTURES_FOLDER, ROOT

GROUPS = {
    "a_mcore_h100_weak": "Megatron core 0.8, H100, 48 to 3,072 GPUs",
    "b_megatron_a100_2021": "Megatron-LM 2021, A100",
    "c_korthikanti_time": "2205.05198, A100",
    "i_zero_bubble_a100": "zero-bubble paper, A100: 1F1B, interleaved 1F1B, automatic zero bubble",
    "h_nemo_h100_fp8": "NeMo fp8, H100",
    "f_torchtitan": "torchtitan, H100 96 GB",
    "i_mpt_h100_fsdp": "MPT FSDP, H100",
    "i_mpt_a100_80g_fsdp": "MPT FSDP, A100",
    "i_internevo_a100_dp_scaling": "InternEvo, A100, 8 to 1,024 GPUs",
    "e_bridge_h100_moe": "Megatron-Bridge MoE, H100",
    "e_bridge_h100": "Megatron-Bridge dense, H100",
    "h_nemo_a100_bf16": "NeMo, A100",
    "d_mcore_ci_large": "Megatron CI, H100",
}
"""Groups of the collection whose times are scored, as the page calls them."""

NEWER = {
    "n_nanotron_h100": "nanotron, H100, eager, Elastic Fabric Adapter",
    "n_bigscience_a100": "Megatron-DeepSpeed, A100, Omni-Path",
    "n_mlperf_llama2_70b_lora": "LoRA of Llama-2 70B, fp8, four devices",
    "n_mlperf_sd2": "Stable Diffusion 2, NeMo, H100 to B200",
    "n_nemo_clip": "CLIP, NeMo, H100",
    "n_nemo_vit": "ViT, NeMo, A100 and H100",
    "n_opensora_h800": "video transformer, H800",
    "n_mosaic_sd2_a100": "Stable Diffusion 2, Composer, A100",
    "n_xtuner_h800_moe": "XTuner MoE, H800",
    "n_bridge_gb200": "Megatron-Bridge, GB200",
    "n_bridge_b200": "Megatron-Bridge, B200",
}
"""The same of the newer collection."""
CAUSES = {
    "eager_pipeline": "eager pipelines over nodes",
    "modality": "more than text",
    "modality_torch": "more than text, under PyTorch",
    "family": "a family of models never compared",
    "context": "context ranks under PyTorch",
    "experts": "mixture of experts",
    "adapters": "LoRA",
    "fabric": "a fabric of its own",
    "network": "a network of another bandwidth",
}
"""Kinds of runs with a spread of their own, as the page calls them."""


def data_folder() -> Path | None:
    """The measured data: ``SEMU_DATA``, else ``../shared/data``; None: there is none."""
    folder = Path(os.environ.get("SEMU_DATA") or ROOT.parent / "shared" / "data")
    return folder if (folder / "runs" / "runs.json").is_file() else None


def _validated(options: str = "", file: str = "runs.json") -> Any:
    folder = data_folder()
    assert folder is not None
    return run_json(f"validate --runs {folder / 'runs' / file} {options}".strip())


def summary() -> str:
    """The table of the README: mean errors, the null model's, and the shares inside the interval."""
    time, newer = (_validated(file=name)["overall"]["time"] for name in ("runs.json", "runs2.json"))
    held = [group for fit in _factors() for group in fit["left_out"].values()]
    n = sum(group["n"] for group in held)
    error = sum(group["error"] * group["n"] for group in held) / n
    inside = 100 * sum(group["inside"] for group in held) / n
    return f"""\
| published runs | rows | mean error of the time | inside the 90 % interval |
| --- | --- | --- | --- |
| kinds of runs that the factors were fitted on (`../shared/data/runs/runs.json`) | {time["n"]} | \
{time["mape"]:.1f} % | {time["inside"]:.0f} % |
| the dense ones of them, each group by factors fitted on the others | {n} | {error:.1f} % | {inside:.0f} % |
| newer kinds, all but three numbers from elsewhere (`runs2.json`) | {newer["n"]} | {newer["mape"]:.1f} % | \
{newer["inside"]:.0f} % |
| one constant MFU per device and precision, on the rows of the first line | {time["n"]} | {time["null_mape"]:.1f} % | |
"""


def _times(found: Any, names: Mapping[str, str]) -> str:
    """Lines of a table with the errors of the times of each group, and of all."""
    scored = {group["group"]: group for group in found["groups"]}
    rows = [(name, scored[key]["time"]) for key, name in names.items()]
    rows.append(("all", found["overall"]["time"]))
    missing = {key for key, group in scored.items() if group["time"] is not None} - names.keys()
    assert not missing, f"groups without a name for the page: {sorted(missing)}"
    return "\n".join(
        f"| {name} | {time['n']} | {time['mape']:.1f} % | {time['bias']:+.1f} % | {time['null_mape']:.1f} % | "
        f"{time['inside']:.0f} % |"
        for name, time in rows
    )


def accuracy() -> str:
    """Time and memory of the published runs, group by group."""
    found = _validated()
    scored = {group["group"]: group for group in found["groups"]}
    table = _times(found, GROUPS)
    memory = {key: scored[key]["memory"] for key in ("d_mcore_ci_small_memory", "f_torchtitan", "i_zero_bubble_a100")}
    ci, titan, zero = memory.values()
    forms = scored["c_korthikanti_formula_memory"]
    refused = found["counts"]["refused"] + found["counts"]["error"]
    return f"""\
| published runs | n | time MAPE | bias (median) | null model | inside 90 % |
| --- | --- | --- | --- | --- | --- |
{table}

Peak memory: Megatron CI {ci["mape"]:.1f} % ({ci["n"]} rows; last rank, allocated), torchtitan {titan["mape"]:.1f} % \
({titan["n"]}; reserved), zero-bubble {zero["mape"]:.1f} % ({zero["n"]}; a printed GB read as 10^9 reserved bytes);
closed forms of 2205.05198: activations {forms["activation"]["mape"]:.2f} %, static {forms["static"]["mape"]:.2f} % \
({forms["static"]["n"]} each). {refused or "No"} row{"s are" if refused > 1 else " is"} refused.
"""


def draw_accuracy() -> None:
    """The picture beside ``accuracy``; its headline names the data as seen from here."""
    folder = data_folder()
    assert folder is not None
    with tempfile.TemporaryDirectory() as out:
        run_text(f"validate --runs {os.path.relpath(folder / 'runs' / 'runs.json')} --quiet --out {out}")
        shutil.copyfile(Path(out) / "validation.png", PICTURES_FOLDER / "validation.png")


def newer() -> str:
    """Time and memory of the newer published runs, group by group."""
    found = _validated(file="runs2.json")
    memory = ", ".join(
        f"{NEWER[group['group']].partition(',')[0]} {group['memory']['mape']:.0f} % ({group['memory']['n']})"
        for group in found["groups"]
        if group["memory"] is not None
    )
    return f"""\
| newer published runs | n | time MAPE | bias (median) | null model | inside 90 % |
| --- | --- | --- | --- | --- | --- |
{_times(found, NEWER)}

Peak memory: {memory}.
"""


def _calibration(module: str, *options: str) -> Any:
    """What a script of ``calibration`` prints as JSON; nothing is written."""
    done = subprocess.run(
        [sys.executable, "-m", f"calibration.{module}", *options, "--json"],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    return json.loads(done.stdout)


@cache
def _factors() -> Any:
    """The software factors of the published runs."""
    return _calibration("software_factors", "--runs", f"{data_folder()}/runs/runs.json")


def left_out() -> str:
    """Errors of groups that were left out of the fit, of data-sheet peaks, and of sites with two runs."""
    errors = {fit["software"]: fit["left_out"] for fit in _factors()}
    lines = [
        f"| {GROUPS[name.split(',')[0]]}{''.join(name.partition(',')[1:])} | factors of {key} | "
        f"{held['error']:.1f} % | {held['inside']} of {held['n']} |"
        for key, groups in errors.items()
        for name, held in groups.items()
    ]
    folder = data_folder()
    causes = _calibration("structural_spreads", f"{folder}/runs/runs.json", f"{folder}/runs/runs2.json")
    lines += [
        f"| {(GROUPS | NEWER)[group['group']]} | spread of {CAUSES[one['cause']]} | | "
        f"{group['inside']} of {group['runs']} |"
        for one in causes
        for group in one["groups"]
    ]
    compared = [group for group in _validated("--compare spec")["compare"]["groups"] if group["group"] != "all"]
    spec = sum(group["other_mape"] * group["n"] for group in compared) / sum(group["n"] for group in compared)
    site = _validated("--site 2")["site"]["overall"]["over_choices"]
    table = "\n".join(lines)
    shares = [held["inside"] / held["n"] for groups in errors.values() for held in groups.values()]
    shares += [group["inside"] / group["runs"] for one in causes for group in one["groups"]]
    mean = 100 * sum(shares) / len(shares)
    return f"""\
| group left out of the fit | of what | time MAPE | inside 90 % |
| --- | --- | --- | --- |
{table}

In the mean over these groups the interval holds {mean:.0f} %.

`semu validate --compare spec`: at data-sheet peaks the mean error is {spec:.0f} %. `semu validate --site 2`: two runs \
of a site move the mean error of the others from
{site["mape_before"]:.2f} to {site["mape_after"]:.2f} % over all choices (the null model with the same two runs: \
{site["null_mape"]:.0f} %).
"""


HELD_OUT = {
    "GEMM (m, n, k >= 256), with a factor per site / without": ("gemm",),
    "attention forward": ("attention_forward",),
    "collectives in a node: all-reduce, all-gather, reduce-scatter, all-to-all": (
        *("all_reduce", "all_gather", "reduce_scatter", "all_to_all"),
    ),
    "memory-bound above 20 MB: activations, add, rope, norms": ("activation", "add", "rope", "norm"),
}
"""Rows of the table of held-out shapes, and the kinds of kernels in each."""
TABLES = ("gemm.csv", "attention.csv", "memory_ops.csv", "collectives.csv")
PROFILES = {"H100": "h100", "A100": "a100-80g", "H200": "h200", "B200": "b200"}


def held_out() -> str:
    """Errors of the shipped profiles on shapes that were held out of their fits."""
    folder = data_folder()
    files = " ".join(f"{folder}/microbench/{name}" for name in TABLES)
    columns = []
    for profile in PROFILES.values():
        kinds = {
            row["kind"]: row for row in run_json(f"calibrate --score {files} --profile {profile} --held-out")["kinds"]
        }
        columns.append(
            [_cell([kinds.get(kind) for kind in row], is_first=not i) for i, row in enumerate(HELD_OUT.values())]
        )
    lines = [f"| {name} | {' | '.join(column[i] for column in columns)} |" for i, name in enumerate(HELD_OUT)]
    table = "\n".join(lines)
    return f"""\
| MAPE on held-out shapes, % | {" | ".join(PROFILES)} |
| --- |{" --- |" * len(PROFILES)}
{table}
"""


def _cell(kinds: list[Any], *, is_first: bool) -> str:
    """Errors of some kinds; of products also without the factor of their source, where that differs."""
    shown = [f"{row['mape']:.1f}" if row is not None else "-" for row in kinds]
    if is_first and kinds[0]["mape_without_site_factor"] != kinds[0]["mape"]:
        shown.append(f"{kinds[0]['mape_without_site_factor']:.1f}")
    return "" if set(shown) == {"-"} else (" / " if is_first else ", ").join(shown)


ACCURACY: dict[str, Callable[[], str]] = {
    "summary": summary,
    "accuracy": accuracy,
    "newer": newer,
    "left-out": left_out,
    "held-out": held_out,
}
