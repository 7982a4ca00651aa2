"""Dialects of models that hear: Whisper, Qwen2-Audio, the thinker of Qwen2.5-Omni, and their encoders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from semu_models.hf.common import NO_DROPOUT
from semu_models.hf.dialect import Dialect, Fixed, Section, Spelling, size
from semu_models.hf.values import Values
from semu_models.hf.vision import GELU
from semu_models.hf.vision_language import TIED, check_width, encoder_of, language_of, qwen_text_dialect
from semu_models.multimodal.qwen_audio import QwenAudioConfig, make_qwen_audio
from semu_models.multimodal.qwen_omni import QwenOmniConfig, make_qwen_omni
from semu_models.multimodal.whisper import AudioConfig, WhisperConfig, whisper_model
from semu_models.vision.qwen_vision import QwenVisionConfig

NO_LAYER_DROP = Fixed((0, 0.0, None), "layers would be left out at random")
_VALUES = "values of tensors, not their sizes"
_DROPOUTS = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), NO_DROPOUT)
_AUDIO_FIXED: Mapping[str, Fixed] = {
    "activation_function": GELU,
    **_DROPOUTS,
    "encoder_layerdrop": NO_LAYER_DROP,
    "scale_embedding": Fixed((False, None), "the features would be scaled once more"),
}


def _audio_spellings(**defaults: int) -> dict[str, Spelling]:
    return {
        "layers": size("encoder_layers", default=defaults["layers"]),
        "hidden": size("d_model", default=defaults["hidden"]),
        "ffn": size("encoder_ffn_dim", default=defaults["ffn"]),
        "heads": size("encoder_attention_heads", default=defaults["heads"]),
        "mels": size("num_mel_bins", default=defaults["mels"]),
        "positions": size("max_source_positions", default=1500),
    }


def _audio_sizes(values: Values) -> dict[str, Any]:
    return {name: values.size(name) for name in ("layers", "hidden", "ffn", "heads", "mels", "positions")}


def _qwen2_audio_encoder(values: Values) -> AudioConfig:
    return AudioConfig(**_audio_sizes(values))


_LARGE = {"layers": 32, "hidden": 1280, "ffn": 5120, "heads": 20, "mels": 128}
QWEN2_AUDIO_ENCODER = Dialect(
    family="qwen-audio",
    model_types=("qwen2_audio_encoder",),
    spellings=_audio_spellings(**_LARGE),
    config=_qwen2_audio_encoder,
    fixed=_AUDIO_FIXED,
    ignored={"num_hidden_layers": "repeats encoder_layers"},
)


def _omni_audio(values: Values) -> AudioConfig:
    return AudioConfig(**_audio_sizes(values), table=False, window=values.size("window"))


OMNI_AUDIO_ENCODER = Dialect(
    family="qwen-omni",
    model_types=("qwen2_5_omni_audio_encoder",),
    spellings={
        **_audio_spellings(**_LARGE),
        "window": size("n_window", default=100),
        "out": size("output_dim", default=3584),
    },
    config=_omni_audio,
    fixed=_AUDIO_FIXED,
    ignored={"num_hidden_layers": "repeats encoder_layers"},
)


def _whisper(values: Values) -> WhisperConfig:
    audio = AudioConfig(**_audio_sizes(values))
    return WhisperConfig(
        audio,
        layers=values.size("decoder_layers"),
        ffn=values.size("decoder_ffn"),
        heads=values.size("decoder_heads"),
        vocab=values.size("vocab"),
        positions=values.size("context"),
    )


WHISPER = Dialect(
    family="whisper",
    model_types=("whisper",),
    spellings={
        **_audio_spellings(layers=4, hidden=384, ffn=1536, heads=6, mels=80),
        "decoder_layers": size("decoder_layers", default=4),
        "decoder_ffn": size("decoder_ffn_dim", default=1536),
        "decoder_heads": size("decoder_attention_heads", default=6),
        "vocab": size("vocab_size", default=51865),
        "context": size("max_target_positions", default=448),
    },
    config=_whisper,
    model=whisper_model,
    fixed={
        **_AUDIO_FIXED,
        "decoder_layerdrop": NO_LAYER_DROP,
        "is_encoder_decoder": Fixed((True, None), "there would be no encoder"),
        "tie_word_embeddings": Fixed((True, None), "the output would have a table of its own"),
    },
    understood={"num_hidden_layers": "repeats encoder_layers"},
    ignored={
        "init_std": _VALUES,
        **dict.fromkeys(("classifier_proj_size", "use_weighted_layer_sum"), "audio classification only"),
        "median_filter_width": "word timestamps",
        "apply_spec_augment": "masks of the spectrogram; no sizes",
        **dict.fromkeys(
            (
                *("mask_time_prob", "mask_time_length", "mask_time_min_masks"),
                *("mask_feature_prob", "mask_feature_length", "mask_feature_min_masks"),
            ),
            "masks of the spectrogram; no sizes",
        ),
        **dict.fromkeys(("alignment_heads", "lang_to_id", "task_to_id", "no_timestamps_token_id"), "text generation"),
        "forced_decoder_ids": "text generation",
    },
    architectures=("WhisperForConditionalGeneration",),
)


OMNI_TEXT = qwen_text_dialect(
    ("qwen2_5_omni_text",), layers=28, hidden=3584, ffn=18944, heads=28, kv_heads=4, vocab=152064
)


def _qwen2_audio(values: Values) -> QwenAudioConfig:
    return QwenAudioConfig(encoder_of(values, "audio", AudioConfig), language_of(values, tied=None))


QWEN2_AUDIO = Dialect(
    family="qwen-audio",
    model_types=("qwen2_audio",),
    spellings=TIED,
    config=_qwen2_audio,
    model=make_qwen_audio,
    ignored={"vocab_size": "repeats the language model's"},
    sections={
        "text": Section(("text_config",), dialect="qwen2"),
        "audio": Section(("audio_config",), dialect="qwen2_audio_encoder"),
    },
    architectures=("Qwen2AudioForConditionalGeneration",),
)


def _thinker(values: Values) -> QwenOmniConfig:
    language = language_of(values, tied=False)
    for section in ("vision", "audio"):
        check_width(values, section, "out", language.hidden)
    vision, audio = encoder_of(values, "vision", QwenVisionConfig), encoder_of(values, "audio", AudioConfig)
    return QwenOmniConfig(vision, audio, language)


OMNI_THINKER = Dialect(
    family="qwen-omni",
    model_types=("qwen2_5_omni_thinker",),
    spellings=TIED,
    config=_thinker,
    model=make_qwen_omni,
    ignored={
        "position_id_per_seconds": "positions of frames",
        "seconds_per_chunk": "positions of frames",
    },
    sections={
        "text": Section(("text_config",), dialect="qwen2_5_omni_text", renames={"qwen2": "qwen2_5_omni_text"}),
        "vision": Section(("vision_config",), dialect="qwen2_5_omni_vision_encoder"),
        "audio": Section(("audio_config",), dialect="qwen2_5_omni_audio_encoder"),
    },
    architectures=("Qwen2_5OmniThinkerForConditionalGeneration", "Qwen2OmniNaViTThinkerForConditionalGeneration"),
)


def _omni(values: Values) -> QwenOmniConfig:
    values.notes.append("the thinker is what is simulated: the talker and its vocoder are trained apart from it")
    config: QwenOmniConfig = values.section("thinker").config
    return config


_TALKER = "the talker, which is trained apart from the thinker"
OMNI = Dialect(
    family="qwen-omni",
    model_types=("qwen2_5_omni",),
    spellings={},
    config=_omni,
    model=make_qwen_omni,
    ignored={
        **dict.fromkeys(("talker_config", "token2wav_config", "enable_audio_output", "enable_talker"), _TALKER),
        "tie_word_embeddings": "the thinker says it for itself",
    },
    sections={"thinker": Section(("thinker_config",), dialect="qwen2_5_omni_thinker")},
    architectures=("Qwen2_5OmniModel", "Qwen2_5OmniForConditionalGeneration"),
)

AUDIO = (QWEN2_AUDIO_ENCODER, OMNI_AUDIO_ENCODER, OMNI_TEXT, WHISPER, QWEN2_AUDIO, OMNI_THINKER, OMNI)
"""Models that hear, and their parts."""
