"""The vision encoders of Qwen2-VL and Qwen2.5-VL: any image size, rotary positions, 2 x 2 patches merged into a token.

Qwen2-VL (2409.12191 §2.1): layer norms, quick GELU, attention over the whole image. Qwen2.5-VL (2502.13923 §2.1.1):
RMS norms, gated SiLU, and attention in windows of 112 px but for four layers. A frame pair of a video is one sequence,
an image two equal frames: a patch has 2 x 14 x 14 x 3 values. Windows are taken as full in both directions, one after
the other in the stream: exact where the image's sides are multiples of the window's.
"""

from __future__ import annotations

from semu.checks import check_divides, check_sizes
from semu.errors import ConfigError
from semu.nn import (
    MLP,
    Activation,
    InputSpec,
    LayerNorm,
    ModalityModule,
    ModalityRole,
    Module,
    RMSNorm,
    Sequential,
    Tensor,
    TransformerLayer,
    Window,
)
from semu.nn import functional as F
from semu.records import dataclass
from semu_models.text.encoder import VISION_STREAM, VISION_TOKENS, ImageEmbedding, merged_images, tokens_of


@dataclass(frozen=True)
class QwenVisionConfig:
    """Sizes of a Qwen vision encoder.

    Attributes:
        layers, hidden, ffn, heads: of the transformer. out: width of the backbone.
        patch_size: [px]. temporal_patch: frames that a patch spans. channels: colours.
        merge: side of the square of patches that becomes one token.
        gated: Qwen2.5-VL's layers, with RMS norms and gated SiLU; else Qwen2-VL's.
        window: side of an attention window [px]; None: every layer sees the whole image.
        full_layers: layers that see the whole image nevertheless.
        activation: of the feed-forward networks; None: SiLU where gated, else quick GELU.
    Raises:
        ConfigError: a size below 1, heads that do not divide hidden, a window that does not divide into merged
            patches, a layer that does not exist.
    """

    layers: int
    hidden: int
    ffn: int
    heads: int
    out: int
    patch_size: int = 14
    temporal_patch: int = 2
    channels: int = 3
    merge: int = 2
    gated: bool = False
    window: int | None = None
    full_layers: tuple[int, ...] = ()
    activation: Activation | None = None

    def __post_init__(self) -> None:
        check_sizes(
            self, "layers", "hidden", "ffn", "heads", "out", "patch_size", "temporal_patch", "channels", "merge"
        )
        check_divides(self, "hidden", "heads")
        object.__setattr__(self, "full_layers", tuple(self.full_layers))
        step = self.patch_size * self.merge
        if self.window is not None and (self.window < step or self.window % step):
            raise ConfigError(
                "windows do not divide into merged patches",
                where=f"{type(self).__name__}.window",
                expected=f"a multiple of {self.merge} patches of {self.patch_size} px",
                got=self.window,
                nearest=max(round(self.window / step), 1) * step,
            )
        for number in self.full_layers:
            if not 0 <= number < self.layers:
                raise ConfigError(
                    "no such layer",
                    where=f"{type(self).__name__}.full_layers",
                    expected=f"0 to {self.layers - 1}",
                    got=number,
                    nearest=self.layers - 1,
                )

    @property
    def patch_features(self) -> int:
        """Colour values of a patch."""
        return self.channels * self.temporal_patch * self.patch_size**2

    def window_of(self, layer: int) -> Window | None:
        """The attention window of a layer."""
        if self.window is None or layer in self.full_layers:
            return None
        return Window.chunked((self.window // self.patch_size) ** 2)


class QwenMerger(Module):
    """A norm, ``merge`` x ``merge`` neighbours side by side, two layers to the backbone's width.

    Patches of a square follow one another in the stream (2409.12191 §2.1).
    """

    def __init__(self, config: QwenVisionConfig) -> None:
        super().__init__()
        self.group = config.merge**2
        width = self.group * config.hidden
        self.norm = RMSNorm(config.hidden) if config.gated else LayerNorm(config.hidden)
        self.mlp = MLP(width, width, config.out)

    def forward(self, x: Tensor) -> Tensor:
        """[patches, hidden] -> [patches / merge^2, out], stream ``vision_tokens``."""
        merged = F.merge_tokens(self.norm(x), self.group, tokens_of(x, VISION_TOKENS, self.group))
        out: Tensor = self.mlp(merged)
        return out


class QwenVision(Sequential):
    """Patches [patches, patch_features] -> image tokens; members ``embedding``, ``layers.0`` ..., ``merger``."""

    def __init__(self, config: QwenVisionConfig) -> None:
        activation = config.activation or (Activation.SILU if config.gated else Activation.QUICK_GELU)
        layers = {
            f"layers.{i}": TransformerLayer(
                config.hidden,
                config.ffn,
                config.heads,
                causal=False,
                rotary=True,
                gated=config.gated,
                rms_norm=config.gated,
                activation=activation,
                window=config.window_of(i),
            )
            for i in range(config.layers)
        }
        embedding = ImageEmbedding(config.patch_features, config.hidden, bias=False)
        super().__init__({"embedding": embedding, **layers, "merger": QwenMerger(config)})
        self.config = config


def qwen_vision_module(config: QwenVisionConfig) -> ModalityModule:
    """The encoder with what the data loader gives it; named ``vision``."""
    return ModalityModule(
        "vision",
        ModalityRole.ENCODER,
        QwenVision(config),
        (InputSpec(VISION_STREAM, config.patch_features),),
        merging=merged_images(config.merge**2),
    )


def qwen2_vision(out: int) -> QwenVisionConfig:
    """Qwen2-VL's encoder, one for all sizes (2409.12191 Table 1: 675 M). ``out``: width of the backbone."""
    return QwenVisionConfig(layers=32, hidden=1280, ffn=5120, heads=16, out=out)


def qwen2_5_vision(out: int, ffn: int = 3420) -> QwenVisionConfig:
    """Qwen2.5-VL's encoder (2502.13923 Table 1; ``ffn`` of 3456 in the released 32B and 72B: config.json)."""
    return QwenVisionConfig(
        layers=32, hidden=1280, ffn=ffn, heads=16, out=out, gated=True, window=112, full_layers=(7, 15, 23, 31)
    )
