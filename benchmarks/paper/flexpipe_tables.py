"""FlexPipe Tables 3 and 4: parameters of its GPT and CLIP models."""

from __future__ import annotations

from pathlib import Path

from benchmarks.paper._flexpipe import VOCABULARIES, gpt
from benchmarks.paper._results import PaperResult, PaperRow
from benchmarks.paper.choices import Choices

TOTALS = {"5B": (5.4, 5.7, 6.3, 7.7, 10.2), "16.1B": (18.2, 20.3, 24.3, 25.1, 25.9)}
"""Table 3 [10^9]."""
CLIP = {
    "4.7B audio": (240, 1024, 3.0),
    "4.7B text": (240, 768, 1.7),
    "8.2B video": (440, 1024, 5.5),
    "8.2B text": (216, 1024, 2.7),
    "9.7B image": (32, 4096, 6.5),
    "9.7B text": (40, 2560, 3.2),
}
"""Table 4: layers, width, parameters [10^9]."""
TEXT = """
Table 3 prints 2560 and 4096 as heads and 64 and 32 as widths: the two rows are swapped. With K = 1000, untied tables
and the swap, the formula 12 L h^2 + 2 V h gives all ten totals to the printed digit; semu's models have biases, norms
and a table of positions besides. Ours is what semu counts; Table 4's is 12 L h^2, to which patches, tables and heads
are not printed.
"""


def run(choices: Choices, *, quick: bool, out: Path) -> PaperResult:
    """See the module; ``Script.run``."""
    rows = [
        PaperRow(
            f"{size} with {vocab // 1000}K words",
            total,
            round(sum(parameter.numel for _, parameter in gpt(size, vocab).named_parameters()) / 1e9, 1),
            "10^9",
            margin=0.0,
            note=f"Without biases, norms and positions {_formula(size, vocab):.2f}.",
        )
        for size, totals in TOTALS.items()
        for vocab, total in zip(VOCABULARIES[size], totals, strict=True)
    ]
    rows += [
        PaperRow(f"CLIP {name}", total, round(12 * layers * width**2 / 1e9, 2), "10^9", margin=0.025)
        for name, (layers, width, total) in CLIP.items()
    ]
    return PaperResult("flexpipe_tables", "Model sizes", "FlexPipe Tables 3 and 4", tuple(rows), text=TEXT.strip())


def _formula(size: str, vocab: int) -> float:
    from benchmarks.paper._flexpipe import SIZES

    layers, width, *_ = SIZES[size]
    return (12 * layers * width**2 + 2 * vocab * width) / 1e9
