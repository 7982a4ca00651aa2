"""``flop_per_token``: model FLOP of a token in training, under four conventions, in closed form from the modules.

With T the length of a sequence, all parameters trained and forward, input gradient and weight gradient counted once:

    semu        6 x parameters that a token is multiplied with, and attention's q k^T and p v over the pairs that the
                mask leaves: causal attention counts T / 2 keys a query, a window those inside it. This is what
                ``Report.model_flop`` sums over the traced operators, divided by the tokens.
    megatron    Megatron-LM's ``num_floating_point_operations`` (megatron/training/training.py): the same products,
                without routers and without the gates of shared experts; latent attention adds one FLOP pair per
                element of its latents (for their norms), a layer that predicts a further token three per element of its
                width; causal attention counted half, windows not looked at.
    megatron_full   the formula of 2104.04473 §5.1 (and Megatron-LM's before it discounted the mask): as ``megatron``
                without the norms, attention in full.
    palm        6 N + 12 L H Q T (PaLM, 2204.02311 appendix B): N are all parameters (of a mixture of experts those
                that a token uses), attention in full.
    torchtitan  6 (N - N_embedding) + 12 L H Q T (torchtitan's ``get_nparams_and_flops``): as ``palm`` without the
                token table. A tied table is left out too, although its second use is a product.

Where the widths of keys and values differ, 2 Q stands for their sum. The differences between semu and the others are
thus: norms, biases and position tables (6 N counts them, nothing multiplies with them), the token table (a look-up),
routers and the mask.
"""

from __future__ import annotations

from collections.abc import Iterator

from semu.nn import (
    TEXT_IDS,
    Embedding,
    LatentAttention,
    LayerNorm,
    Linear,
    MixtureOfExperts,
    ModalityRole,
    Model,
    Module,
    RMSNorm,
    SelfAttention,
)
from semu.nn.layers.moe import Router, TokenGate
from semu.nn.layers.transformer import CrossAttention, TiedLinear
from semu.nn.window import Window
from semu.records import dataclass
from semu_models.text.mtp import PredictionHead, PredictionLayer

CONVENTIONS = ("semu", "megatron", "megatron_full", "palm", "torchtitan")
"""Names of the conventions, in the order in which they are printed."""


@dataclass(frozen=True)
class Scores:
    """One attention: heads x (width of keys + width of values), whether it is causal, window [tokens]."""

    width: int
    causal: bool
    window: Window | None = None

    def flop(self, length: int) -> float:
        """Forward FLOP a token: 2 pairs x width / length, halved where causal (semu's convention)."""
        pairs = length**2 if self.window is None else self.window.pairs(length)
        return 2 * self.width * pairs / length / (2 if self.causal else 1)

    def flop_in_full(self, length: int) -> int:
        """Forward FLOP a token with every query against every key."""
        return 2 * self.width * length


@dataclass(frozen=True)
class TokenWork:
    """What a token is multiplied with.

    Attributes:
        products: parameters of matrices that it meets, experts only as many as it uses.
        routing: of these the routers and gates. latents: elements of its latents, of all layers, and others that
            Megatron-LM counts a FLOP pair for.
        parameters: all that it uses (``active_parameters``). table: parameters of the token table.
        scores: every attention.
    """

    products: int
    routing: int
    latents: int
    parameters: int
    table: int
    scores: tuple[Scores, ...]

    def flop(self, length: int) -> dict[str, float]:
        """FLOP of training a token in a sequence of ``length`` tokens, by convention."""
        full = 3 * sum(item.flop_in_full(length) for item in self.scores)
        return {
            "semu": 6 * self.products + 3 * sum(item.flop(length) for item in self.scores),
            "megatron": 6 * (self.products - self.routing + self.latents) + full / 2,
            "megatron_full": float(6 * (self.products - self.routing) + full),
            "palm": float(6 * self.parameters + full),
            "torchtitan": float(6 * (self.parameters - self.table) + full),
        }


def token_work(*bodies: Module) -> TokenWork | None:
    """The work of a token that runs through all of some modules once.

    Returns:
        None where the closed form does not cover a part (cross-attention, learned position grids, user-defined
        layers): trace the module, or simulate the job and divide ``model_flop`` by the tokens.
    """
    counter = _Counter()
    if not all(counter.visit(body) for body in bodies):
        return None
    parameters = {id(parameter): parameter.numel for body in bodies for _, parameter in body.named_parameters()}
    return TokenWork(
        counter.products,
        counter.routing,
        counter.latents,
        sum(parameters.values()) - counter.idle,
        sum(counter.tables.values()),
        tuple(counter.scores),
    )


def flop_per_token(model: Model, length: int) -> dict[str, float] | None:
    """FLOP of training one token of the backbone, by convention.

    Args:
        model: of several modality modules the backbone counts, whose tokens are the text's, and what predicts further
            tokens behind it.
        length: of a sequence [tokens].
    Returns:
        None where there is no closed form.
    """
    main = next((item for item in model.modules if item.role is ModalityRole.BACKBONE), model.modules[-1])
    further = [item for item in model.modules if item.sources == (main.name,) and set(item.inputs) == {TEXT_IDS}]
    work = token_work(main.body, *(item.body for item in further))
    return None if work is None else work.flop(length)


class _Counter:
    """Sums over a tree of modules."""

    def __init__(self) -> None:
        self.products = self.routing = self.latents = self.idle = 0
        self.tables: dict[int, int] = {}
        self.scores: list[Scores] = []

    def visit(self, module: Module) -> bool:
        """Add a module and all modules below; false where the closed form does not cover one."""
        if not module.is_per_token:
            return False
        if isinstance(module, MixtureOfExperts):
            self._mixture(module)
            return all(self.visit(child) for child in _but(module, ("router", "experts", "shared_gate")))
        if isinstance(module, Linear | TiedLinear):
            self.products += module.weight.numel
            return True
        if isinstance(module, Embedding):
            self.tables[id(module.weight)] = module.weight.numel
            return True
        if isinstance(module, PredictionHead):
            self.products += module.main.projection.weight.numel * len(module.norms)
        if isinstance(module, PredictionLayer):
            self.latents += 3 * module.projection.weight.shape[0]
        if isinstance(module, LayerNorm | RMSNorm):
            return True
        if isinstance(module, SelfAttention):
            self.scores.append(Scores(module.heads * 2 * module.head_dim, module.causal, module.window))
        elif isinstance(module, LatentAttention):
            sizes = module.sizes
            width = sizes.qk_head_dim + sizes.qk_pos_emb_head_dim + sizes.v_head_dim
            self.scores.append(Scores(module.heads * width, module.causal))
            self.latents += sizes.kv_lora_rank + (sizes.q_lora_rank or 0)
        elif isinstance(module, CrossAttention) or any(len(p.shape) > 1 for _, p in module.own_parameters()):
            return False
        return all(self.visit(child) for _, child in module.named_children())

    def _mixture(self, module: MixtureOfExperts) -> None:
        matrices = sum(p.numel for _, p in module.experts.own_parameters() if len(p.shape) == 3)
        self.products += matrices // module.num_experts * module.top_k
        self.idle += module.idle_parameters
        gates = [item for item in (module.router, module.shared_gate) if isinstance(item, Router | TokenGate)]
        for gate in gates:
            size = sum(p.numel for _, p in gate.named_parameters() if len(p.shape) == 2)
            self.products += size
            self.routing += size


def _but(module: Module, names: tuple[str, ...]) -> Iterator[Module]:
    """Submodules but those of some names."""
    for name, child in module.named_children():
        if name not in names:
            yield child
