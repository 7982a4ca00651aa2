"""Masks and context ranks: how long counting and dealing take, how even the result is, what a masked simulation costs.

The batch is a million tokens of 190 packed documents over 64 ranks, drawn with a fixed seed; goals are those of the
issue. Even and bound: tiles of the busiest rank over the mean.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _rows import Row, print_rows
from _timing import fastest, fastest_cpu, run_process

import semu
from semu.masks import Balance, MaskKind, Seen, Spans, count, cut_tokens, deal_blocks, work_of_blocks
from semu.masks.balance import blocks_of
from semu.masks.tile_lists import reads_of_blocks
from semu.runfile import load_run
from semu.workload.masked import traffic_of

TOKENS, DOCUMENTS, RANKS = 1 << 20, 190, 64


def packed(tokens: int, documents: int, seed: int = 1) -> Spans:
    """A sequence of documents with log-normal lengths."""
    draw = np.random.default_rng(seed).lognormal(8.0, 1.2, documents)
    lengths = np.maximum(np.round(draw / draw.sum() * tokens).astype(np.int64), 1)
    lengths[np.argmax(lengths)] += tokens - lengths.sum()
    return Spans.of_runs([[run for n in lengths for run in (("document", 0, 0), ("text", -1, int(n)))]])


def counted_and_dealt(spans: Spans) -> np.ndarray:  # type: ignore[type-arg]
    """Ranks of all blocks, from the spans on."""
    work = work_of_blocks(Seen.of(MaskKind.DOCUMENT, spans), spans.starts, blocks_of(spans.starts, 128))
    return deal_blocks(Balance.LPT, work, RANKS)


def many_sequences(sequences: int) -> None:
    """So many sequences of some 4,096 tokens in one deal over the ranks, counted from their lengths on."""
    lengths = np.random.default_rng(0).integers(2048, 6144, sequences)
    spans = Spans.of_text(lengths)
    seen = Seen.of(MaskKind.CAUSAL, spans)
    cut = cut_tokens(Balance.LPT, spans, RANKS, 128, lambda bounds: work_of_blocks(seen, spans.starts, bounds))
    count(seen, spans.starts, cut, by_owner=False)


def one_by_one(microbatches: int) -> None:
    """So many microbatches of 4,096 tokens in 8 documents, each dealt and counted by itself over 8 ranks."""
    for seed in range(microbatches):
        spans = packed(4096, 8, seed)
        seen = Seen.of(MaskKind.DOCUMENT, spans)
        cut = cut_tokens(Balance.LPT, spans, 8, 128, partial(work_of_blocks, seen, spans.starts))
        count(seen, spans.starts, cut, by_owner=False)


def measure(quick: bool) -> Iterator[Row]:
    """All rows."""
    tokens, documents = (TOKENS // 16, DOCUMENTS // 8) if quick else (TOKENS, DOCUMENTS)
    spans = packed(tokens, documents)
    rng = np.random.default_rng(0)
    work = rng.integers(1, 400, 10_000)
    seconds = 0.5 if quick else 3.0
    found = fastest(
        {
            "count and deal": lambda: counted_and_dealt(spans),
            "deal 10,000 blocks": lambda: deal_blocks(Balance.LPT, work, RANKS),
        },
        seconds,
    )
    what = f"{tokens:,} tokens, {documents} documents, {RANKS} ranks"
    value = 1e3 * found["count and deal"]
    yield Row("spans counted and balanced", value, "ms", what, "<= 10", value <= 10)
    value = 1e3 * found["deal 10,000 blocks"]
    yield Row("10,000 blocks dealt", value, "ms", f"LPT over {RANKS} ranks", "<= 2", value <= 2)
    sequences = 256 if quick else 4096
    both = fastest({"batch": partial(many_sequences, sequences), "alone": partial(one_by_one, sequences)}, 0.0)
    value, of = both["batch"], f"{sequences:,} sequences of 4,096 tokens on average"
    yield Row("batch of sequences, one deal", value, "s", f"{of}, {RANKS} ranks, dealt and counted", "< 1", value < 1)
    yield Row("batch of sequences, a microbatch each", both["alone"], "s", f"{of}, 8 ranks, spans made too")
    yield from _evenness(spans, what)
    code = f"from benchmarks.context import *\nresult = len(counted_and_dealt(packed({tokens}, {documents})))"
    peak = run_process(code).peak_bytes / 1e6
    yield Row("peak memory of the process", peak, "MB", what, "< 200", peak < 200)
    yield from _simulations(seconds)


def _evenness(spans: Spans, what: str) -> Iterator[Row]:
    seen = Seen.of(MaskKind.DOCUMENT, spans)
    reads, work = partial(reads_of_blocks, seen, spans.starts), partial(work_of_blocks, seen, spans.starts)
    for policy in Balance:
        try:
            cut = cut_tokens(policy, spans, RANKS, 128, work, reads=reads, slack=0.1, is_apart=True)
        except semu.ConfigError:
            continue
        tiles = count(seen, spans.starts, cut, by_owner=True)
        loads = tiles.sums(tiles.tiles).sum(axis=1)
        value = float(loads.max() / loads.mean())
        is_goal = policy is Balance.LPT and spans.num_tokens == TOKENS
        yield Row(
            f"tiles max/mean, {policy.value}",
            value,
            "x",
            what,
            "<= 1.001" if is_goal else None,
            value <= 1.001 if is_goal else None,
        )
        sent = traffic_of(tiles, RANKS // 8)
        share = (sent["near_in"] + sent["far_in"]).sum() / ((RANKS - 1) * spans.num_tokens)
        yield Row(f"keys of other ranks that are needed, {policy.value}", 100 * float(share), "%", what, None, None)
    for policy, name in (
        (Balance.LOCAL, "deal near what blocks read"),
        (Balance.HYBRID, "deal documents to groups of ranks"),
    ):
        deal = partial(cut_tokens, policy, spans, RANKS, 128, work, reads=reads, slack=0.1, is_apart=True)
        found = fastest({policy.value: deal}, 0.0)
        yield Row(name, found[policy.value], "s", f"{what}, counted and listed too", None, None)


def _simulations(seconds: float) -> Iterator[Row]:
    plain, masked = (load_run("vlm-m", [f"training.attention_mask={mask}"]) for mask in ("causal", "multimodal"))
    found = fastest_cpu({name: partial(_anew, job) for name, job in (("plain", plain), ("masked", masked))}, seconds)
    ratio = found["masked"] / found["plain"]
    yield Row(
        "simulate vlm-m, masked over causal", ratio, "x", f"{found['plain']:.3f} s causal", "<= 1.3", ratio <= 1.3
    )


def _anew(job: semu.TrainingJob) -> object:
    """A simulation that remembers nothing."""
    semu.memo.clear()
    return semu.simulate(job)


if __name__ == "__main__":
    print_rows(__doc__, measure)
