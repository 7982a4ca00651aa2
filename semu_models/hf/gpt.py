"""The dialects of GPT-2, Falcon and BLOOM, whose keys have other names."""

from __future__ import annotations

from semu.nn import Model
from semu_models.hf.common import NO_DROPOUT
from semu_models.hf.dialect import Dialect, Fixed, number, optional_size, size, switch, word
from semu_models.hf.text import model_of
from semu_models.hf.values import Values
from semu_models.hf.vision import activation_of
from semu_models.text.bloom import BloomConfig
from semu_models.text.decoder import decoder_model
from semu_models.text.falcon import FalconConfig
from semu_models.text.gpt import GPT, GPTConfig


def _gpt2(values: Values) -> GPTConfig:
    probabilities = {name: values.get(name) for name in ("dropout", "attention_dropout", "embedding_dropout")}
    if len(set(probabilities.values())) > 1:
        raise values.error(
            "dropout",
            "three different probabilities of dropout are not modelled",
            expected="resid_pdrop = attn_pdrop = embd_pdrop",
            got=", ".join(f"{values.short(name)} = {p}" for name, p in probabilities.items()),
        )
    return GPTConfig(
        layers=values.size("layers"),
        hidden=values.size("hidden"),
        heads=values.size("heads"),
        vocab=values.size("vocab"),
        positions=values.size("context"),
        ffn=values.get("ffn"),
        tied=values.switch("tied"),
        dropout=float(values.get("dropout")),
    )


def _model(name: str, config: GPTConfig) -> Model:
    return decoder_model(name, GPT(config))


GPT2 = Dialect(
    family="gpt",
    model_types=("gpt2",),
    spellings={
        "layers": size("n_layer", "num_hidden_layers", default=12),
        "hidden": size("n_embd", "hidden_size", default=768),
        "heads": size("n_head", "num_attention_heads", default=12),
        "ffn": optional_size("n_inner", default=None),
        "vocab": size("vocab_size", default=50257),
        "context": size("n_positions", "max_position_embeddings", default=1024),
        "tied": switch("tie_word_embeddings", default=True),
        "dropout": number("resid_pdrop", default=0.1),
        "attention_dropout": number("attn_pdrop", default=0.1),
        "embedding_dropout": number("embd_pdrop", default=0.1),
    },
    config=_gpt2,
    model=_model,
    understood={
        "scale_attn_weights": "scale of the scores; the arithmetic is the same",
        "scale_attn_by_inverse_layer_idx": "scale of the scores; the arithmetic is the same",
    },
    ignored={
        "n_ctx": "repeats n_positions",
        **dict.fromkeys(
            (
                *("summary_type", "summary_use_proj", "summary_activation", "summary_first_dropout"),
                "summary_proj_to_labels",
            ),
            "a head of another class",
        ),
    },
    fixed={
        "activation_function": Fixed(
            ("gelu_new", "gelu", "gelu_pytorch_tanh"), "the feed-forward network would have another activation"
        ),
        "reorder_and_upcast_attn": Fixed((False, None), "attention would run in fp32"),
    },
    architectures=("GPT2LMHeadModel",),
)

_PLAIN_RESIDUAL = Fixed((False, None), "the normalised tensor would be the residual")


def _falcon(values: Values) -> FalconConfig:
    """As ``FalconAttention`` and ``FalconDecoderLayer`` read the keys: the newer form ignores ``multi_query``."""
    hidden, heads, is_new = values.size("hidden"), values.size("heads"), values.switch("new")
    is_parallel, norms = values.switch("parallel"), values.get("norms")
    if is_new and not is_parallel:
        raise values.error("parallel", "the newer layers are parallel", expected="true", got="false", nearest="true")
    if norms == 2 and is_parallel and not is_new:
        raise values.error("norms", "the older layers have one norm", expected="1 or null", got=norms, nearest=1)
    own = values.size_or("kv_heads", heads, "num_kv_heads; as many as heads")
    return FalconConfig(
        layers=values.size("layers"),
        hidden=hidden,
        ffn=values.size_or("ffn", 4 * hidden, "ffn_hidden_size; 4 x hidden"),
        heads=heads,
        kv_heads=own if is_new or not values.switch("multi_query") else 1,
        vocab=values.size("vocab"),
        tied=values.switch("tied"),
        attention_bias=values.switch("bias"),
        mlp_bias=values.switch("bias"),
        norms=(norms or 2) if is_new else 1 if is_parallel else 2,
        parallel=is_parallel,
        rotary=not values.switch("alibi"),
        activation=activation_of(values),
    )


FALCON = Dialect(
    family="falcon",
    model_types=("falcon",),
    spellings={
        "layers": size("num_hidden_layers", default=32),
        "hidden": size("hidden_size", "n_embed", default=4544),
        "heads": size("num_attention_heads", default=71),
        "kv_heads": optional_size("num_kv_heads", default=None),
        "ffn": optional_size("ffn_hidden_size", default=None),
        "vocab": size("vocab_size", default=65024),
        "context": size("max_position_embeddings", default=2048),
        "tied": switch("tie_word_embeddings", default=True),
        "norms": optional_size("num_ln_in_parallel_attn", default=None),
        "new": switch("new_decoder_architecture", default=False),
        "multi_query": switch("multi_query", default=True),
        "parallel": switch("parallel_attn", default=True),
        "bias": switch("bias", default=False),
        "alibi": switch("alibi", default=False),
        "activation": word("activation", default="gelu"),
    },
    config=_falcon,
    model=model_of,
    fixed={
        **dict.fromkeys(("hidden_dropout", "attention_dropout"), NO_DROPOUT),
        "apply_residual_connection_post_layernorm": _PLAIN_RESIDUAL,
    },
    architectures=("FalconForCausalLM",),
)


def _bloom(values: Values) -> BloomConfig:
    hidden, heads = values.size("hidden"), values.size("heads")
    return BloomConfig(
        layers=values.size("layers"),
        hidden=hidden,
        ffn=4 * hidden,
        heads=heads,
        kv_heads=heads,
        vocab=values.size("vocab"),
        tied=values.switch("tied"),
    )


BLOOM = Dialect(
    family="bloom",
    model_types=("bloom",),
    spellings={
        "layers": size("n_layer", "num_hidden_layers", default=2),
        "hidden": size("hidden_size", "n_embed", default=64),
        "heads": size("n_head", "num_attention_heads", default=8),
        "vocab": size("vocab_size", default=250880),
        "context": optional_size("seq_length", default=None),
        "tied": switch("tie_word_embeddings", default=True),
    },
    config=_bloom,
    model=model_of,
    ignored={
        "offset_alibi": "values of ALiBi",
        "attention_softmax_in_fp32": "precision inside a kernel",
        **dict.fromkeys(
            ("masked_softmax_fusion", "bias_dropout_fusion", "skip_bias_add", "skip_bias_add_qkv"),
            "fused kernels of the training code",
        ),
    },
    fixed={
        **dict.fromkeys(("hidden_dropout", "attention_dropout"), NO_DROPOUT),
        "apply_residual_connection_post_layernorm": _PLAIN_RESIDUAL,
        "slow_but_exact": Fixed((False, None), "products would run in slices"),
        "n_inner": Fixed((None,), "transformers takes 4 x hidden"),
    },
    architectures=("BloomForCausalLM",),
)

OWN_NAMES = (GPT2, FALCON, BLOOM)
"""Language models with keys of their own."""
