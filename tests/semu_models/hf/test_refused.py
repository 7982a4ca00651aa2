"""Model types that are known and not modelled: what is said, and that what is said to write instead can be read."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from semu.errors import ConfigError
from semu.runfile import TransformerConfig
from semu_models.hf import DIALECTS, load_hf
from semu_models.hf.refused import REFUSED

FIRST_MINUTES = Path(__file__).parents[3] / "benchmarks" / "instances" / "first_minutes"


def instead(source: Path | dict[str, Any]) -> TransformerConfig:
    """The decoder that the refusal names."""
    with pytest.raises(ConfigError, match="not modelled") as caught:
        load_hf(source)
    text = str(caught.value.nearest).replace("[model] ", "[model]\n")
    return TransformerConfig.from_table(tomllib.loads(text)["model"]["transformer"])


@pytest.mark.parametrize(("name", "parameters"), [("t5", 737_668_096), ("mamba", 2_768_345_600)])
def test_a_decoder_of_about_as_many_parameters_is_named(name: str, parameters: int) -> None:
    """T5-large and Mamba 2.8B as transformers 5.23.0 counts them."""
    assert instead(FIRST_MINUTES / f"{name}.json").model().num_parameters() == pytest.approx(parameters, rel=0.1)


def test_a_hybrid_keeps_its_attention() -> None:
    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32}
    found = instead({"model_type": "jamba", **sizes, "num_key_value_heads": 8, "vocab_size": 65536})
    assert (found.layers, found.hidden, found.ffn, found.heads, found.kv_heads) == (32, 4096, 14336, 32, 8)


def test_an_unknown_type_with_the_sizes_of_a_decoder_names_them() -> None:
    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32}
    more = {"num_key_value_heads": 8, "vocab_size": 128256, "hidden_act": "silu"}
    with pytest.raises(ConfigError, match="unknown model_type 'yi_new'") as caught:
        load_hf({"model_type": "yi_new", **sizes, **more})
    table = str(caught.value.expected).partition("[model] ")[2]
    found = TransformerConfig.from_table(tomllib.loads(table)["transformer"])
    assert found.model().num_parameters() == 8_030_261_248  # Llama 3 8B, as transformers counts it
    with pytest.raises(ConfigError, match="unknown model_type") as caught:
        load_hf({"model_type": "yi_new", "hidden_size": 64})
    assert "transformer =" not in str(caught.value.expected)


@pytest.mark.parametrize("model_type", REFUSED)
def test_a_file_that_says_little_is_refused_too(model_type: str) -> None:
    assert instead({"model_type": model_type}).model().num_parameters() > 0
    assert model_type not in DIALECTS
