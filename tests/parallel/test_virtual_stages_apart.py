"""Virtual stages of modules that have pipeline ranks of their own: where every chunk lies."""

from __future__ import annotations

import pytest

import semu
from semu.errors import ConfigError
from semu.parallel.segments import place_modules


@pytest.mark.parametrize(
    ("placement", "image", "text"),
    [("circular", [0, 1, 0, 1, 0, 1], [2, 2, 2]), ("v-shape", [0, 1, 1, 0, 0, 1], [2, 2, 2])],
)
def test_chunks_go_round_the_ranks_of_their_module(placement: str, image: list[int], text: list[int]) -> None:
    """Twelve equal blocks of images on ranks 0 and 1, three of text and one of the head on ranks of their own."""
    chunks = place_modules("apart", ["image", "text", "head"], [12, 3, 1], [1.0] * 16, 4, 3, placement)
    assert [chunk.rank for chunk in chunks] == [*image, *text, 3]
    assert [(chunk.first, chunk.last) for chunk in chunks[:6]] == [(2 * n, 2 * n + 2) for n in range(6)]
    assert [chunk.slot for chunk in chunks] == [0, 0, 1, 1, 2, 2, 0, 1, 2, 0]
    assert [chunk.index for chunk in chunks] == list(range(10))


def test_modules_on_gpus_of_their_own_have_one_chunk_a_rank() -> None:
    with pytest.raises(ConfigError, match="do not go with vpp = 2"):
        semu.Parallel(pp=2, vpp=2, segments="apart", modules={"vision": semu.ModuleParallel(gpus=1, pp=1)})


@pytest.mark.parametrize("segments", ["colocated", "replicated"])
def test_encoders_that_share_ranks_have_one_chunk_a_rank(segments: str) -> None:
    with pytest.raises(ConfigError, match="virtual stages"):
        semu.Parallel(pp=2, vpp=2, segments=segments)
