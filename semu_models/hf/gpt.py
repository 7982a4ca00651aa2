"""The dialect of GPT-2, whose keys have other names."""

from __future__ import annotations

from semu.nn import Model
from semu_models.hf.dialect import Dialect, Fixed, number, optional_size, size, switch
from semu_models.hf.values import Values
from semu_models.text.decoder import decoder_model
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
