"""Keys that all model types share: their meaning, and why most do not affect time or memory.

From transformers' base configuration, versions 4.57 (``PretrainedConfig``) and 5.23 (``PreTrainedConfig``).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from semu_models.hf.dialect import Fixed

_TOKEN = "a token's number"
_GENERATION = "text generation"
_HEAD = "labels of a classification"
_FILE = "about the file"
_OUTPUT = "what a forward call returns"
_VALUES = "values of tensors, not their sizes"
_LOSS = "a term of the loss; no sizes"

IGNORED: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id", "mask_token_id"),
                *("unk_token_id", "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id"),
                *("image_token_id", "image_token_index", "video_token_id", "video_token_index", "audio_token_id"),
                *("audio_token_index", "vision_start_token_id", "vision_end_token_id", "vision_token_id"),
                *("boi_token_index", "eoi_token_index", "boi_token_id", "eoi_token_id", "audio_start_token_id"),
                *("audio_end_token_id", "user_token_id", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens"),
                "ignore_index",
            ),
            _TOKEN,
        ),
        **dict.fromkeys(
            (
                *("max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups"),
                *("diversity_penalty", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty"),
                *("length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "num_return_sequences"),
                *("output_scores", "return_dict_in_generate", "remove_invalid_values", "task_specific_params"),
                *("exponential_decay_length_penalty", "use_cache", "cache_implementation", "max_new_tokens"),
                *("begin_suppress_tokens", "prefix", "generation_config"),
            ),
            _GENERATION,
        ),
        **dict.fromkeys(
            ("id2label", "label2id", "num_labels", "problem_type", "finetuning_task", "classifier_dropout"), _HEAD
        ),
        **dict.fromkeys(
            (
                *("_name_or_path", "name_or_path", "transformers_version", "auto_map", "tokenizer_class"),
                *("_commit_hash", "_attn_implementation", "_attn_implementation_autoset", "attn_implementation"),
                *("transformers.js_config", "model_max_length", "processor_class", "unsloth_version", "unsloth_fixed"),
            ),
            _FILE,
        ),
        **dict.fromkeys(
            (
                *("return_dict", "output_hidden_states", "output_attentions", "torchscript", "output_router_logits"),
                *("use_return_dict", "_output_attentions"),
            ),
            _OUTPUT,
        ),
        **dict.fromkeys(
            (
                *(
                    "initializer_range",
                    "initializer_factor",
                    "init_std",
                    "rms_norm_eps",
                    "layer_norm_eps",
                    "layer_norm_epsilon",
                ),
                *("layernorm_epsilon", "norm_eps", "norm_epsilon", "hidden_states_scale"),
            ),
            _VALUES,
        ),
        **dict.fromkeys(("router_aux_loss_coef", "aux_loss_alpha", "seq_aux", "router_z_loss_coef"), _LOSS),
        "pretraining_tp": "how the released model was sharded; the sizes are the same",
        "use_bfloat16": "storage of the weights: training.precision counts",
        "tf_legacy_loss": "TensorFlow",
        "ep_size": "parallelism of the released code: [parallel] counts",
        "max_window_layers": "windows are not used",
    }
)
"""Key -> why it has no bearing."""

UNDERSTOOD: Mapping[str, str] = MappingProxyType(
    {
        "model_type": "the dialect",
        "architectures": "class of the model",
        "torch_dtype": "storage of the weights; training.precision counts",
        "dtype": "storage of the weights; training.precision counts",
        **dict.fromkeys(
            (
                *("rope_theta", "rope_scaling", "rope_parameters", "rope_interleave", "rope_local_base_freq"),
                *("original_max_position_embeddings", "rope_type", "use_mrope", "mrope_section"),
            ),
            "angles of the rotary positions; the arithmetic is the same",
        ),
        "query_pre_attn_scalar": "scale of the scores; the arithmetic is the same",
    }
)
"""Key -> meaning; none of these affects time or memory."""

FIXED: Mapping[str, Fixed] = MappingProxyType(
    {
        "is_decoder": Fixed((False, True, None), "a decoder's mask comes with the model type"),
        "is_encoder_decoder": Fixed((False, None), "an encoder would stand before the decoder"),
        "add_cross_attention": Fixed((False, None), "layers would have cross-attention"),
        "cross_attention_hidden_size": Fixed((None,), "layers would have cross-attention"),
        "tie_encoder_decoder": Fixed((False, None), "weights would be shared"),
        "pruned_heads": Fixed(({}, None), "layers would have different numbers of heads"),
        "chunk_size_feed_forward": Fixed((0, None), "the feed-forward network would run in pieces"),
    }
)
"""Key -> legal values, for all model types."""

SILU = Fixed(("silu", "swish"), "the feed-forward network would have another activation")
NO_DROPOUT = Fixed((0, 0.0, None), "dropout on the attention alone is not modelled")

NATIVE_QUANTISATION: Mapping[str, str] = MappingProxyType(
    {
        "fp8": "block-scaled fp8, in which DeepSeek-V3 was trained and released",
        "mxfp4": "4-bit experts, in which GPT-OSS was released",
    }
)
"""``quant_method`` of checkpoints that are the official release of a trainable model -> description."""
