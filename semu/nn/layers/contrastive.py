"""``ContrastiveLoss``: two towers' features against each other, over the batches of all replicas."""

from __future__ import annotations

from enum import Enum

from semu.nn import functional as F
from semu.nn.module import Module, Parameter
from semu.nn.rules.contrastive import gather_rows, normalise_rows, pairwise_sigmoid, scale_rows, similarities
from semu.nn.trace.tensor import Tensor


class ContrastiveKind(Enum):
    """SOFTMAX: cross entropy over the rows and over the columns (CLIP, 2103.00020 Fig. 3); SIGMOID: every pair by
    itself (SigLIP, 2303.15343), with the texts gathered instead of passed around."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"


class ContrastiveLoss(Module):
    """Features of as many images as texts -> scalar loss; a learned scale, and for the sigmoid a learned bias.

    A step compares the samples of one microbatch of all replicas: micro_batch x dp of them. Larger batches by caching
    features over several microbatches are not modelled.
    """

    reads_replicas = True

    def __init__(self, kind: ContrastiveKind = ContrastiveKind.SOFTMAX) -> None:
        super().__init__()
        self.kind = kind
        self.scale = Parameter()
        self.bias = Parameter(1) if kind is ContrastiveKind.SIGMOID else None

    def forward(self, images: Tensor, texts: Tensor) -> Tensor:
        """[n, features] twice -> scalar loss."""
        images, texts = normalise_rows(images), normalise_rows(texts)
        everything = gather_rows(texts)
        scaled = scale_rows(images, self.scale)
        if self.bias is not None:
            return pairwise_sigmoid(similarities(scaled, everything), self.bias)
        by_image = F.cross_entropy(similarities(scaled, everything))
        by_text = F.cross_entropy(similarities(scale_rows(texts, self.scale), gather_rows(images)))
        return F.add_losses([by_image, by_text])
