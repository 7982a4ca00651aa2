"""``TransformerConfig``: a language model, dense or with experts, spelt out in ``[model.transformer]``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from semu.checks import check_divides, check_integer, check_member, check_probability, check_sizes
from semu.errors import ConfigError
from semu.nn import Activation, LatentAttention, LatentSizes, LayerNorm, MixtureOfExperts, Model, TransformerLayer
from semu.records import dataclass
from semu_models.text.decoder import Decoder, decoder_model
from semu_models.text.mtp import predicting_model

_WHERE = "model.transformer"
_REQUIRED = ("layers", "hidden", "heads", "vocab")
_LATENT = ("kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")


@dataclass(frozen=True)
class TransformerConfig:
    """Sizes and style of a decoder-only transformer.

    Attributes:
        layers, hidden, heads, vocab: sizes, >= 1.
        ffn: inner width of the feed-forward network; of gate and of up each where it is gated.
        kv_heads: key/value heads, a divisor of heads.
        head_dim: width of a head.
        gated_mlp: SwiGLU instead of GELU.
        tied_embeddings: the output projection shares the token table.
        rms_norm: RMS instead of layer norm. rotary: rotary positions.
        bias, qkv_bias: biases of the projections, and of queries, keys and values.
        dropout: probability on the attention's probabilities, after attention, feed-forward network and embedding,
            in [0, 1).
        positions: rows of a learned position table; None: no table.
        qk_norm: RMS norm of queries and keys, head by head. qk_layer_norm: a layer norm in its place.
        experts, top_k, moe_ffn: of the mixtures of experts in place of feed-forward networks: how many, how many a
            token uses, inner width of each; None: a dense model. expert_bias: experts have
            biases, the router none.
        shared_ffn: inner width of the shared experts. shared_gate: their output is weighted by a learned gate.
        moe_layer_freq: every so many layers have experts, the first does, or a 1 for every layer that has and a 0 for
            every other (Megatron-LM's ``--moe-layer-freq``); None: every layer. first_k_dense: so many first layers
            have none.
        mla: widths of latent attention, under Megatron-LM's names; None: ordinary attention.
        mtp_layers: further tokens that are predicted, each by a layer like the last one (``semu_models.text.mtp``).
        vocab_multiple: the tables have ``vocab`` rows rounded up to a multiple of this x tp (Megatron-LM's
            ``--make-vocab-size-divisible-by``, there 128); None: as they are.
        activation: non-linearity of the feed-forward networks, a value of ``semu.nn.Activation``; None: SiLU where
            gated, else GELU.
    Raises:
        ConfigError: a size below one, heads that do not divide, a probability out of range, experts without a size.
    """

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    gated_mlp: bool
    tied_embeddings: bool
    rms_norm: bool
    rotary: bool
    bias: bool
    qkv_bias: bool
    dropout: float
    positions: int | None = None
    qk_norm: bool = False
    qk_layer_norm: bool = False
    experts: int | None = None
    top_k: int | None = None
    moe_ffn: int | None = None
    expert_bias: bool = False
    shared_ffn: int | None = None
    shared_gate: bool = False
    moe_layer_freq: int | tuple[int, ...] | None = None
    first_k_dense: int | None = None
    mla: LatentSizes | None = None
    mtp_layers: int = 0
    vocab_multiple: int | None = None
    activation: str | None = None

    def __post_init__(self) -> None:
        if self.activation is not None:
            check_member(self.activation, Activation, f"{_WHERE}.activation")
        check_integer(self.mtp_layers, f"{_WHERE}.mtp_layers", "a number of layers", least=0)
        self._check_experts()
        check_sizes(self, zero=("mtp_layers", "first_k_dense"), where=_WHERE)
        check_divides(self, "heads", "kv_heads", where=_WHERE)
        check_probability(self.dropout, f"{_WHERE}.dropout")

    def _check_experts(self) -> None:
        freq = self.moe_layer_freq
        if not isinstance(freq, tuple):
            check_integer(freq if freq is not None else 1, f"{_WHERE}.moe_layer_freq", "a size")
        elif len(freq) != self.layers or not set(freq) <= {0, 1} or not any(freq):
            raise ConfigError(
                "not a pattern of layers",
                where=f"{_WHERE}.moe_layer_freq",
                expected=f"{self.layers} numbers 0 or 1, not all 0",
                got=list(freq),
            )
        if self.first_k_dense is not None and not 0 <= self.first_k_dense < self.layers:
            raise ConfigError(
                "no layer with experts is left",
                where=f"{_WHERE}.first_k_dense",
                expected=f"0 <= first_k_dense < layers = {self.layers}",
                got=self.first_k_dense,
                nearest=min(max(self.first_k_dense, 0), self.layers - 1),
            )
        needed = {"experts": self.experts, "top_k": self.top_k, "moe_ffn": self.moe_ffn}
        extra = ("expert_bias", "shared_ffn", "shared_gate", "moe_layer_freq", "first_k_dense")
        given = [name for name in (*needed, *extra) if getattr(self, name)]
        missing = next((name for name, value in needed.items() if value is None), None)
        if given and missing is not None:
            raise ConfigError(
                f"{given[0]} without {missing}", where=f"{_WHERE}.{missing}", expected="an integer >= 1", got="nothing"
            )

    @property
    def dense_layers(self) -> frozenset[int]:
        """Layers without experts."""
        if self.experts is None:
            return frozenset(range(self.layers))
        first, freq = self.first_k_dense or 0, self.moe_layer_freq or 1
        pattern = freq if isinstance(freq, tuple) else [number % freq == 0 for number in range(self.layers)]
        return frozenset(number for number in range(self.layers) if number < first or not pattern[number])

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> TransformerConfig:
        """Fill in what a table leaves open.

        ``ffn`` is 4 x hidden (a gated network must give it, unless all layers have experts), ``kv_heads`` is heads,
        ``head_dim`` hidden / heads, ``qkv_bias`` as ``bias``. What the table does not say about norm, positions and
        biases follows the family: with ``gated_mlp`` as in Llama (RMS norm, rotary, no biases), else as in GPT (layer
        norm, biases).

        Args:
            table: keys of ``[model.transformer]`` with the types of the schema.
        Raises:
            ConfigError: a missing key, and as the class.
        """
        for name in _REQUIRED:
            if name not in table:
                raise ConfigError("missing key", where=f"{_WHERE}.{name}", expected="an integer >= 1")
            check_integer(table[name], f"{_WHERE}.{name}", "a size")
        is_gated = table.get("gated_mlp", False)
        only_experts = "moe_ffn" in table and not any(name in table for name in ("first_k_dense", "moe_layer_freq"))
        if is_gated and "ffn" not in table and not only_experts:
            raise ConfigError("missing key", where=f"{_WHERE}.ffn", expected="the inner width, with gated_mlp = true")
        hidden, heads = table["hidden"], table["heads"]
        if "head_dim" not in table and hidden % heads:
            raise ConfigError(
                f"hidden = {hidden} does not divide into heads = {heads}",
                where=f"{_WHERE}.heads",
                expected=f"a divisor of {hidden}",
                got=heads,
                nearest=max(n for n in range(1, min(hidden, heads) + 1) if hidden % n == 0),
            )
        bias = table.get("bias", not is_gated)
        defaults = {
            "ffn": table["moe_ffn"] if is_gated and only_experts else 4 * hidden,
            "kv_heads": heads,
            "head_dim": hidden // heads,
            "gated_mlp": False,
            "tied_embeddings": False,
            **dict.fromkeys(("rms_norm", "rotary"), is_gated),
            **dict.fromkeys(("bias", "qkv_bias"), bias),
            "dropout": 0.0,
        }
        return cls(**{name: _kept(name, value) for name, value in (defaults | dict(table)).items()})

    def to_table(self) -> dict[str, object]:
        """All keys that have a value other than their default, as ``from_table`` reads them."""
        values = {item.name: value for item in fields(self) if (value := getattr(self, item.name)) != item.default}
        if self.mla is not None:
            mla = asdict(self.mla)
            values["mla"] = {name: value for name, value in mla.items() if value is not None and value is not True}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def table_rows(self, tp: int) -> int:
        """Rows of the token table under tensor parallelism, padding included."""
        step = 1 if self.vocab_multiple is None else self.vocab_multiple * tp
        return -(-self.vocab // step) * step

    def model(self, tp: int = 1) -> Model:
        """A new model: token ids [tokens] of the text stream -> scalar loss.

        Args:
            tp: tensor-parallel size, for the padding of the vocabulary.
        """

        dense = self.dense_layers

        def _layer(number: int) -> TransformerLayer:
            return TransformerLayer(
                self.hidden,
                self.ffn,
                self.heads,
                self.kv_heads,
                head_dim=self.head_dim,
                rotary=self.rotary,
                gated=self.gated_mlp,
                rms_norm=self.rms_norm,
                bias=self.bias,
                qkv_bias=self.qkv_bias,
                dropout=self.dropout,
                qk_norm=LayerNorm if self.qk_layer_norm else self.qk_norm,
                activation=self._activation,
                mlp=None if number in dense else self._mixture(),
                attention=None
                if self.mla is None
                else LatentAttention(self.hidden, self.heads, self.mla, bias=self.bias, dropout=self.dropout),
            )

        body = Decoder(
            self.layers,
            self.hidden,
            self.table_rows(tp),
            _layer,
            positions=self.positions,
            tied=self.tied_embeddings,
            rms_norm=self.rms_norm,
            dropout=self.dropout,
        )
        name = f"transformer-{self.layers}x{self.hidden}"
        if not self.mtp_layers:
            return decoder_model(name, body)
        return predicting_model(
            name, body, self.hidden, self.mtp_layers, lambda _: _layer(self.layers - 1), rms_norm=self.rms_norm
        )

    def _mixture(self) -> MixtureOfExperts:
        assert self.experts is not None and self.top_k is not None and self.moe_ffn is not None
        return MixtureOfExperts(
            self.hidden,
            self.moe_ffn,
            self.experts,
            self.top_k,
            gated=self.gated_mlp,
            shared_ffn=self.shared_ffn,
            shared_gate=self.shared_gate,
            bias=self.expert_bias,
            router_bias=False,
            activation=self._activation,
        )

    @property
    def _activation(self) -> Activation | None:
        return None if self.activation is None else Activation(self.activation)


def _kept(name: str, value: Any) -> Any:
    """A key's value as the class keeps it."""
    if name == "dropout":
        return float(value)
    if name != "mla":
        return tuple(value) if isinstance(value, list) else value
    for key in _LATENT:
        if key not in value:
            raise ConfigError("missing key", where=f"{_WHERE}.mla.{key}", expected="an integer >= 1")
    for key, size in value.items():
        if key != "norms":
            check_integer(size, f"{_WHERE}.mla.{key}", "a size")
    return LatentSizes(**value)
