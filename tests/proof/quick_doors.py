"""``quick_doors``: commands that read a file and answer within milliseconds, and files that no other command reads.

Most damage ends in a refusal, and what refuses is the same code whatever the command does afterwards; here a processor
meets ten times as many files. Models have two layers, so that building them costs little.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tests.fitting.fixtures import NCCL_TEXT, nccl_json, trace
from tests.proof.doors import (
    COUNTS,
    EVENTS,
    EXPERTS,
    LOG,
    PROFILE,
    RULE,
    RUN,
    SLURM,
    TESTS,
    Door,
    quietly,
    small,
)
from tests.validation.nsys_reports import write_gpu_trace, write_kernel_sum
from tests.validation.own_runs import kernel, launch, step, write_trace
from tests.validation.test_other_logs import COMPOSER, DEEPSPEED, DEEPSPEED_RATES, NANOTRON, NEMO, TRAINER

QUICK = 12.0
"""Share of the time of a command that simulates nothing."""
SHALLOW = re.compile(rb"""((?:num_hidden_layers|num_layers|n_layers?|num-layers|depth)["']?\s*[:= ]\s*)\d+""")
SETUPS = ("lm-7b", "vlm-7b", "vlm-s", "t2v-s", "qwen2-audio-7b")
ZERO_BUBBLE = "zb-h1"


def _shallow(paths: Sequence[Path]) -> list[bytes]:
    """Real files, whose models get two layers where a plain number says how many."""
    return [SHALLOW.sub(rb"\g<1>2", data) for data in small(paths)]


def quick_doors(folder: Path) -> dict[str, Door]:
    """Doors by name.

    Args:
        folder: where undamaged files may be put, ``run.toml`` among them.
    """
    at = str(folder / "run.toml")
    found: dict[str, Door] = {}

    def door(name: str, words: str, suffix: str, make: Callable[[], Sequence[bytes]], share: float = QUICK) -> None:
        found[name] = Door(name, tuple(words.split()), suffix, make, share)

    def made(name: str, *words: str) -> bytes:
        """What a command writes to the file that it is told last."""
        path = folder / name
        quietly(*words, str(path))
        return path.read_bytes()

    def runs() -> Sequence[bytes]:
        own = [TESTS / "cli" / "small-vlm.toml", *sorted((TESTS.parent / "examples" / "runs").glob("*.toml"))]
        texts = [
            RUN.encode(),
            EXPERTS.encode(),
            *(quietly("simulate", name, "--dump-config") for name in (at, *SETUPS)),
        ]
        return [SHALLOW.sub(rb"\g<1>2", text) for text in (*texts, *(path.read_bytes() for path in own))]

    def result() -> bytes:
        if not (folder / "quick" / "result.json").exists():
            quietly("simulate", at, "--out", str(folder / "quick"))
        return (folder / "quick" / "result.json").read_bytes()

    def plans() -> Sequence[bytes]:
        few = ("--set", "training.global_batch=4")
        split = ("--set", f"training.schedule={ZERO_BUBBLE}", "--set", "parallel.zero=0")
        return [made(f"plan{i}", "plan", at, *few, *more, "-o") for i, more in enumerate(((), split))]

    def logs() -> Sequence[bytes]:
        kinds = (NANOTRON, NEMO, DEEPSPEED, DEEPSPEED_RATES, TRAINER, COMPOSER)
        return [LOG.encode(), *("\n".join(lines).encode() + b"\n" for lines in kinds)]

    def result_and_logs() -> Sequence[bytes]:
        result()  # which the logs are compared with
        return logs()

    def samples() -> Sequence[bytes]:
        images = [[{"patches": 16 * side**2, "tokens": side**2} for side in (6, 9 + i % 7)] for i in range(24)]
        lines = [{"id": f"s{i}", "text_tokens": 20 + 37 * i, "images": images[i]} for i in range(24)]
        return ["".join(json.dumps(line) + "\n" for line in lines).encode()]

    def kineto() -> Sequence[bytes]:
        steps = [step(number, 100.0 * number, 100.0) for number in (1, 2, 3)]
        kernels = [kernel("nvjet_hsh_256x128", 100.0 * n + 20, 50, correlation=n) for n in (1, 2, 3)]
        launches = [launch(100 * n + 10, n) for n in (1, 2, 3)]
        send = kernel("ncclDevKernel_SendRecv", 240, 20, args={"Collective name": "all_to_allv"})
        path = write_trace(folder / "t.json", *steps, *kernels, *launches, send)
        return [path.read_bytes(), json.dumps(trace()).encode()]

    def traced() -> Sequence[bytes]:
        return [json.dumps(trace()).encode()]

    def nsys() -> Sequence[bytes]:
        spans = [("nvjet_hsh_256x128", 1000 * n, 800) for n in range(4)] + [("ncclDevKernel_AllReduce", 9000, 500)]
        makers = (write_gpu_trace, write_kernel_sum)
        return [maker(folder / "nsys.csv", spans).read_bytes() for maker in makers]

    def schedule() -> Sequence[bytes]:
        quietly("search", at, "--rollouts", "5", "--workers", "1", "--out", str(folder / "searched"))
        return [(folder / "searched" / "schedule.json").read_bytes()]

    def stream() -> Sequence[bytes]:
        return [made("stream.jsonl", "plan", at, "--iterations", "2", "--write-stream")]

    ruled = RUN.replace('schedule = "1f1b"', 'schedule = "mine"') + "\n" + RULE
    door("config", "simulate {} --dump-config", ".toml", runs)
    door("config-plain", "simulate {} --dump-config", ".toml", lambda: [RUN.encode(), EXPERTS.encode(), ruled.encode()])
    profiles = sorted((TESTS.parent / "semu" / "hardware" / "profiles").glob("*.toml"))
    door("config-profile", f"simulate {at} --profile {{}} --dump-config", ".toml", lambda: [PROFILE.encode()])
    door("config-profiles", f"simulate {at} --profile {{}} --dump-config", ".toml", lambda: small(profiles), 1)
    layout = "--cluster h100:1x8 --parallel dp2-tp2-pp2"
    configs = TESTS / "semu_models" / "hf" / "configs"
    door("config-hf", f"simulate {{}} --dump-config {layout}", ".json", lambda: _shallow([*configs.glob("*.json")]))
    for files in sorted(TESTS.glob("imports/*/files")):
        for suffix in sorted({path.suffix for path in files.iterdir() if path.is_file()}):
            make = partial(_shallow, list(files.glob(f"*{suffix}")))
            name = f"config-{files.parent.name}{suffix.replace('.', '-')}"
            door(name, f"simulate {{}} --dump-config --allow-unmodelled {layout}", suffix, make, QUICK / 6)
    door("small-plan-show", "plan --show {}", ".json", plans)
    door("small-plan-rank", "plan --show {} --rank 1", ".json", plans)
    door("small-plan-verify", "plan --verify {} --json", ".json", plans)
    door("rule-plain", "schedules --program {} --ranks 2 --microbatches 4 --json", ".toml", lambda: [RULE.encode()])
    door("rule-of", "schedules --rule-of {} --json", ".json", schedule, QUICK / 3)
    door("schedule", f"simulate {at} --json --set training.schedule_file={{}}", ".json", schedule)
    door("results", f"compare {folder / 'quick' / 'result.json'} {{}} --json", ".json", lambda: [result()])
    door("result-log", f"compare {folder / 'quick' / 'result.json'} {{}} --json", ".log", result_and_logs)
    door("logs", f"validate --run {at} --log {{}} --json", ".log", logs, 1)
    door("trace-kineto", f"validate --run {at} --trace {{}} --json", ".json", kineto, 1)
    door("trace-nsys", f"validate --run {at} --trace {{}} --json", ".csv", nsys, 1)
    door("calibrate-trace", "calibrate {} --score --profile h100 --json", ".json", traced, 1)
    nccl = NCCL_TEXT.format(test="all_reduce", host="node-1", time=20.97)
    door("calibrate-nccl", "calibrate {} --device h100 --json", ".txt", lambda: [nccl.encode()], 1)
    door("calibrate-nccl-json", "calibrate {} --device h100 --json", ".json", lambda: [nccl_json().encode()], 1)
    loop = "--iterations 1 --rollouts 1 --workers 1 --deadline 0.01"
    door("small-stream", f"plan {at} --stream {{}} --json {loop}", ".jsonl", stream, 1)
    few = "vlm-7b --set training.global_batch=2 --set training.seq_len=2048"
    door("few-samples", f"workload {few} --samples {{}} --json", ".jsonl", samples, 1)
    door(
        "samples-config",
        f"simulate {few} --set batch.kind=file --set batch.path={{}} --dump-config",
        ".jsonl",
        samples,
        1,
    )
    for name, text in (("events", EVENTS), ("counts", COUNTS), ("slurm", SLURM)):
        make = partial(lambda text: [text.encode()], text)
        door(f"few-{name}", f"goodput {at} --trace {{}} --days 0.1 --seeds 1 --json", ".csv", make, 1)
    return found
