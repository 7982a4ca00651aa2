"""Rows that are no plain transformer: adapters, tables of a run file, multimodal objects."""

from __future__ import annotations

from typing import Any

import pytest

from semu.hardware.attention_kernels import AttentionKernel
from semu.job.kinds import OptimizerKernels
from semu.nn.trace.eager import Autocast
from semu.runfile import make_job
from semu.validation import Row, parse_rows
from semu.validation.evaluate import evaluate_row
from semu.validation.jobs import Settings, run_tables
from semu.validation.multimodal import CHAT_TOKENS, run_of_multimodal
from semu.validation.row import BadRow
from semu.validation.row_result import Quantity, Status
from tests.validation.rows_kit import run

UNET = {"kind": "U-Net", "image_size": 512, "unet": {"params": 8.6e8}, "text": "77 tokens, run in the loop (frozen)"}
VIT = {"vision": {"layers": 2, "hidden": 128, "ffn": 512, "heads": 2}, "image_size": 56, "patch": 14}
TOWER = {"layers": 2, "hidden": 128, "ffn": 512, "heads": 2}
KINDS: dict[str, dict[str, Any]] = {
    "vit": VIT,
    "dual": {**VIT, "text": {**TOWER, "context": 16, "vocab": 256}},
    "llava": {**VIT, "llm": {**TOWER, "vocab": 256}, "frozen": ["CLIP ViT", "LLM"]},
    "dit": {**TOWER, "tokens": 256},
    "stdit": {**TOWER, "tokens": 1024, "image_size": 256, "frames": 4, "attention": "spatial then temporal"},
}


def read(changes: dict[str, Any]) -> Row:
    """A row without a transformer."""
    bare = run(model={"name": "m"}, **changes)
    (result,) = parse_rows([bare])
    assert isinstance(result, Row), result
    return result


def tables_of(row: Row) -> dict[str, dict[str, Any]]:
    return run_tables(row, Settings(row.micro_batch or 1, 1, "none"), row.profile)


def test_adapters_are_all_that_trains() -> None:
    (row,) = parse_rows([run(lora={"rank": 4, "targets": "attention (linear_qkv, linear_proj)"})])
    assert isinstance(row, Row)
    model = make_job(tables_of(row)).model
    assert model.num_parameters(trainable_only=True) == 4 * 4 * ((256 + 768) + (256 + 256))  # rank 4 in 4 layers


def test_a_bad_rank_is_named() -> None:
    (row,) = parse_rows([run(lora={"targets": ["linear_qkv"]})])
    assert isinstance(row, BadRow) and "lora.rank" in row.reason


def test_a_run_replaces_the_model_and_keeps_the_rest() -> None:
    tables = {"model": {"name": "sd-2"}, "batch": {"kind": "fixed", "text": 77, "video": 1024}}
    row = read({"run": tables})
    job = make_job(tables_of(row))
    assert job.model.name == "sd-2"
    assert (job.parallel.dp, job.training.global_batch) == (2, 8)


def test_an_unknown_table_of_a_run_is_refused_by_name() -> None:
    row = read({"run": {"model": {"name": "sd-2"}, "modle": {"a": 1}}})
    result = evaluate_row(row, make_job)
    assert result.status is Status.REFUSED and "modle" in str(result.reason)


@pytest.mark.parametrize("kind", list(KINDS))
def test_every_kind_runs(kind: str) -> None:
    result = evaluate_row(read({"multimodal": KINDS[kind]}), make_job)
    assert result.status is Status.OK, result.reason
    assert (result.compared[Quantity.TIME].predicted or 0) > 0


def test_a_unet_may_have_transformers_of_each_level_s_depth() -> None:
    """Stable Diffusion XL: none on the first level, ten on the last."""
    sizes = {"model_channels": 320, "channel_mult": [1, 2, 4], "transformer_depth": [0, 2, 10]}
    table = tables_of(read({"multimodal": {**UNET, "unet": sizes}, "software": "torch"}))["model"]["unet"]
    assert (table["depths"], table["middle_depth"]) == ([0, 2, 10], 10)


@pytest.mark.parametrize(("longest", "text"), [(None, 2048 - 16), (17, 1), (16, 1), (4, 1), (100, 84)])
def test_text_has_what_images_leave_of_the_longest_sample(longest: int | None, text: int) -> None:
    """One token at least; as much as a chat has at most."""
    said = {} if longest is None else {"max_length": longest}
    object_ = {**KINDS["llava"], "frozen": ["CLIP ViT"], "image_tokens": 16, **said}
    batch = tables_of(read({"multimodal": object_, "software": "torch"}))["batch"]
    assert batch["text"] == 16 + min(text, CHAT_TOKENS)
    told = {**object_, "text_tokens": 33}
    assert tables_of(read({"multimodal": told, "software": "torch"}))["batch"]["text"] == 16 + 33


def test_a_network_that_is_left_out_is_said() -> None:
    audio = {"layers": 32, "hidden": 1280, "heads": 20}
    row = read({"multimodal": {**UNET, "audio": audio}, "software": "torch"})
    assert "multimodal.audio is left out" in row.remarks
    assert not any("left out" in remark for remark in read({"multimodal": UNET, "software": "torch"}).remarks)


def test_a_source_s_software_is_read_from_its_words() -> None:
    words = {"attention": "xFormers", "ema": True, "low_precision_norms": True}
    row = read({"multimodal": {**UNET, **words}, "software": "torch", "precision": "fp16 (amp)"})
    training = make_job(tables_of(row)).training
    assert (training.eager_modules, training.weight_average) == (True, True)
    assert training.autocast is Autocast.LOW_PRECISION_NORMS
    assert training.attention_kernel is AttentionKernel.FA1
    assert training.optimizer_kernels is OptimizerKernels.FOREACH
    assert any("torch.compile" in remark for remark in row.remarks)
    words = {"torch_inductor": True, "cuda_graph": True, "channels_last": True}
    row = read({"multimodal": {**UNET, **words}, "software": "torch"})
    training = make_job(tables_of(row)).training
    assert (training.eager_modules, training.launches, training.has_channels_first) == (False, False, False)
    assert (training.autocast, training.weight_average) == (None, False)
    row = read({"multimodal": UNET, "software": "megatron", "precision": "bf16"})
    assert make_job(tables_of(row)).training.optimizer_kernels is OptimizerKernels.FUSED


@pytest.mark.parametrize(
    ("note", "expected"),
    [
        ("Batch of the yaml; its micro batch is 2.", 2),
        ("micro batch is 2 (512 px)", 2),
        ("micro batch is 2 (256 px)", None),
        ("micro batch, vp not published", None),
        (None, None),
    ],
)
def test_notes_tell_an_open_micro_batch(note: str | None, expected: int | None) -> None:
    assert read({"multimodal": UNET, "micro_batch": None, "notes": note}).micro_batch == expected
    assert read({"multimodal": UNET, "micro_batch": 4, "notes": note}).micro_batch == 4


def test_towers_before_transformer_engine_keep_their_scores() -> None:
    old = {"software": "megatron", "software_date": "2023-08"}
    training = make_job(tables_of(read({"multimodal": KINDS["dual"], **old}))).training
    assert (training.attention.value, training.eager_modules, training.launches) == ("unfused", True, False)
    for changes in ({"software_date": "2024-03"}, {"software_date": None}, {"software": "torch"}):
        row = read({"multimodal": KINDS["dual"], **old, **changes})
        assert make_job(tables_of(row)).training.attention.value == "fused"


def test_frames_are_images_to_the_autoencoder() -> None:
    clip = {**KINDS["stdit"], "text": "T5, 8 tokens in the loop (frozen)", "vae": "run in the loop (frozen)"}
    model = {frames: tables_of(read({"multimodal": {**clip, "frames": frames}}))["model"]["dit"] for frames in (1, 4)}
    assert (model[4]["image_latents"], model[1].get("image_latents")) == (32 * 32, None)
    assert evaluate_row(read({"multimodal": clip}), make_job).status is Status.OK


def test_frozen_parts_do_not_train() -> None:
    row = read({"multimodal": KINDS["llava"]})
    trained = {path.split(".")[1] for path, p in make_job(tables_of(row)).model.named_parameters() if p.requires_grad}
    assert trained == {"projector"}


def test_time_follows_from_a_rate() -> None:
    row = read({"multimodal": VIT, "iteration_time_s": None, "measured_values": {"images_per_s": 4.0}})
    assert row.iteration_time_s == 8 / 4.0
    assert "iteration_time_s follows from images_per_s" in row.remarks


def test_open_batches_are_said() -> None:
    changes = {"multimodal": KINDS["dit"], "micro_batch": None, "global_batch": None, "iteration_time_s": None}
    row = read(changes | {"measured_values": {"tokens_per_s_per_gpu": 1024.0}})
    assert row.global_batch == 2 * 32768 // 256
    assert row.iteration_time_s == row.global_batch / (1024 * 2 / 256)


def test_ranks_that_share_samples_have_a_part_each() -> None:
    changes = {"gpus": 4, "sequence_parallel_size": 2, "software": "torch", "multimodal": KINDS["stdit"]}
    row = read(changes)
    assert (row.dp, row.cp, row.global_batch) == (4, 1, 16)
    tables = tables_of(row)
    assert tables["batch"]["video"] == 512 and tables["training"]["software"] == "torch"
    assert read(changes | {"multimodal": KINDS["dit"]}).cp == 2  # full attention


def test_a_model_is_never_read_from_a_name() -> None:
    (bad,) = parse_rows([run(model={"name": "sd-2"}, multimodal={"kind": "U-Net"})])
    assert isinstance(bad, BadRow) and "multimodal" in bad.reason


def test_sizes_go_by_several_names() -> None:
    two_kinds = {"double_blocks": 19, "single_blocks": 38, "hidden_size": 3072, "num_heads": 24, "tokens": 4096}
    run_tables_of, _ = run_of_multimodal(two_kinds)
    sizes = run_tables_of["model"]["dit"]
    assert (sizes["layers"], sizes["hidden"], sizes["heads"]) == (57, 3072, 24)


def test_encoders_in_the_loop_are_said_by_the_object() -> None:
    (with_text, _) = run_of_multimodal({**UNET, "vae": "latents precomputed"})
    assert "caption" in with_text["model"]["unet"] and "vae" not in with_text["model"]["unet"]
    (with_vae, remarks) = run_of_multimodal({**UNET, "vae": "run in the loop (frozen)"})
    assert with_vae["model"]["frozen"] == ["text", "vae"] and with_vae["batch"]["vision"] == 512**2
    assert any("num_res_blocks" in remark for remark in remarks)
    (untold, said) = run_of_multimodal({**UNET, "vae": "not told"})
    assert untold == with_vae and "multimodal.vae taken as run in the loop" in said and said != remarks


@pytest.mark.parametrize("value", [None, 3, "x", [], {}, [{}], True, -1, float("nan")])
@pytest.mark.parametrize(
    "field", ["unet", "vision", "llm", "text", "layers", "image_size", "frames", "tokens", "patch"]
)
def test_nothing_makes_the_reader_crash(field: str, value: object) -> None:
    for kind in KINDS.values():
        (row,) = parse_rows([run(model={}, multimodal={**kind, field: value})])
        assert isinstance(row, Row | BadRow)


def test_captions_of_two_towers_have_as_many_tokens_as_clip_s_unless_a_row_says_it() -> None:
    """CLIP: 77 tokens of a vocabulary of 49,408 (2103.00020, 2.4); every caption has all of them."""
    for said, context, vocab in (({}, 77, 49408), ({"context": 16, "vocab": 256}, 16, 256)):
        tables = tables_of(read({"multimodal": {**VIT, "text": {**TOWER, **said}}}))
        text = tables["model"]["dual"]["text"]
        assert (text["positions"], text["vocab"], tables["batch"]["text_tokens"]) == (context, vocab, context)
