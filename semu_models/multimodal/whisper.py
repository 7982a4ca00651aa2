"""Whisper: an encoder of mel spectrograms, and the decoder that attends to it (2212.04356 §2.2).

Two convolutions, the second with stride 2, make 20 ms of sound a token; keys have no biases. Every clip is padded to
30 s. The encoder's sinusoids are a table of fixed parameters, as transformers counts them.
"""

from __future__ import annotations

from semu.checks import check_divides, check_sizes
from semu.nn import (
    MLP,
    CrossAttention,
    Embedding,
    InputSpec,
    LayerNorm,
    LMHead,
    ModalityModule,
    ModalityRole,
    Model,
    Module,
    Parameter,
    SelfAttention,
    Sequential,
    Tensor,
    TransformerLayer,
    Window,
)
from semu.nn import functional as F
from semu.nn.layers.convolution import Conv1d
from semu.nn.merging import Merging
from semu.records import dataclass
from semu_models.text.encoder import Norm

AUDIO_STREAM = "audio"
"""Mel frames, one sequence per clip; 100 a second."""
AUDIO_TOKENS = "audio_tokens"
"""What a backbone gets of them."""
STRIDE = 2
"""Frames that the second convolution makes one token of."""


@dataclass(frozen=True)
class AudioConfig:
    """Sizes of a Whisper-style encoder.

    Attributes:
        layers, hidden, ffn, heads: of the transformer. mels: features of a frame.
        positions: rows of the table of sinusoids, tokens of a clip.
        table: the sinusoids count as parameters (frozen ones); else they are a constant.
        window: tokens that attend to one another; None: the whole clip.
    Raises:
        ConfigError: a size below 1, heads that do not divide hidden.
    """

    layers: int
    hidden: int
    ffn: int
    heads: int
    mels: int = 128
    positions: int = 1500
    table: bool = True
    window: int | None = None

    def __post_init__(self) -> None:
        check_sizes(self, "layers", "hidden", "ffn", "heads", "mels", "positions")
        check_divides(self, "hidden", "heads")

    @property
    def frames(self) -> int:
        """Frames of a padded clip."""
        return self.positions * STRIDE


class AudioEmbedding(Module):
    """Mel frames -> features of every second frame: two convolutions with GELU, and sinusoids."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        self.conv1 = Conv1d(config.mels, config.hidden, 3)
        self.conv2 = Conv1d(config.hidden, config.hidden, 3, STRIDE)
        self.positions = Parameter(config.positions, config.hidden) if config.table else None
        if self.positions is not None:
            self.positions.requires_grad = False

    def forward(self, frames: Tensor) -> Tensor:
        """[frames, mels] -> [ceil(frames / 2), hidden]."""
        x = F.gelu(self.conv2(F.gelu(self.conv1(F.shard_tokens(frames)))))
        return F.scale(x) if self.positions is None else F.add_parameter(x, self.positions, self.positions.shape[0])


def audio_blocks(config: AudioConfig) -> dict[str, Module]:
    """Members ``embedding``, ``layers.0`` ...: frames -> [tokens, hidden], behind them a norm is still to come."""
    window = Window.chunked(config.window) if config.window is not None else None
    layers = {
        f"layers.{i}": TransformerLayer(
            config.hidden, config.ffn, config.heads, causal=False, key_bias=False, window=window
        )
        for i in range(config.layers)
    }
    return {"embedding": AudioEmbedding(config), **layers}


@dataclass(frozen=True)
class WhisperConfig:
    """Sizes of a whole Whisper.

    Attributes:
        audio: the encoder. layers, ffn, heads: of the decoder, as wide as the encoder.
        vocab, positions: rows of the decoder's token and position tables; the output shares the token table.
    Raises:
        ConfigError: a size below 1, heads that do not divide the encoder's width.
    """

    audio: AudioConfig
    layers: int
    ffn: int
    heads: int
    vocab: int
    positions: int = 448

    def __post_init__(self) -> None:
        check_sizes(self, "layers", "ffn", "heads", "vocab", "positions")
        check_divides(self, "hidden", "heads")

    @property
    def hidden(self) -> int:
        """Width of encoder and decoder."""
        return self.audio.hidden


class SpokenEmbedding(Module):
    """Ids of a transcript -> features; the encoder's output goes along."""

    def __init__(self, text: Embedding) -> None:
        super().__init__()
        self.text = text

    def forward(self, ids: Tensor, sound: Tensor) -> tuple[Tensor, Tensor]:
        """Ids [tokens], [sound tokens, hidden] -> [tokens, hidden], the same sound tokens."""
        return self.text(ids), sound


class WhisperDecoderLayer(Module):
    """Causal self-attention, cross-attention to the clip, feed-forward network; a norm before each."""

    fp8_region = True

    def __init__(self, hidden: int, ffn: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = LayerNorm(hidden)
        self.attention = SelfAttention(hidden, heads, key_bias=False)
        self.cross_norm = LayerNorm(hidden)
        self.cross_attention = CrossAttention(hidden, heads, key_bias=False)
        self.mlp_norm = LayerNorm(hidden)
        self.mlp = MLP(hidden, ffn)

    def forward(self, x: Tensor, sound: Tensor) -> tuple[Tensor, Tensor]:
        """[tokens, hidden], [sound tokens, hidden] -> the same; only the first changes."""
        x = x + self.attention(self.attention_norm(x))
        x = x + self.cross_attention(self.cross_norm(x), sound)
        return x + self.mlp(self.mlp_norm(x)), sound


class SpokenHead(Module):
    """Final norm, output projection, token loss; the sound ends here unread."""

    def __init__(self, head: LMHead) -> None:
        super().__init__()
        self.head = head

    def forward(self, x: Tensor, sound: Tensor) -> Tensor:
        """[tokens, hidden] -> scalar loss."""
        out: Tensor = self.head(x)
        return out


def whisper_model(name: str, config: WhisperConfig) -> Model:
    """Modules ``audio`` (encoder) and ``decoder``.

    Args:
        name: for reports. config: sizes.
    """
    hidden = config.hidden
    encoder = {**audio_blocks(config.audio), "norm": Norm(LayerNorm(hidden))}
    text = Embedding(config.vocab, hidden, positions=config.positions)
    layers = {f"layers.{i}": WhisperDecoderLayer(hidden, config.ffn, config.heads) for i in range(config.layers)}
    head = SpokenHead(LMHead(hidden, config.vocab, tied=text))
    return Model(
        name,
        [
            ModalityModule(
                "audio",
                ModalityRole.ENCODER,
                Sequential(encoder),
                (InputSpec(AUDIO_STREAM, config.audio.mels),),
                merging=Merging(AUDIO_STREAM, None, length=config.audio.frames, item="clip"),
            ),
            ModalityModule(
                "decoder",
                ModalityRole.DECODER,
                Sequential({"embedding": SpokenEmbedding(text), **layers, "head": head}),
                sources=("audio",),
            ),
        ],
    )


WHISPER_LARGE_V3_AUDIO = AudioConfig(layers=32, hidden=1280, ffn=5120, heads=20)
"""Whisper large-v3's encoder (2212.04356 Table 1; 128 mel bands: openai/whisper-large-v3)."""
WHISPER_LARGE_V3 = WhisperConfig(WHISPER_LARGE_V3_AUDIO, layers=32, ffn=5120, heads=20, vocab=51866)
"""openai/whisper-large-v3."""


def whisper_large_v3() -> Model:
    """Whisper large-v3, encoder and decoder."""
    return whisper_model("whisper-large-v3", WHISPER_LARGE_V3)
