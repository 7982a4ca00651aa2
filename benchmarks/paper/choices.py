"""Every input that the papers leave open, each one decided once, for all scripts.

A script takes ``Choices`` and changes nothing in them but, for its sensitivity column, one value at a time to one of
the alternatives named here. Values that a paper does print (model shapes, parallel sizes, clusters) are no choices;
they stand in semu's setups and models.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Choice(Generic[T]):
    """One open input.

    Attributes:
        value: what all scripts use. reason: why, in a sentence. alternatives: what else it could have been.
    """

    value: T
    reason: str
    alternatives: tuple[T, ...] = ()


@dataclass(frozen=True)
class Choices:
    """All of them; ``choices.vpp.value`` reads one, ``choices.changed(vpp=4)`` changes it."""

    # -- data ----------------------------------------------------------------------------------------------------------
    microbatches: Choice[int] = Choice(
        64,
        "of one item each, of every data-parallel replica: DIP §2.2 and §2.3 speak of 64, no table or figure prints "
        "any (Table 1's jobs take the number that comes nearest to its 12.8 PFLOP). semu's setups have 16, or four per "
        "rank. Chosen with results of both in view",
        (16, 32),
    )
    grid_batch: Choice[int] = Choice(
        512,
        "packed sequences of an iteration of Fig. 13's grid, the same for every configuration: 64 microbatches at its "
        "optimum, DP 8",
        (128,),
    )
    text_per_image: Choice[str] = Choice(
        "mixed",
        "DIP §7.1 combines data sets and prints no shares: each sample from LAION-2B or OBELICS with equal chance",
        ("laion", "obelics"),
    )
    images_mean: Choice[float | None] = Choice(
        8.0,
        "per packed sequence: the worked example's batch has 8 (DIP §2.2), the only count printed for an ordinary one; "
        "documents without images are mixed in to meet it. None: as the samples have it (18). Chosen with results of "
        "both in view",
        (None, 2.0, 16.0),
    )
    images_max: Choice[int | None] = Choice(None, "what the context holds: 48 (DIP §7.1)", (32,))
    attend_across_samples: Choice[bool] = Choice(
        False, "packed samples do not see one another (block-diagonal attention), as is usual", (True,)
    )
    merge: Choice[int] = Choice(
        4,
        "patches on a side that become one of an image's 169 tokens: 4 is DIP's (§7.1: 728 px, patches of 14 px), so "
        "2704 patches enter the encoder. 2: 676 of 28 px; 1: 169, if DIP's tokens are what its encoder computes on",
        (2, 1),
    )
    resolution: Choice[tuple[int, int]] = Choice(
        (256, 256), "MovieGen's first and longest stage; DIP names no resolution", ((512, 512),)
    )
    first_seed: Choice[int] = Choice(0, "batches have seeds from here on, the same for all systems", (1000,))
    batches: Choice[int] = Choice(
        100, "DIP averages over 100 iterations (Fig. 8a) and shows 100 batches (Fig. 4)", (10,)
    )
    searched_batches: Choice[int] = Choice(
        5, "searched one by one, of the same batches the first ones: 100 searches a setup do not fit into the time"
    )

    # -- Cornstarch ----------------------------------------------------------------------------------------------------
    cornstarch_ranks: Choice[int] = Choice(
        4,
        "context ranks of Table 3.3, which names none: with four, printed attention and printed models fit together, "
        "see cornstarch_balance",
        (8,),
    )
    cornstarch_share: Choice[float] = Choice(
        0.5, "of the tokens that are images and sounds; Fig. 3.5 draws masks without numbers", (0.25, 0.75)
    )
    cornstarch_item: Choice[int] = Choice(
        2048, "tokens of an image or a sound, at most a quarter of a document; not printed", (512, 8192)
    )
    cornstarch_packed: Choice[int] = Choice(8, "documents of the packed mask of Fig. 3.5c; not printed", (4, 32))
    dcp_window: Choice[tuple[int, int]] = Choice(
        (64, 4096),
        "sinks and window of the lambda mask [tokens]; neither Cornstarch nor its Table 3.4 says",
        ((4, 1024),),
    )
    dcp_blocks: Choice[tuple[int, int]] = Choice(
        (16, 2),
        "blocks of the causal blockwise mask, and how many of them, its own included, a block sees beside the first; "
        "the last sees all; not printed",
        ((32, 2),),
    )
    dcp_answers: Choice[tuple[int, float]] = Choice(
        (4, 0.2), "answers that share a question, and the question's share of the tokens; not printed", ((8, 0.1),)
    )
    cornstarch_split: Choice[int] = Choice(16, "subblocks of a block: 16 to 32 perform well (3.3.2.2)", (32,))
    cornstarch_stage: Choice[tuple[int, int]] = Choice(
        (1, 4),
        "tensor and context ranks of a pipeline stage of Table 3.2, which prints none: a node of four GPUs, so that 24 "
        "GPUs are six stages, with which 1F1B of the printed stage times comes nearest to the printed iterations. "
        "Chosen with results in view: forwards of whole modules, as printed stages add up to them, are 0.7 to 1.1 of "
        "the printed ones with four context ranks, 1.4 to 2.9 with four tensor ranks over PCIe, 0.4 to 0.9 with two "
        "of each",
        ((4, 1), (2, 2)),
    )
    cornstarch_audio: Choice[str] = Choice(
        "printed",
        "width of the audio encoder's feed-forward networks: such that Table 3.1's parameters come out with its layers "
        "and widths. 4 h: 0.30, 3.6 and 15.1 where 0.5, 3.4 and 12.4 are printed",
        ("4 h",),
    )
    cornstarch_recompute: Choice[str] = Choice(
        "full",
        "Fig. 3.1b enables activation checkpointing; Table 3.2 does not say, and its memory needs it",
        ("none",),
    )

    # -- baselines -----------------------------------------------------------------------------------------------------
    vpp: Choice[int] = Choice(
        4,
        "virtual stages of Megatron-LM; DIP prints no number. Of 2, 3 and 4 the fastest on four of the five setups of "
        "Table 3 (on VLM-S 3 is)",
        (2, 3),
    )
    recompute: Choice[str] = Choice(
        "fewest",
        "of all but nnScaler* and DIP's last step, which choose by themselves: of every chunk as few layers as fit on "
        "batches like those of the run. The MFU of Table 1 (0.351 with images) leaves no room for full recomputation, "
        "though DIP also says that baselines do not fill the memory (§7.3). Chosen with results of both in view",
        ("full", "none"),
    )

    # -- DIP -----------------------------------------------------------------------------------------------------------
    rollouts: Choice[int] = Choice(
        300, "of a search; a number of rollouts gives the same bytes again, DIP's 10 s on 64 cores do not", (0, 2000)
    )
    search_seed: Choice[int] = Choice(0, "of the search's random numbers", (1,))
    workers: Choice[int] = Choice(1, "threads of a search, so that two cores and more give the same", (2,))
    sub_batch: Choice[int | None] = Choice(
        None,
        "images of a sub-microbatch: by DIP's rule (§4, 95 % of the best rate); DIP's own result is 12",
        (12,),
    )
    segments: Choice[int | None] = Choice(None, "pipeline segments of a module: by DIP's own rule (§4)", (1,))

    gap_memory: Choice[str] = Choice(
        "leanest",
        "DIP does not say whether the best and worst schedules of Fig. 9 choose memory strategies per layer; under one "
        "for all nothing but the order differs. Chosen with both in view",
        ("per layer",),
    )

    large_replicas: Choice[int] = Choice(
        16,
        "data-parallel replicas simulated of Fig. 14's 96 or 128, for time: they differ only in their data, and the "
        "slowest ends the iteration",
        (4, 48),
    )

    # -- FlexPipe ------------------------------------------------------------------------------------------------------
    flexpipe_most_ranks: Choice[int] = Choice(
        16, "pipeline ranks that are tried; FlexPipe §7.1 says powers of two, and no largest one", (8,)
    )
    flexpipe_micro_batches: Choice[tuple[int, ...]] = Choice(
        (1, 2, 4),
        "micro batches that are tried; FlexPipe §7.1 says powers of two, and no largest one",
        ((1,), (1, 2, 4, 8)),
    )
    flexpipe_micro_batch: Choice[int] = Choice(
        1, "micro batch of Fig. 2, which prints none; with 4 data-parallel replicas of 8 pipeline ranks", (2, 4)
    )
    flexpipe_zero: Choice[int] = Choice(
        0,
        "FlexPipe names no sharded optimizer; Megatron-LM's default is none. Chosen after a partial run under 1, with "
        "its results in view: gains over Megatron-LM of 1.13 to 1.45 on 5B (1.14 to 1.91 are printed), and Megatron-LM "
        "fitted with 1M words, where FlexPipe reports that it is out of memory",
        (1,),
    )
    flexpipe_rank_order: Choice[str] = Choice(
        "tp-cp-dp-pp", "Megatron-LM's: data ranks are neighbours, pipeline ranks apart", ("tp-cp-pp-dp",)
    )
    flexpipe_every: Choice[int] = Choice(
        4, "microbatches of a synchronisation of DistMM-Pipe; FlexPipe §2.2 says every few", (2, 8)
    )
    tessel_most_ranks: Choice[int] = Choice(8, "FlexPipe §7.1: Tessel is searched below 16 ranks", (4,))
    tessel_seconds: Choice[float] = Choice(
        60.0,
        "of a search for a repetend, and half as long for each of warm-up and cool-down; FlexPipe prints 730 s on 8 "
        "GPUs for Tessel-fast, by Z3",
        (10.0,),
    )

    # -- Entrain -------------------------------------------------------------------------------------------------------
    entrain_samples: Choice[str] = Choice(
        "remembered",
        "sizes of the four FineVision subsets, which are not published as metadata: drawn from log-normal sides and "
        "texts with means as remembered of the data sets' cards (`_entrain.DATA`); every number made of them is of "
        "surrogates. wide: both spreads half again as large; long: twice the text",
        ("wide", "long"),
    )
    entrain_vision: Choice[str] = Choice(
        "qwen2.5", "tables say Qwen2Vision, text and figures Qwen2.5Vision, whose windows cost less", ("qwen2",)
    )
    entrain_recompute: Choice[str] = Choice("none", "nothing is said, and 48 GB hold it", ("full",))

    # -- Oobleck -------------------------------------------------------------------------------------------------------
    oobleck_storage: Choice[float] = Choice(
        0.3,
        "Varuna's way to the storage [GB/s], which the text calls serialized: Table 2.4 with and without saves at 6 h, "
        "12 bytes a parameter every ten iterations, gives 0.22 (BERT-Large) and 0.32 (6.7b). Chosen with that in view",
        (1.0, 0.1),
    )
    oobleck_restart: Choice[float] = Choice(
        60.0, "a restart of Varuna's processes on up to 30 GPUs beside loading [s]; not printed", (20.0, 300.0)
    )
    oobleck_reconfigure: Choice[float] = Choice(
        10.0, "new pipelines and communicators of Oobleck and Bamboo beside copies [s]; not printed", (0.0, 30.0)
    )

    oobleck_back: Choice[float] = Choice(
        1800.0,
        "until a preempted node is back [s]; the traces of §2.7.3 have gaps of minutes to hours",
        (600.0, 7200.0),
    )

    # -- hardware ------------------------------------------------------------------------------------------------------
    coefficients: Choice[str] = Choice(
        "calibrated", "the shipped profile, fitted on public microbenchmarks; spec: DIP's alpha = 1", ("spec",)
    )

    def changed(self, **values: Any) -> Choices:
        """The same with other values; their reasons say that they were changed.

        Raises:
            KeyError: no such choice.
        """
        known = {item.name: getattr(self, item.name) for item in fields(self)}
        return replace(
            self,
            **{k: replace(known[k], value=v, reason=f"changed from {known[k].value!r}") for k, v in values.items()},
        )

    def __iter__(self) -> Iterator[tuple[str, Choice[Any]]]:
        """(name, choice) of all."""
        return ((item.name, getattr(self, item.name)) for item in fields(self))

    def read_by(self, script: str) -> dict[str, Any]:
        """``values`` that a script may read."""
        return {name: value for name, value in self.values().items() if may_read(script, name)}

    def values(self) -> dict[str, Any]:
        """Name -> value, as JSON has it."""
        return {name: list(c.value) if isinstance(c.value, tuple) else c.value for name, c in self}


PAPERS = {
    "cornstarch": "cornstarch",
    "entrain": "entrain",
    "flexpipe": "flexpipe",
    "oobleck": "oobleck",
    "tessel": "flexpipe",
}
"""First word of a choice's name -> that of the scripts which read it; all others are open to every script."""


def may_read(script: str, choice: str) -> bool:
    """Whether a script may read a choice: not one of another paper."""
    return script.startswith(PAPERS.get(choice.split("_")[0], ""))


CHOICES = Choices()
"""The ones that all results are made with."""
