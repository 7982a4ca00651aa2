"""What is said of a config.json: understood, defaulted, ignored; both dialects; and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from semu.errors import ConfigError
from semu_models.hf import DIALECTS, Dialect, Part, Section, Spelling, Values, load_hf
from semu_models.hf.dialect import FieldKind, size
from semu_models.hf.document import read_document
from semu_models.hf.reader import Reader
from tests.semu_models.published_counts import CONFIGS

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
}


def refused(fields: dict[str, Any], **options: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_hf(fields, **options)
    return caught.value


def test_the_report_names_every_key_once() -> None:
    path = CONFIGS / "llama3-8b.json"
    reading = load_hf(path).reading
    said = [row.key for row in (*reading.understood, *reading.ignored)]
    assert sorted(said) == sorted(json.loads(path.read_text()))
    assert [(row.key, row.value, row.meaning) for row in reading.defaulted] == [
        ("head_dim", 128, "head_dim; hidden / heads")
    ]
    assert reading.model_type == "llama"


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.json")), ids=lambda path: path.stem)
def test_every_key_of_every_fixture_is_accounted_for(path: Path) -> None:
    fields = json.loads(path.read_text())
    reading = load_hf(path).reading
    said = {row.key.partition(".")[0] for row in (*reading.understood, *reading.ignored)}
    assert said == set(fields)


def test_what_is_taken_by_default_is_said_with_its_origin() -> None:
    rows = {row.key: row for row in load_hf({"model_type": "mixtral"}).reading.defaulted}
    assert rows["num_local_experts"].value == 8
    assert rows["hidden_size"].value == 4096
    assert "transformers" in rows["hidden_size"].meaning


def test_both_dialects_make_the_same_model() -> None:
    old = {**LLAMA, "torch_dtype": "bfloat16", "rope_theta": 1e4, "rope_scaling": None}
    new = {**LLAMA, "dtype": "bfloat16", "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    bodies = [load_hf(fields).model.modules[0].body.fingerprint() for fields in (old, new)]
    assert bodies[0] == bodies[1]


@pytest.mark.parametrize("key", ["num_local_experts", "num_experts", "n_routed_experts"])
@pytest.mark.parametrize("model_type", ["mixtral", "qwen3_moe", "deepseek_v3"])
def test_the_number_of_experts_in_every_spelling(model_type: str, key: str) -> None:
    assert load_hf({"model_type": model_type, key: 16}).config.experts == 16


def test_key_value_heads_that_are_null_are_as_many_as_heads() -> None:
    read = load_hf({**LLAMA, "num_key_value_heads": None})
    assert read.config.kv_heads == 4
    assert any(row.key == "num_key_value_heads" and row.value == 4 for row in read.reading.defaulted)


def test_a_folder_stands_for_its_config_json(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    assert load_hf(folder).model.name == "my-model"


def test_rows_of_the_token_table_are_exact_unless_a_multiple_is_asked_for() -> None:
    fields = {**LLAMA, "vocab_size": 130}
    assert load_hf(fields).vocab == 130
    padded = load_hf(fields, vocab_step=64)
    assert padded.vocab == 192
    assert padded.model.num_parameters() - load_hf(fields).model.num_parameters() == 2 * 62 * 64
    assert "130 -> 192" in padded.reading.notes[0]


# -- refusals ------------------------------------------------------------------------------------------------------
def test_an_unknown_model_type_is_refused_with_the_nearest() -> None:
    error = refused({**LLAMA, "model_type": "lama"})
    assert (error.nearest, error.got) == ("llama", "lama")
    assert error.where == "config model_type"


def test_an_unknown_key_is_refused_with_the_nearest_and_the_way_out() -> None:
    fields = {**LLAMA, "num_key_value_head": 8}
    error = refused(fields)
    assert error.nearest == "num_key_value_heads"
    assert 'hf_ignore = ["num_key_value_head"]' in str(error.expected)
    reading = load_hf(fields, ignore=["num_key_value_head"]).reading
    assert ("num_key_value_head", "asked for (hf_ignore)") in [(row.key, row.meaning) for row in reading.ignored]


@pytest.mark.parametrize("value", [None, False, "", [], {}])
def test_an_unknown_key_that_is_not_set_is_left_out(value: object) -> None:
    reading = load_hf({**LLAMA, "sparse_everything": value}).reading
    assert "sparse_everything" in [row.key for row in reading.ignored]


@pytest.mark.parametrize("value", [True, 0, 0.0, 3, "x", [0], {"a": 1}])
def test_an_unknown_key_that_is_set_is_refused(value: object) -> None:
    assert "sparse_everything" in refused({**LLAMA, "sparse_everything": value}).message


@pytest.mark.parametrize(("key", "why"), [("hidden_size", "a size"), ("absent", "does not have it")])
def test_only_unknown_keys_can_be_left_out(key: str, why: str) -> None:
    error = refused(LLAMA, ignore=[key])
    assert why in error.message
    assert error.where == "model.hf_ignore"


@pytest.mark.parametrize(
    ("changes", "key", "got"),
    [
        ({"num_attention_heads": 5}, "num_attention_heads", 5),
        ({"num_key_value_heads": 3}, "num_key_value_heads", 3),
        ({"hidden_size": "64"}, "hidden_size", "'64'"),
        ({"hidden_size": 64.0}, "hidden_size", "64.0"),
        ({"hidden_size": True}, "hidden_size", "True"),
        ({"num_hidden_layers": 0}, "num_hidden_layers", "0"),
        ({"vocab_size": -1}, "vocab_size", "-1"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers", 10**9),
        ({"hidden_size": 10**15, "num_attention_heads": 7}, "num_attention_heads", 7),
        ({"hidden_act": "relu"}, "hidden_act", "'relu'"),
        ({"attention_dropout": 0.1}, "attention_dropout", "0.1"),
        ({"attention_bias": 1}, "attention_bias", "1"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "architectures", "LlamaForSequenceClassification"),
        ({"add_cross_attention": True}, "add_cross_attention", "True"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings", "'yes'"),
    ],
)
def test_contradictions_and_wrong_types_name_the_key_of_the_file(
    changes: dict[str, Any], key: str, got: object
) -> None:
    error = refused({**LLAMA, **changes})
    assert error.where == f"config {key}"
    assert error.got == got


def test_the_line_of_the_key_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({**LLAMA, "num_attention_heads": 5}, indent=1))
    with pytest.raises(ConfigError) as caught:
        load_hf(path)
    assert caught.value.where == f"{path}:6 num_attention_heads"


def test_two_spellings_may_agree_and_not_contradict() -> None:
    assert load_hf({"model_type": "mixtral", "num_experts": 4, "num_local_experts": 4}).config.experts == 4
    error = refused({"model_type": "mixtral", "num_experts": 4, "num_local_experts": 8})
    assert error.where == "config num_experts"
    assert error.nearest == 8


@pytest.mark.parametrize(
    ("method", "ok"), [("fp8", True), ("mxfp4", True), ("gptq", False), ("awq", False), ("bitsandbytes", False)]
)
def test_a_quantised_checkpoint_is_said_to_be_one(method: str, ok: bool) -> None:
    fields = {**LLAMA, "quantization_config": {"quant_method": method, "bits": 4}}
    if ok:
        assert "a quantised checkpoint" in load_hf(fields).reading.notes[0]
        return
    error = refused(fields)
    assert f"quantised checkpoint ({method})" in error.message
    assert error.where == "config quantization_config"
    assert load_hf(fields, ignore=["quantization_config"]).model.num_parameters()


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"tokenizer_class": "LlamaTokenizer", "model_max_length": 4096}, "tokenizer's configuration"),
        ({"added_tokens_decoder": {}, "tokenizer_class": "X"}, "tokenizer's configuration"),
        ({"version": "1.0", "added_tokens": [], "pre_tokenizer": None, "model": {}}, "a tokenizer (tokenizer.json)"),
        ({"_from_model_config": True, "bos_token_id": 1}, "generation configuration"),
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.9}, "generation configuration"),
        ({"image_processor_type": "CLIPImageProcessor"}, "processor's configuration"),
        ({"metadata": {}, "weight_map": {}}, "index of weights"),
        ({"peft_type": "LORA", "r": 8}, "adapter's configuration"),
        ({"_class_name": "FluxTransformer2DModel", "_diffusers_version": "0.30"}, "diffusers"),
        ({"dim": 4096, "n_layers": 32, "n_heads": 32}, "params.json"),
        ({"hidden_size": 64}, "no model_type"),
    ],
)
def test_files_that_are_no_models_are_called_by_their_name(fields: dict[str, Any], what: str) -> None:
    assert what in refused(fields).message


@pytest.mark.parametrize("cut", [1, 40, 100])
def test_truncated_json_names_the_byte(tmp_path: Path, cut: int) -> None:
    text = json.dumps({"ä": "ü", **LLAMA}, ensure_ascii=False)
    path = tmp_path / "cut.json"
    path.write_text(text[:cut], encoding="utf-8")
    with pytest.raises(ConfigError, match=r"at byte (\d+)") as caught:
        load_hf(path)
    assert "truncated" in caught.value.message
    byte = int(caught.value.message.partition("at byte ")[2].split()[0])
    assert byte <= path.stat().st_size


def test_a_syntax_error_names_its_byte_past_wide_characters(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text('{"ä": 1 "b": 2}', encoding="utf-8")
    with pytest.raises(ConfigError, match="at byte 9") as caught:
        load_hf(path)
    assert "truncated" not in caught.value.message


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"[1, 2]", "not a JSON object"),
        (b'{"model_type": "llama", "model_type": "qwen2"}', "a key is there twice: model_type"),
        (b'{"model_type": "ll\xff"}', "not UTF-8 text: byte 18"),
        (b"", "at byte 0"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_other_broken_files(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        load_hf(path)
    assert message in caught.value.message


def test_a_missing_file_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot read the file"):
        load_hf("no/such/config.json")


# -- windows ---------------------------------------------------------------------------------------------------------
def windowed(fields: dict[str, Any]) -> list[int | None]:
    """Window of every layer."""
    config = load_hf(fields).config
    found = [config.window_of(layer) for layer in range(config.layers)]
    return [None if window is None else window.size for window in found]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"model_type": "mistral"}, [4096] * 4),
        ({"model_type": "mistral", "sliding_window": None}, [None] * 4),
        ({"model_type": "mixtral", "sliding_window": 64}, [64] * 4),
        ({"model_type": "qwen2", "sliding_window": 64}, [None] * 4),
        (
            {"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": True, "max_window_layers": 3},
            [None, None, None, 64],
        ),
        ({"model_type": "gemma2"}, [4096, None, 4096, None]),
        ({"model_type": "gemma3_text", "sliding_window_pattern": 3}, [4096, 4096, None, 4096]),
        ({"model_type": "gpt_oss", "sliding_window": 32}, [32, None, 32, None]),
        (
            {"model_type": "gpt_oss", "layer_types": ["full_attention"] * 3 + ["sliding_attention"]},
            [None, None, None, 128],
        ),
        ({"model_type": "gemma2", "layer_types": ["full_attention"] * 4}, [None] * 4),
    ],
)
def test_windows_lie_where_transformers_puts_them(fields: dict[str, Any], expected: list[int | None]) -> None:
    assert windowed({**fields, "num_hidden_layers": 4}) == expected


@pytest.mark.parametrize(
    ("types", "message"),
    [(["full_attention"] * 3, "3 layer types for 4 layers"), (["linear_attention"] * 4, "are not modelled")],
)
def test_layer_types_that_do_not_fit_are_refused(types: list[str], message: str) -> None:
    error = refused({"model_type": "gpt_oss", "num_hidden_layers": 4, "layer_types": types})
    assert message in error.message
    assert error.where == "config layer_types"


def test_dropout_of_gpt2_is_read_where_it_is_one() -> None:
    assert load_hf({"model_type": "gpt2"}).config.dropout == 0.1
    zero = dict.fromkeys(("resid_pdrop", "attn_pdrop", "embd_pdrop"), 0.0)
    assert load_hf({"model_type": "gpt2", **zero}).config.dropout == 0.0
    assert "three different" in refused({"model_type": "gpt2", "attn_pdrop": 0.0}).message


# -- nested configurations -----------------------------------------------------------------------------------------
INNER = Dialect(
    family="llama",
    model_types=("inner",),
    spellings={"hidden": size("hidden_size", default=8), "depth": size("depth", default=2)},
    config=lambda values: (values.size("hidden"), values.size("depth")),
)
OUTER = Dialect(
    family="vlm",
    model_types=("outer",),
    spellings={"out": Spelling(("vision_config.out_size",), FieldKind.SIZE, 3)},
    config=lambda values: (values.size("out"), values.section("text").config, values.section("vision").config),
    sections={
        "text": Section(("text_config",), "inner", flat=True),
        "vision": Section(("vision_config",), renames={"outer": "inner"}, dialect="outer"),
    },
)


def read_nested(fields: dict[str, Any]) -> tuple[Part, Reader]:
    document = read_document({"model_type": "outer", **fields})
    known = {"inner": INNER, "outer": OUTER}
    reader = Reader(document, lambda name, where: known[name])
    return reader.read(OUTER, "outer"), reader


def test_sections_are_read_where_they_stand_and_where_they_do_not() -> None:
    nested, _ = read_nested({"text_config": {"hidden_size": 16}, "vision_config": {"depth": 5}})
    assert nested.config == (3, (16, 2), (8, 5))
    flat, reader = read_nested({"hidden_size": 16, "depth": 4, "vision_config": {"model_type": "outer"}})
    assert flat.config == (3, (16, 4), (8, 2))
    assert "hidden_size" in [row.key for row in reader.understood]


def test_a_flat_key_may_repeat_a_nested_one_and_not_contradict_it() -> None:
    both, reader = read_nested({"text_config": {"hidden_size": 16}, "hidden_size": 16, "depth": 3})
    assert both.config[1] == (16, 3)
    assert [row.meaning for row in reader.ignored] == ["repeats text_config.hidden_size"]
    with pytest.raises(ConfigError, match=r"hidden_size = 8 contradicts text_config\.hidden_size = 16"):
        read_nested({"text_config": {"hidden_size": 16}, "hidden_size": 8})


def test_unknown_keys_of_a_section_are_refused_at_their_place() -> None:
    with pytest.raises(ConfigError) as caught:
        read_nested({"vision_config": {"depht": 3}})
    assert caught.value.where == "config vision_config.depht"
    assert caught.value.nearest == "depth"


def test_every_dialect_can_be_read_from_its_model_type_alone() -> None:
    """Defaults make a whole model; no canonical field is left without a value that the family needs."""
    for name, dialect in DIALECTS.items():
        if dialect.model is not None and not dialect.sections and name != "deepseek_v2":  # has no default of top_k
            assert load_hf({"model_type": name}).model.num_parameters() > 0
    assert refused({"model_type": "deepseek_v2"}).where == "config num_experts_per_tok"


def test_values_name_the_place_of_a_field() -> None:
    values = Values("llama", read_document(LLAMA), {"heads": 5, "hidden": 64}, {"heads": "a.heads", "hidden": "hidden"})
    with pytest.raises(ConfigError) as caught:
        values.quotient("hidden", "heads")
    assert (caught.value.where, caught.value.nearest) == ("config a.heads", 4)
