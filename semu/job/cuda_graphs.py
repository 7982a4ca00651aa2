"""``training.cuda_graphs``: which parts of an iteration CUDA graphs launch at once."""

from __future__ import annotations

from semu.checks import check_word
from semu.errors import ConfigError

GRAPHS = ("attn", "mlp", "moe_router", "moe_preprocess", "moe", "layer", "iteration")
"""What graphs can hold, by Megatron-LM's words (``--cuda-graph-scope``; ``layer`` is its ``full``, ``iteration`` its
``full_iteration``): of a layer its attention, its dense feed-forward network, of its experts what comes before tokens
are permuted, that and the permutation, or all of them; whole layers; all forwards and backwards."""
DROPLESS = ("moe", "layer", "iteration")
"""Parts whose shapes change from step to step where experts take any number of tokens."""


def read_cuda_graphs(value: object) -> tuple[str, ...] | None:
    """Words of ``GRAPHS``, each once; None: there are no graphs.

    Raises:
        ConfigError: something else, or whole layers beside parts of them.
    """
    where = "training.cuda_graphs"
    if value is None:
        return None
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not words:
        raise ConfigError("not parts of an iteration", where=where, expected=", ".join(GRAPHS), got=repr(value)[:60])
    found = tuple(dict.fromkeys(check_word(word, GRAPHS, "part that a CUDA graph holds", where) for word in words))
    whole = [word for word in ("iteration", "layer") if word in found]
    if whole and len(found) > 1:
        raise ConfigError(
            f"a graph of {whole[0]} holds all others",
            where=where,
            expected=whole[0],
            got=", ".join(found),
            nearest=whole[0],
        )
    if "moe_preprocess" in found and not {"moe_router", "moe"} & {*found}:
        raise ConfigError(  # as Megatron-LM (transformer_config)
            "a graph of the permutation without the router before it",
            where=where,
            expected="moe_router beside moe_preprocess",
            got=", ".join(found),
            nearest="moe_router",
        )
    return found


def check_cuda_graphs(graphs: tuple[str, ...] | None, *, has_experts: bool, is_padded: bool, where: str) -> None:
    """Graphs need shapes that stay.

    Args:
        graphs: as ``read_cuda_graphs``. has_experts: of the model. is_padded: experts compute their whole capacity.
    Raises:
        ConfigError: experts whose tokens vary inside a graph, or graphs of experts that are not there.
    """
    for word in graphs or ():
        if has_experts and not is_padded and word in DROPLESS:
            raise ConfigError(
                "a CUDA graph of experts that take any number of tokens",
                where=where,
                expected="attn, moe_router and moe_preprocess, or training.moe_pad_to_capacity = true",
                got=word,
                nearest="attn",
            )
        if not has_experts and word.startswith("moe"):
            raise ConfigError("the model has no experts", where=where, expected="attn, mlp, layer", got=word)
