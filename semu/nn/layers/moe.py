"""Mixture of experts: router, experts in one grouped product, shared experts beside them."""

from __future__ import annotations

from semu.errors import ConfigError
from semu.graph.dim import Dim
from semu.hardware.network import CommGroup
from semu.nn import functional as F
from semu.nn.layers.activation import Activation
from semu.nn.layers.elementary import Linear
from semu.nn.layers.transformer import MLP
from semu.nn.module import Module, Parameter
from semu.nn.rules.experts.grouped import grouped_linear, weighted_activation
from semu.nn.rules.experts.routing import permute, scale_tokens, top_k, unpermute
from semu.nn.rules.experts.token_dispatch import collect, dispatch, way
from semu.nn.rules.experts.token_gather import columns_of_rank, gather_tokens, scatter_sums
from semu.nn.trace.tensor import Tensor


class Router(Module):
    """Scores of the experts for every token; replicated, never in fp8, probabilities in fp32.

    Args:
        hidden: width of a token. experts: how many. bias: of the scores.
    """

    fp8_region = False

    def __init__(self, hidden: int, experts: int, *, bias: bool = False) -> None:
        super().__init__()
        self.gate = Linear(hidden, experts, bias=bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[tokens, hidden] -> probabilities and mask, [tokens, experts]."""
        return top_k(self.gate(x))


class Experts(Module):
    """Feed-forward networks, one per expert, computed as grouped products.

    Args:
        experts: how many. hidden: width. ffn: inner width of an expert. gated: a gated network.
        bias: of both projections. activation: as in ``MLP``.
    """

    def __init__(
        self,
        experts: int,
        hidden: int,
        ffn: int,
        *,
        gated: bool,
        bias: bool = False,
        activation: Activation | None = None,
    ) -> None:
        super().__init__()
        self.gated = gated
        self.activation = activation if activation is not None else Activation.default(gated=gated)
        inner = 2 * ffn if gated else ffn
        self.up = Parameter(experts, inner, hidden)
        self.down = Parameter(experts, hidden, ffn)
        self.up_bias = Parameter(experts, inner) if bias else None
        self.down_bias = Parameter(experts, hidden) if bias else None

    def forward(self, rows: Tensor, probabilities: Tensor) -> Tensor:
        """Sorted rows [rows, hidden] with probabilities [rows] -> [rows, hidden], weighted."""
        inner = grouped_linear(rows, self.up, self.up_bias, split_out=True)
        active = weighted_activation(inner, probabilities, gated=self.gated, activation=self.activation)
        return grouped_linear(active, self.down, self.down_bias, split_out=False)


class SharedExperts(MLP):
    """The feed-forward network that every token runs through."""

    recompute_kind = "shared_experts"


class TokenGate(Module):
    """One learned weight per token: ``sigmoid(x w) * y``."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = Parameter(1, hidden)

    fp8_region = False

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """[tokens, hidden] twice -> [tokens, hidden]."""
        return scale_tokens(y, F.linear(x, self.weight))


class MixtureOfExperts(Module):
    """A feed-forward network of which every token uses ``top_k`` experts (1701.06538), and the shared ones.

    Args:
        hidden: width. ffn: inner width of an expert. experts, top_k: how many there are, how many a token uses.
        gated: gated networks (SwiGLU). bias: of experts. router_bias: of the router; None: as ``bias``.
        activation: of the networks, as in ``MLP``.
        shared_ffn: inner width of all shared experts together; None: there are none.
        shared_gate: the shared experts' output is weighted by a learned gate (Qwen2-MoE, 2407.10671 §2.2.1).
    Raises:
        ConfigError: more experts per token than experts.
    """

    recompute_kind = "moe"

    def __init__(
        self,
        hidden: int,
        ffn: int,
        experts: int,
        top_k: int,
        *,
        gated: bool = True,
        shared_ffn: int | None = None,
        shared_gate: bool = False,
        bias: bool = False,
        router_bias: bool | None = None,
        activation: Activation | None = None,
    ) -> None:
        super().__init__()
        if not 1 <= top_k <= experts:
            raise ConfigError(
                f"{top_k} of {experts} experts",
                where="model.transformer.top_k",
                expected=f"1 <= top_k <= experts = {experts}",
                got=top_k,
                nearest=min(max(top_k, 1), experts),
            )
        if shared_gate and shared_ffn is None:
            raise ConfigError(
                "a gate for shared experts, and there are none",
                where="model.transformer.shared_gate",
                expected="shared_ffn, or no gate",
                got="true",
                nearest="false",
            )
        self.num_experts, self.top_k, self.ffn = experts, top_k, ffn
        self.router = Router(hidden, experts, bias=bias if router_bias is None else router_bias)
        self.experts = Experts(experts, hidden, ffn, gated=gated, bias=bias, activation=activation)
        self.shared = (
            SharedExperts(hidden, shared_ffn, gated=gated, bias=bias, activation=activation)
            if shared_ffn is not None
            else None
        )
        self.shared_gate = TokenGate(hidden) if shared_gate else None

    @property
    def idle_parameters(self) -> int:
        """Parameters that a token does not use: experts - top_k experts."""
        return self.experts.num_parameters() // self.num_experts * (self.num_experts - self.top_k)

    def forward(self, x: Tensor) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden]."""
        trace = x.trace
        probabilities, mask = self.router(x)
        plan = trace.options.experts
        sent, received = plan.rows(x.local_shape[0], self.num_experts, self.top_k, trace.where)
        if plan.token_group is not None:
            out = self._over_gathered(x, probabilities, mask, received * plan.etp, plan.token_group)
        else:
            rows, p, order = permute(x, probabilities, mask, sent)
            steps = way(trace, sent, received, self.num_experts)
            rows, p = dispatch(rows, p, steps)
            out = unpermute(collect(self.experts(rows, p), steps), order, x)
        if self.shared is not None:
            beside = self.shared(x)
            out = out + (self.shared_gate(x, beside) if self.shared_gate is not None else beside)
        return out

    def _over_gathered(self, x: Tensor, probabilities: Tensor, mask: Tensor, rows: Dim, group: CommGroup) -> Tensor:
        """Of all tokens of the group the rows of this rank's experts; ``rows``: of the worst rank."""
        ep = x.trace.options.experts.ep
        mask = columns_of_rank(gather_tokens(mask, group, "mask"), ep)
        probabilities = columns_of_rank(gather_tokens(probabilities, group, "probabilities"), ep)
        everything = gather_tokens(x, group, "tokens")
        chosen, p, order = permute(everything, probabilities, mask, rows)
        return scatter_sums(unpermute(self.experts(chosen, p), order, everything), x, group)


def active_parameters(module: Module) -> int:
    """Parameters that a token uses: all but those of experts that it is not routed to."""
    idle = sum(item.idle_parameters for item in module.modules() if isinstance(item, MixtureOfExperts))
    return module.num_parameters() - idle
