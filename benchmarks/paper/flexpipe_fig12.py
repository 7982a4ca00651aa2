"""FlexPipe Fig. 12, 13 and 15: GPT models with growing vocabularies under four systems."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.paper._flexpipe import SYSTEMS, VOCABULARIES, Best, best
from benchmarks.paper._pictures import new_figure, save
from benchmarks.paper._results import PaperResult, PaperRow
from benchmarks.paper.choices import Choices

GAINS = {
    "5B": {"megatron": (1.14, 1.91), "t-1f1b": (1.20, 1.28), "tessel": (1.13, 1.30)},
    "16.1B": {"megatron": (1.31, 2.28), "t-1f1b": (1.27, 1.31), "tessel": (1.24, 1.49)},
}
"""FlexPipe's gain over a system, least and most of the vocabularies (§7.1)."""
WORDS = {"megatron": "Megatron-LM 1F1B", "t-1f1b": "T-1F1B", "tessel": "Tessel", "flexpipe": "FlexPipe"}
TEXT = """
Every system has its fastest (pp, dp, micro batch) of powers of two on 32 A800 that fits, without recomputation where
that fits; FlexPipe's schedules are those that semu has for its placements, with embedding and head over the pipeline
ranks (zero bubble where its separation has gradients apart). Tessel is tried up to 8 ranks, as in the paper, its fast
variant, for time. The profile of the A800 is transferred from the A100's; nothing here was measured on one. Where
Megatron-LM has small pp its ends weigh less: so its fastest pp decides the gain at small vocabularies. Gains over
Megatron-LM and T-1F1B come out 10 to 17 % larger than printed: zero bubble in a V is a stronger schedule than the
rules with separation that the paper draws (Fig. 11), and none of these choices is tuned.
"""


def run(choices: Choices, *, quick: bool, out: Path) -> PaperResult:
    """See the module; ``Script.run``."""
    rows: list[PaperRow] = []
    found: dict[tuple[str, int], dict[str, Best | None]] = {}
    notes = []
    for size, gains in GAINS.items():
        vocabularies = VOCABULARIES[size][-1:] if quick else VOCABULARIES[size]
        for vocab in vocabularies:
            own = {name: best(name, size, vocab, 32, choices, quick=quick) for name in SYSTEMS}
            found[size, vocab] = own
            said = "; ".join(
                f"{WORDS[name]} {one.time_s:.3f} s ({one})" if one else f"{WORDS[name]}: nothing fits"
                for name, one in own.items()
            )
            notes.append(f"- {size}, {vocab // 1000}K: {said}")
        for name, (least, most) in gains.items():
            ours = [_gain(found[size, vocab], name) for vocab in vocabularies]
            known = [gain for gain in ours if gain is not None]
            for word, theirs, pick in (("least", least, min), ("most", most, max)):
                value = pick(known) if known else None
                rows.append(PaperRow(f"{size}: {word} gain over {WORDS[name]}", theirs, value, "x", margin=0.1))
    for name, vocab in (("megatron", 1000_000), ("tessel", 1200_000)):
        own_of = found.get(("16.1B", vocab))
        if own_of is not None:
            is_out = float(own_of[name] is None)
            rows.append(PaperRow(f"16.1B, {vocab // 1000}K: {WORDS[name]} out of memory (1: yes)", 1.0, is_out, ""))
    rows += [] if quick else _weak_scaling(choices)
    text = f"{TEXT.strip()}\n\n" + "\n".join(notes)
    picture = draw(out / "flexpipe_fig12.png", found)
    return PaperResult(
        "flexpipe_fig12", "Large vocabularies", "FlexPipe Fig. 12, 13, 15", tuple(rows), (picture,), text
    )


def _gain(own: dict[str, Best | None], name: str) -> float | None:
    ours, theirs = own["flexpipe"], own[name]
    return None if ours is None or theirs is None else theirs.time_s / ours.time_s


def _weak_scaling(choices: Choices) -> list[PaperRow]:
    """Fig. 15 prints no numbers; its claim is that FlexPipe is the fastest from 16 to 64 GPUs."""
    rows = []
    for gpus in (16, 64):
        own = {name: best(name, "5B", 1000_000, gpus, choices) for name in ("megatron", "t-1f1b", "flexpipe")}
        for name in ("megatron", "t-1f1b"):
            rows.append(PaperRow(f"Fig. 15: gain over {WORDS[name]} on {gpus} GPUs", None, _gain(own, name), "x"))
    return rows


def draw(path: Path, found: dict[tuple[str, int], dict[str, Best | None]]) -> Path:
    """Iteration times of all systems over the vocabulary."""
    figure, axes = new_figure(9, 3.2, 2)
    for place, size in zip(axes, GAINS, strict=True):
        keys = [key for key in found if key[0] == size]
        for shift, name in enumerate(SYSTEMS):
            seconds = [own.time_s if (own := found[key][name]) is not None else 0.0 for key in keys]
            place.bar(np.arange(len(keys)) + 0.2 * shift, seconds, 0.18, label=WORDS[name])
        place.set_xticks(np.arange(len(keys)) + 0.3, [f"{vocab // 1000}K" for _, vocab in keys])
        place.set_title(f"{size}, 32 A800", fontsize=9)
        place.set_ylabel("iteration [s]")
    axes[0].legend(frameon=False, fontsize=8)
    return save(figure, path)
