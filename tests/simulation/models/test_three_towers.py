"""Three towers that gather features: who is in the group, and what its members send."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import semu
from semu.errors import ConfigError
from semu.nn import Linear, ModalityModule, ModalityRole, Model, Module, Tensor
from semu.nn import functional as F
from semu.nn.layers.contrastive import ContrastiveLoss
from semu.parallel.towers import check_towers
from semu.simulation import prepare
from semu.workload import pair_batch
from semu_models.vision.clip import CLIP_B_32, TextTowerConfig, make_dual_encoder, text_tower

WIDTHS = {"vision": 768, "text": 512, "title": 384}


class ThreeLosses(Module):
    """Every two of three features against each other."""

    is_per_token = False

    def __init__(self) -> None:
        super().__init__()
        self.vision, self.text, self.title = (Linear(width, 512, bias=False) for width in WIDTHS.values())
        self.first, self.second, self.third = ContrastiveLoss(), ContrastiveLoss(), ContrastiveLoss()

    def forward(self, images: Tensor, texts: Tensor, titles: Tensor) -> Tensor:
        """Features of as many images, texts and titles -> scalar loss."""
        images, texts, titles = self.vision(images), self.text(texts), self.title(titles)
        losses = [self.first(images, texts), self.second(images, titles), self.third(texts, titles)]
        out: Tensor = F.add_losses(losses)
        return out


def three_towers() -> Model:
    """CLIP ViT-B/32 with a third tower, of titles, narrower than that of texts."""
    vision, text, _ = make_dual_encoder("clip", CLIP_B_32).modules
    body = text_tower(TextTowerConfig(layers=6, hidden=384, ffn=1536, heads=6))
    title = ModalityModule("title", ModalityRole.ENCODER, body, merging=text.merging)
    head = ModalityModule("head", ModalityRole.BACKBONE, ThreeLosses(), (), sources=tuple(WIDTHS))
    return Model("three-towers", [vision, text, title, head])


def job(dp: int, shares: dict[str, int], **sizes: Any) -> semu.TrainingJob:
    parallel = semu.Parallel(
        dp=dp, pp=sum(shares.values()), segments="apart", loss="towers", shares=shares, zero=1, **sizes
    )
    nodes = -(-parallel.num_gpus // 4)
    training = semu.Training(global_batch=24 * dp, micro_batch=3)
    cluster = semu.Cluster("h100", nodes, parallel.num_gpus // nodes)
    return semu.TrainingJob(three_towers(), cluster, parallel, training, pair_batch(patches_per_image=49))


@pytest.mark.parametrize(
    ("dp", "shares", "order"),
    [
        (1, {"vision": 1, "text": 1, "title": 2}, "tp-cp-dp-pp"),
        (1, {"vision": 1, "text": 1, "title": 6}, "tp-cp-pp-dp"),
        (2, {"vision": 4, "text": 1, "title": 1}, "tp-cp-pp-dp"),
        (2, {"vision": 1, "text": 1, "title": 2}, "tp-cp-dp-pp"),
    ],
)
def test_the_members_are_the_ranks_on_which_towers_end(dp: int, shares: dict[str, int], order: str) -> None:
    own = job(dp, shares, rank_order=order)
    found = prepare(own)
    ends, place = [], 0
    for count in shares.values():
        place += count
        ends.append(place - 1)
    assert [chunk.chunk.rank for chunk in found.layout.chunks if chunk.chunk.gang >= 0] == ends
    pp, per_node = own.parallel.pp, own.cluster.gpus_per_node

    def gpu(rank: int, replica: int) -> int:
        return replica * pp + rank if order.endswith("dp") else rank * dp + replica

    nodes = max(len({gpu(rank, replica) // per_node for rank in ends}) for replica in range(dp))
    head = found.layout.chunks[-1]
    library = found.layout.library
    gather = [library.operators[row] for row in head.forward.rows if library.operators[row].stream.name == "towers"]
    assert [operator.key for operator in gather] == [(3, nodes)]


def test_each_member_sends_two_thirds_of_all_features() -> None:
    """Of 3 features of every tower in bf16, a mean rank of the ring sends two thirds of each, rounded up."""
    found = prepare(job(1, {"vision": 1, "text": 1, "title": 2}))
    library = found.layout.library
    rows = [row for row in found.layout.chunks[-1].forward.rows if library.operators[row].stream.name == "towers"]
    (sent,) = {tuple(row) for row in found.evaluation.by_shape.columns.net_bytes[rows].tolist()}
    assert set(sent) == {sum(-(-3 * width * 2 * 2 // 3) for width in WIDTHS.values())}


def test_a_tower_that_reads_another_one_is_refused() -> None:
    """One of three is enough, and so is a head that reads two of them."""
    *towers, head = three_towers().modules
    parallel = semu.Parallel(pp=4, segments="apart", loss="towers")
    check_towers(Model("apart", [*towers, head]), parallel)
    for modules in (
        [*towers[:2], replace(towers[2], sources=("text",)), head],
        [*towers, replace(head, sources=("vision", "text"))],
    ):
        with pytest.raises(ConfigError, match="only towers side by side") as caught:
            check_towers(Model("joined", modules), parallel)
        assert caught.value.where == "parallel.loss"
