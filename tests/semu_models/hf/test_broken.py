"""Whatever stands in a config.json, it is read or refused in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semu.errors import ConfigError
from semu_models.hf import DIALECTS, load_hf
from tests.semu_models.published_counts import CONFIGS

FIXTURES = sorted(CONFIGS.glob("*.json"))
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 40),
    st.floats(-1, 2, allow_nan=False),
    st.sampled_from(["", "full_attention", "sliding_attention", "silu", "gelu", "llama", "x"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text("ab_", max_size=3), inner)),
    max_leaves=4,
)
SMALL = {"num_hidden_layers": 2, "n_layer": 2}


def read_or_refuse(fields: object) -> None:
    """No other end than a model or a ConfigError with a place."""
    try:
        found = load_hf(fields)  # type: ignore[arg-type]
    except ConfigError as error:
        assert error.where and error.message
        json.dumps(error.to_json())
    else:
        json.dumps(found.reading.to_json())
        assert found.reading.summary() and repr(found.reading)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_changed_fixture_is_read_or_refused(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(FIXTURES))
    fields: dict[str, Any] = json.loads(path.read_text())
    for name in data.draw(st.lists(st.sampled_from(sorted(fields)), min_size=1, max_size=4)):
        fields[name] = data.draw(VALUES)
    for key, value in SMALL.items():
        if isinstance(fields.get(key), int) and not isinstance(fields[key], bool):
            fields[key] = min(fields[key], value)
    read_or_refuse(fields)


@pytest.mark.parametrize(
    ("name", "section", "key", "value"),
    [
        ("qwen2-vl-2b", "vision_config", "mlp_ratio", float("nan")),
        ("qwen2-vl-2b", "vision_config", "mlp_ratio", float("inf")),
        ("internvl3-1b", None, "downsample_ratio", float("nan")),
        ("gemma3-vl-4b", "vision_config", "image_size", 1),
        ("gemma3-vl-4b", "vision_config", "image_size", 10**9),
        ("vit-base-patch16", None, "image_size", 15),
        ("gemma3-vl-4b", None, "mm_tokens_per_image", 255),
        ("whisper-large-v3", None, "decoder_layers", 10**9),
    ],
)
def test_a_number_that_is_none_or_no_size_is_refused_at_its_key(
    name: str, section: str | None, key: str, value: float
) -> None:
    fields: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    (fields[section] if section is not None else fields)[key] = value
    with pytest.raises(ConfigError) as caught:
        load_hf(fields)
    assert caught.value.where is not None
    assert key in caught.value.where or caught.value.where.endswith(("patch_size", "mm_tokens_per_image"))


@settings(max_examples=60, deadline=None)
@given(
    model_type=st.sampled_from(sorted(DIALECTS)),
    fields=st.dictionaries(st.sampled_from(["hidden_size", "num_attention_heads", "layer_types", "zzz"]), VALUES),
)
def test_few_keys_are_read_or_refused(model_type: str, fields: dict[str, Any]) -> None:
    read_or_refuse({"model_type": model_type, "num_hidden_layers": 2, **fields})


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 2000), path=st.sampled_from(FIXTURES))
def test_a_file_cut_anywhere_names_a_byte(cut: int, path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    data = path.read_bytes()
    part = data[: min(cut, len(data) - 3)]
    file = tmp_path_factory.mktemp("cut") / "config.json"
    file.write_bytes(part)
    with pytest.raises(ConfigError, match=r"at byte \d+ \(the file looks truncated\)"):
        load_hf(file)
