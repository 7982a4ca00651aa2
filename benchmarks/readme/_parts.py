"""``PARTS``: what commands of seconds make of README.md and docs/, as functions that write its Markdown."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

from benchmarks.readme._accuracy import ACCURACY, data_folder
from benchmarks.readme._commands import run_json, run_text
from benchmarks.readme._pictures import DEMO, GRID, SCHEDULES_VLM
from benchmarks.readme._weave import ROOT

GIB = 2**30
ALLOCATED = ("parameters", "gradients", "optimizer", "activations", "workspace", "communication")


def demo() -> str:
    """The pictures of ``make demo``, and what they show."""
    found = run_json(DEMO)
    kinds = max(found["memory"], key=lambda row: row["reserved"] + sum(row[name] for name in ALLOCATED))
    need = sum(kinds[name] for name in (*ALLOCATED, "reserved", "other", "margin")) / GIB
    capacity = found["capacity_bytes"] / GIB
    return f"""\
![Timeline of one iteration: four pipeline ranks, the image encoder overloads rank 0](examples/pictures/timeline.png)

![Memory of the four pipeline ranks by role, with the capacity line](examples/pictures/memory.png)

An iteration takes {found["iteration_time_s"]:.3f} s (MFU {100 * found["mfu"]:.1f} %), and the fullest rank needs \
{need:.2f} of {capacity:.2f} GiB. The pictures show what DIP calls dynamic
imbalance: the stages are balanced by parameters, as Megatron-LM cuts them, but images make the encoder's rank the \
bottleneck (bubble {100 * found["bubble_ratio"]:.0f} %), and
how much depends on each microbatch. `--set parallel.partition=latency` balances by simulated time instead.
"""


FIRST = "simulate llama3-70b --cluster h100:16x8 --parallel tp8-pp4 --tokens 15T --gpu-hour-usd 2.5"


def first() -> str:
    """What the first command of a new user prints."""
    return f"```\n$ semu {FIRST}\n{run_text(FIRST)}```\n"


def published() -> str:
    """Published figures beside semu's."""
    command = [sys.executable, str(ROOT / "benchmarks" / "published.py"), "--json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    value = {row["name"]: row["value"] for row in json.loads(done.stdout)}

    def table_1(name: str) -> str:
        time_s, mfu = (value[f"DIP Table 1: {name}, {what}"] for what in ("iteration time", "MFU"))
        return f"{time_s:.4g} s, MFU {mfu:.3f}"

    flop = value["DIP Table 1: lm-7b, model FLOP"]
    bubble = value["DIP 2.2: bubble"]
    small, large = (value[f"DIP Fig. 4d: FLOP spread at {pixels} px"] for pixels in (256, 512))
    return f"""\
| what | published | semu | command |
| --- | --- | --- | --- |
| LM 7B, 8 H800, TP2 PP4, {flop:.1f} PFLOP (DIP Table 1) | 4.068 s, MFU 0.400 | {table_1("lm-7b")} | `semu simulate lm-7b` |
| ViT 2B + LM 5B, the same GPUs, dynamic data (DIP Table 1) | 6.789 s, MFU 0.239 | {table_1("vlm-7b")} | `semu simulate vlm-7b` |
| 64 + 64 layers in 16 stages, 1F1B bubble (DIP §2.2) | 22.8 % | {bubble:.2f} % | `python benchmarks/published.py` |
| FLOP of the largest / smallest of 100 T2V batches (DIP Fig. 4d) | 4.15 | {small:.2f} at 256 px, {large:.2f} at 512 px (seed 0) | `python benchmarks/published.py` |
| GPT-3 175B FLOP (2104.04473) | closed form | equal as integers | `pytest tests/semu_models/test_flop.py` |
| the best of 22 layouts of VLM-M on 64 H800 (DIP Fig. 13) | DP8 TP2 PP4, MFU 29.7 % | DP8 TP2 PP4, 21.5 % | `python benchmarks/paper/fig13.py` (minutes; not remade here) |
"""  # noqa: E501


BASELINES = ("megatron", "megatron-1f1b", "nnscaler", "optimus", "fsdp")
SETUPS = ("vlm-s", "vlm-m --set training.global_batch=32", "t2v-s")


def baselines() -> str:
    """Iteration times of the setups under each baseline."""
    lines = [
        f"| iteration time, full recomputation (nnScaler\\* plans it) | {' | '.join(BASELINES)} |",
        f"| --- |{' --- |' * len(BASELINES)}",
    ]
    for setup in SETUPS:
        cells = []
        for name in BASELINES:
            found = run_json(f"simulate {setup} --baseline {name}")
            decoder = "decoder" in found.get("error", {}).get("message", "")
            refused = "refused: a decoder" if decoder else "refused"
            cells.append(refused if "error" in found else f"{found['iteration_time_s']:.2f} s")
        lines.append(f"| `semu simulate {setup} --baseline NAME` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def schedules() -> str:
    """The picture of a model under some schedules, and what zero bubble would need there."""
    memory = {own["name"]: max(own["peak_memory_bytes"]) for own in run_json(SCHEDULES_VLM)["schedules"]}
    return f"""\
![VLM-L under five schedules on one time axis](../../examples/pictures/schedules_vlm.png)

Ranks 0 and 1 hold the image encoder: two chunks per rank spread it over four ranks; zero bubble (`zb-v`) would need \
{memory["zb-v"] / GIB:.0f} GiB, because under full recomputation a
split backward keeps what it has recomputed until its weight gradient.
"""


def grid() -> str:
    """How many configurations a grid decides, and its picture."""
    found = run_json(GRID)
    return f"""\
`semu {GRID} --out out` looks at all (dp, tp, pp, vpp, micro_batch, recompute). Of {found["legal"]:,} legal \
configurations it simulates {len(found["rows"])}; the others
surely do not fit, or are surely slower than the best ten.

![All configurations of GPT-3 175B on 512 A100: time against memory](../../examples/pictures/grid.png)
"""


PARTS: dict[str, Callable[[], str]] = {
    "demo": demo,
    "first": first,
    "published": published,
    "baselines": baselines,
    "schedules": schedules,
    "grid": grid,
    **ACCURACY,
}


def is_makeable(name: str) -> bool:
    """Whether a part can be made here: those of ``ACCURACY`` need the measured data."""
    return name not in ACCURACY or data_folder() is not None
