"""``CHARTS``: a small picture for every page of docs/explanation/mechanisms that has none of its own, made of
predictions of seconds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import semu
from benchmarks.readme._weave import PICTURES_FOLDER
from semu import nn
from semu.hardware.network.cost import collective_latency
from semu.hardware.network.group import CommGroup, wire_factor
from semu.hardware.profile import load_profile
from semu.present.estimate import Estimate
from semu.present.plots.canvas import make_sheet
from semu.present.plots.style import PALETTE

Lines = Mapping[str, Sequence[float]]
DIGITS = 3
"""Significant digits of a number that count."""
_LLAMA = ("training.global_batch=64", "training.seq_len=8192")


@dataclass(frozen=True)
class Chart:
    """A picture of some lines, or of bars where what is varied has no order.

    Attributes:
        name: of the file in ``examples/pictures``. title, what: headline, and the line below it. x, y: of the axes.
        places: what is varied. lines: makes name -> a value per place.
    """

    name: str
    title: str
    what: str
    x: str
    y: str
    places: tuple[str, ...]
    lines: Callable[[], Lines]
    is_bars: bool = False

    def digest(self) -> str:
        """SHA-256 of its words and rounded values, the first 16 digits."""
        values = {name: [f"{value:.{DIGITS}g}" for value in line] for name, line in self.lines().items()}
        text = json.dumps([self.title, self.what, self.x, self.y, self.places, values])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def draw(self) -> None:
        """Draw the picture anew."""
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch

        lines = self.lines()
        colors = dict(zip(lines, PALETTE, strict=False))
        make = (lambda color: Patch(color=color)) if self.is_bars else (lambda color: Line2D([], [], color=color))
        sheet = make_sheet(2.6, self.title, self.what, {name: make(color) for name, color in colors.items()})
        axes, ticks = sheet.axes(), range(len(self.places))
        for number, (name, values) in enumerate(lines.items()):
            if self.is_bars:
                width = 0.8 / len(lines)
                at = [tick - 0.4 + (number + 0.5) * width for tick in ticks]
                axes.bar(at, values, width, color=colors[name])
                for x, value in zip(at, values, strict=True):
                    axes.text(x, value, f"{value:.3g}", ha="center", va="bottom", size=9)
            else:
                axes.plot(ticks, values, marker="o", color=colors[name])
        axes.set(xlabel=self.x, ylabel=self.y, ylim=(0, 1.12 * max(max(line) for line in lines.values())))
        axes.set_xticks(ticks, self.places)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        sheet.save(PICTURES_FOLDER / self.name)


def run(model: str, cluster: str, parallel: str, *overrides: str) -> Estimate:
    """A run's first figures."""
    return semu.evaluate(model, cluster=cluster, parallel=parallel, overrides=overrides)


def exposed(found: Estimate, *groups: str) -> float:
    """What ranks wait for kinds of communication, of an iteration [%]."""
    waits = found.breakdown_s["exposed_communication"]
    assert isinstance(waits, Mapping)
    return 100 * sum(float(waits.get(group, 0.0)) for group in groups) / found.iteration_time_s


_SIZES = (512, 1024, 2048, 4096, 8192, 16384)


class _Product(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return self.linear(x)


def _kernels() -> Lines:
    def rate(device: str, width: int) -> float:
        graph = semu.trace(_Product(width), semu.Input((width, width)))
        return 4 * width**3 / semu.run(graph, load_profile(device)).makespan_s / 1e12  # and the weight gradient

    return {device: [rate(device, width) for width in _SIZES] for device in ("a100-80g", "h100", "b200")}


_SOFTWARE = ("llama3-8b, 8 GPUs, tp 2", "llama3-8b, 8 GPUs, ZeRO-3", "llama3-70b, 64 GPUs, tp 4, pp 4")


def _software() -> Lines:
    runs = (
        ("llama3-8b", "h100:1x8", "tp2", *_LLAMA),
        ("llama3-8b", "h100:1x8", "tp1", *_LLAMA, "parallel.zero=3", "training.recompute=full"),
        ("llama3-70b", "h100:8x8", "tp4-pp4", *_LLAMA),
    )
    return {
        software: [run(*words, f"training.software={software}").iteration_time_s for words in runs]
        for software in ("kernels", "megatron", "torch")
    }


_BATCHES = (1, 2, 4, 8, 16, 32)


def _launches() -> Lines:
    def mfu(micro: int, launch: str) -> float:
        words = (f"training.micro_batch={micro}", "training.global_batch=32", "training.seq_len=1024")
        rest = ("training.software=torch", "training.eager_modules=true", f"training.launch={launch}")
        return 100 * run("gpt2", "h100:1x1", "tp1", *words, *rest).mfu

    return {
        "launches as they are": [mfu(micro, "true") for micro in _BATCHES],
        "kernels that wait for no launch": [mfu(micro, "false") for micro in _BATCHES],
    }


_MIB = (0.0625, 0.25, 1, 4, 16, 64, 256, 1024, 4096)


def _collectives() -> Lines:
    profile, kind = load_profile("h100"), semu.OpKind.ALL_REDUCE
    groups = {
        f"{ranks} ranks on {nodes} node{'s' * (nodes > 1)}": CommGroup("dp", ranks, nodes)
        for ranks, nodes in ((8, 1), (16, 2), (64, 8), (512, 64))
    }

    def rate(group: CommGroup, mib: float) -> float:
        wire = float(wire_factor(kind, group.num_ranks)) * mib * 2**20
        return wire / collective_latency(profile, kind, group, wire) / 1e9

    return {name: [rate(group, mib) for mib in _MIB] for name, group in groups.items()}


_TP = (1, 2, 4, 8)


def _tensor() -> Lines:
    def share(cluster: str, tp: int) -> float:
        return exposed(run("llama3-8b", cluster, f"tp{tp}", *_LLAMA, "training.recompute=full"), "tp")

    clusters = {"eight GPUs a node": "h100:2x8", "four GPUs a node": "h100:4x4"}
    return {name: [share(cluster, tp) for tp in _TP] for name, cluster in clusters.items()}


_LOADS = (1.0, 1.25, 1.5, 1.75, 2.0)


def _experts() -> Lines:
    def time(ep: int, load: float) -> float:
        words = (
            "training.global_batch=128",
            "training.seq_len=4096",
            "training.recompute=full",
            f"training.moe_imbalance={load}",
        )
        return run("mixtral-8x7b", "h100:2x8", f"tp1-pp2-ep{ep}", *words).iteration_time_s

    return {f"ep {ep}": [time(ep, load) for load in _LOADS] for ep in (2, 4, 8)}


_NODES = (1, 2, 4, 8, 16, 32)


def _data() -> Lines:
    def share(zero: int, nodes: int) -> float:
        words = (f"training.global_batch={16 * nodes}", "training.seq_len=4096", "training.recompute=full")
        return exposed(run("llama3-8b", f"h100:{nodes}x8", "tp2", *words, f"parallel.zero={zero}"), "dp", "fsdp")

    return {f"ZeRO-{zero}": [share(zero, nodes) for nodes in _NODES] for zero in (0, 1, 2, 3)}


_TRAINED = ("all", "language model and projector", "encoder and projector", "projector alone")


def _backward() -> Lines:
    frozen = ((), ("encoder",), ("backbone",), ("encoder", "backbone"))
    words = ("training.global_batch=32", "training.recompute=none")
    found = [
        run("vlm-7b", "h100:1x8", "tp2", *words, *([f"model.frozen={json.dumps(parts)}"] if parts else []))
        for parts in frozen
    ]
    return _over_first(found)


_RECOMPUTED = ("none", "selective", "full")


def _recompute() -> Lines:
    found = [run("llama3-8b", "h100:1x8", "tp2", *_LLAMA, f"training.recompute={what}") for what in _RECOMPUTED]
    return _over_first(found)


def _over_first(found: Sequence[Estimate]) -> Lines:
    first = found[0]
    return {
        "time": [one.iteration_time_s / first.iteration_time_s for one in found],
        "peak memory": [max(one.peak_memory_bytes) / max(first.peak_memory_bytes) for one in found],
    }


_MODELS = ("llama3-8b", "llama3-70b", "gpt3-175b")


def _precision() -> Lines:
    def time(model: str, *words: str) -> float:
        layout = {"llama3-8b": "tp2", "llama3-70b": "tp4-pp4", "gpt3-175b": "tp8-pp8"}[model]
        cluster = {"llama3-8b": "h100:1x8", "llama3-70b": "h100:8x8", "gpt3-175b": "h100:16x8"}[model]
        return run(model, cluster, layout, "training.global_batch=128", *words).iteration_time_s

    base = [time(model) for model in _MODELS]
    return {
        name: [time(model, *words) / own for model, own in zip(_MODELS, base, strict=True)]
        for name, words in (("bf16", ()), ("fp8, one scale per tensor", ("training.precision=fp8",)))
    }


def _step() -> Lines:
    def after(nodes: int, zero: int) -> float:
        words = (f"training.global_batch={16 * nodes}", f"parallel.zero={zero}", "training.recompute=full")
        found = run("llama3-8b", f"h100:{nodes}x8", "tp2", *words)
        return 1000 * (found.iteration_time_s - found.makespan_s)

    return {f"ZeRO-{zero}": [after(nodes, zero) for nodes in _NODES] for zero in (0, 1)}


_JITTER = (0.0, 0.02, 0.04, 0.06, 0.08, 0.1)


def _jitter() -> Lines:
    def slower(nodes: int, jitter: float) -> float:
        words = (f"training.global_batch={32 * nodes}", "training.seq_len=8192", f"training.jitter={jitter}")
        options = {"cluster": f"h100:{nodes}x8", "parallel": "tp2-pp4"}
        report = semu.simulate("llama3-8b", words, samples=100 if jitter else 0, **options)
        drawn = report.iteration_time_s if report.samples is None else report.samples.p50_s
        return 100 * (drawn / report.iteration_time_s - 1)

    counts = {"1 replica": 1, "4 replicas": 4, "16 replicas": 16}
    return {name: [slower(count, jitter) for jitter in _JITTER] for name, count in counts.items()}


_SURE = ("llama3-8b, h100", "llama3-8b, b200", "mixtral-8x7b, h100", "vlm-s, h800")


def _intervals() -> Lines:
    words = (*_LLAMA, "training.recompute=full")
    reports = (
        semu.simulate("llama3-8b", words, cluster="h100:1x8", parallel="tp2"),
        semu.simulate("llama3-8b", words, cluster="b200:1x8", parallel="tp2"),
        semu.simulate("mixtral-8x7b", words, cluster="h100:2x8", parallel="tp2-pp2-ep4"),
        semu.simulate("vlm-s", ("training.global_batch=8",)),
    )
    ends = [[100 * (end / one.iteration_time_s - 1) for end in one.iteration_time_interval_s] for one in reports]
    return {"below": [-low for low, _ in ends], "above": [high for _, high in ends]}


CHARTS: Mapping[str, Chart] = {
    chart.name: chart
    for chart in (
        Chart(
            *("mechanism_kernels.png", "Square products of 16-bit numbers", "useful rate by the edge of the matrices"),
            *("edge", "TFLOP/s", tuple(map(str, _SIZES)), _kernels),
        ),
        Chart(
            *("mechanism_software.png", "An iteration under a framework's factors", "kernels: each as fast as alone"),
            *("run", "iteration [s]", _SOFTWARE, _software, True),
        ),
        Chart(
            *("mechanism_launches.png", "GPT-2 on one H100 under eager PyTorch", "32 sequences of 1,024 tokens"),
            *("sequences at a time", "MFU [%]", tuple(map(str, _BATCHES)), _launches),
        ),
        Chart(
            *("mechanism_collectives.png", "All-reduce on H100", "bytes on the wire per rank and second"),
            *("buffer [MiB]", "GB/s", tuple(f"{mib:g}" for mib in _MIB), _collectives),
        ),
        Chart(
            *(
                "mechanism_tensor.png",
                "Llama 3 8B on 16 H100",
                "share of an iteration that waits for tensor parallelism",
            ),
            *("tensor-parallel ranks", "share [%]", tuple(map(str, _TP)), _tensor),
        ),
        Chart(
            *(
                "mechanism_experts.png",
                "Mixtral 8x7B on two nodes of eight H100",
                "by the load of the busiest expert rank",
            ),
            *("load over the mean", "iteration [s]", tuple(map(str, _LOADS)), _experts),
        ),
        Chart(
            *(
                "mechanism_data.png",
                "Llama 3 8B, two sequences of 4,096 tokens per GPU",
                "share of an iteration that waits for data parallelism",
            ),
            *("nodes of eight H100", "share [%]", tuple(map(str, _NODES)), _data),
        ),
        Chart(
            *("mechanism_backward.png", "What of a vision-language model trains", "vlm-7b on eight H100, over all"),
            *("trained", "over training all", _TRAINED, _backward, True),
        ),
        Chart(
            *("mechanism_recompute.png", "Llama 3 8B on eight H100", "by what is computed again"),
            *("training.recompute", "over none", _RECOMPUTED, _recompute, True),
        ),
        Chart(
            *("mechanism_precision.png", "Iterations under fp8 over bf16", "on 8, 64 and 128 H100"),
            *("model", "time over bf16", _MODELS, _precision, True),
        ),
        Chart(
            *("mechanism_intervals.png", "How sure a time is", "ends of the 90 % interval, from the prediction"),
            *("run", "of the time [%]", _SURE, _intervals, True),
        ),
        Chart(
            *("mechanism_step.png", "Llama 3 8B: from the pipeline's end to the iteration's", "tp 2, H100"),
            *("nodes of eight H100", "time [ms]", tuple(map(str, _NODES)), _step),
        ),
        Chart(
            *(
                "mechanism_contention.png",
                "Stages that last a little shorter or longer",
                "Llama 3 8B, tp 2, pp 4, median of 100 draws",
            ),
            *("training.jitter", "longer by [%]", tuple(map(str, _JITTER)), _jitter),
        ),
    )
}
