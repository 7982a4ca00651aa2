"""A row becomes the job that a run file of the same settings describes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import semu
from semu.errors import ConfigError
from semu.hardware.cluster import Cluster
from semu.job import Training, TrainingJob
from semu.nn import Model
from semu.parallel.config import Overlap, Parallel
from semu.runfile import load_run, make_job
from semu.runfile.transformer import TransformerConfig
from semu.validation.jobs import Settings, layers_of_chunks, may_hide_exchanges, run_tables
from tests.validation.rows_kit import plain_job, row

GPT_RUN = """\
[model.transformer]
layers = 4
hidden = 256
ffn = 1024
heads = 4
vocab = 1024
tied_embeddings = true
positions = 512

[cluster]
device = "h100"
nodes = 1
gpus_per_node = 2

[parallel]
dp = 2
sequence_parallel = false
zero = 1

[training]
micro_batch = 2
global_batch = 8
seq_len = 512
precision = "bf16"
"""

LLAMA_RUN = """\
[model.transformer]
layers = 3
hidden = 512
ffn = 1408
heads = 8
kv_heads = 4
head_dim = 64
vocab = 1535
vocab_multiple = 128
gated_mlp = true
rms_norm = true
rotary = true
bias = false
qkv_bias = true

[cluster]
device = "h100"
nodes = 2
gpus_per_node = 8

[parallel]
dp = 4
tp = 4
sequence_parallel = true
zero = 0

[training]
micro_batch = 1
global_batch = 12
seq_len = 1024
precision = "fp16"
grad_dtype = "fp16"
recompute = "full"

[overlap]
grad_reduce = false
tensor_parallel = true
"""

LLAMA_ROW: dict[str, Any] = {
    "model.layers": 3,
    "model.hidden": 512,
    "model.ffn_hidden": 1408,
    "model.heads": 8,
    "model.kv_heads": 4,
    "model.vocab": 1535,  # padded for four tensor-parallel ranks
    "model.seq_len": 1024,
    "model.gated_mlp": True,
    "model.tied_embeddings": False,
    "model.norm": "rmsnorm",
    "model.position": "rope",
    "model.bias_linear": False,
    "model.attention_bias": True,
    "model.activation": "swiglu",
    "profile": "h100",
    "gpus": 16,
    "dp": 4,
    "tp": 4,
    "micro_batch": 1,
    "global_batch": 12,
    "sequence_parallel": True,
    "precision_kind": "fp16",
    "recompute_kind": "full",
    "sharding_kind": "none",
    "overlap": {"dp_grad_reduce": False, "tp_comm": True, "dp_param_gather": None},
}


GPT_ROW: dict[str, Any] = {"model.position": "learned", "profile": "h100"}


def job_of_row(changes: dict[str, Any]) -> TrainingJob:
    read = row(changes)
    assert read.micro_batch is not None
    assert read.vp is not None
    return make_job(run_tables(read, Settings(read.micro_batch, read.vp, read.recompute), read.profile))


@pytest.mark.parametrize(("text", "changes"), [(GPT_RUN, GPT_ROW), (LLAMA_RUN, LLAMA_ROW)])
def test_a_row_is_the_job_of_its_run_file(text: str, changes: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    assert semu.simulate(job_of_row(changes)).to_json() == semu.simulate(load_run(path)).to_json()


def test_a_row_is_the_job_made_by_hand() -> None:
    from semu_models.text.decoder import decoder_model
    from semu_models.text.gpt import GPT, GPTConfig

    model: Model = decoder_model("by hand", GPT(GPTConfig(layers=4, hidden=256, heads=4, vocab=1024, positions=512)))
    job = TrainingJob(
        model,
        Cluster("h100", nodes=1, gpus_per_node=2),
        Parallel(dp=2, sequence_parallel=False, zero=1),
        Training(micro_batch=2, global_batch=8, seq_len=512, overlap=Overlap(grad_reduce=False)),
    )
    mine, reference = (
        semu.simulate(other) for other in (job_of_row({**GPT_ROW, "overlap": {"dp_grad_reduce": False}}), job)
    )
    assert mine.iteration_time_s == reference.iteration_time_s
    assert mine.peak_memory_bytes == reference.peak_memory_bytes
    assert (mine.parameters, mine.model_flop) == (reference.parameters, reference.model_flop)


def tables(changes: dict[str, Any], vp: int = 1, recompute: str = "none") -> dict[str, dict[str, Any]]:
    return run_tables(row(changes), Settings(2, vp, recompute), "h100")


LEARNED = {"model.position": "learned"}
FORMULA = {"trust": "formula", "peak_mem_scope": "first_stage", "peak_mem_measure": "analytic"}
MOE = {"num_experts": 8, "topk": 2, "moe_ffn_hidden": 768, "shared_expert_ffn": None}


@pytest.mark.parametrize(
    ("changes", "place", "value"),
    [
        ({"sharding_kind": "none"}, "parallel.zero", 0),
        ({"sharding_kind": "zero2"}, "parallel.zero", 3),
        ({"sharding_kind": "zero2"}, "parallel.reshard_after_forward", False),
        ({"sharding_kind": "zero2", "overlap": {"dp_grad_reduce": True}}, "parallel.zero", 2),
        ({"sharding_kind": "zero2", "software": "megatron", "pp": 2, "gpus": 4}, "parallel.zero", 1),
        ({"sharding_kind": "fsdp"}, "parallel.zero", 3),
        ({"sharding_kind": "fsdp", "pp": 2, "gpus": 4}, "parallel.zero", 3),
        ({"sharding_kind": "fsdp"}, "parallel.reshard_after_forward", True),
        ({"sharding_kind": "fsdp", "pp": 2, "gpus": 4}, "parallel.reshard_after_forward", False),
        ({"zero_group": 2}, "parallel.zero_group", None),
        ({"zero_group": 1}, "parallel.zero_group", 1),
        ({"cp": 2, "gpus": 4}, "parallel.cp", 2),
        ({"ep": 2}, "parallel.ep", 2),
        ({}, "parallel.layout", None),
        ({"gpus": 16, "dp": 16, "global_batch": 32}, "cluster.nodes", 2),
        ({"gpus": 16, "dp": 16, "global_batch": 32}, "cluster.gpus_per_node", 8),
        ({}, "cluster.gpus_per_node", 2),
        ({"precision_kind": "fp8"}, "training.precision", "fp8"),
        ({"schedule_kind": "1f1b"}, "training.schedule", "1f1b"),
        ({"schedule_kind": "zb-auto"}, "training.schedule", "zb-auto"),
        ({"schedule_kind": "zb-auto", "sharding_kind": "none"}, "training.optimizer_post_validation", True),
        ({"schedule_kind": "zb-auto", "sharding_kind": "zero1"}, "training.optimizer_post_validation", None),
        (
            {"schedule_kind": "zb-auto", "sharding_kind": "zero1", "overlap": {"dp_param_gather": False}},
            "training.optimizer_post_validation",
            True,
        ),
        ({"schedule_kind": "dualpipe"}, "parallel.placement", "v-shape"),
        ({"schedule_kind": "dualpipe"}, "overlap.expert_parallel", None),
        ({"schedule_kind": "dualpipe", "ep": 2, "model.moe": MOE}, "overlap.expert_parallel", True),
        ({"schedule_kind": "zb-v", "ep": 2, "model.moe": MOE}, "overlap.expert_parallel", None),
        ({"model.layers": 5, "pp": 4, "gpus": 8}, "parallel.partition", "latency"),
        ({"model.layers": 4, "pp": 2, "gpus": 4}, "parallel.partition", None),
        ({"activation_limit": "2p"}, "training.activation_limit", "2p"),
        ({}, "training.attention", None),
        ({"attention": "flash"}, "training.attention", None),
        ({"attention": "auto (whatever is there)"}, "training.attention", None),
        ({"attention": "unfused"}, "training.attention", "unfused"),
        ({"attention": "local"}, "training.attention", "unfused"),
        (FORMULA, "training.attention", "unfused"),
        ({"precision_kind": "fp16", **LEARNED}, "training.attention", "unfused"),
        ({**LEARNED}, "training.attention", "unfused"),  # bf16 on an A100
        ({"software_date": "2022-05", "software": "torch"}, "training.attention", "unfused"),  # before FlashAttention
        ({"software_date": "2022-06"}, "training.attention", None),
        ({**LEARNED}, "model.transformer.dropout", 0.1),
        ({**LEARNED, "profile": "h100"}, "training.attention", None),
        ({**LEARNED, "profile": "no device"}, "training.attention", None),
        ({**LEARNED, "attention": "flash"}, "training.attention", None),
        ({"precision_kind": "fp16", "attention": "flash", **LEARNED}, "training.attention", None),
        ({"precision_kind": "fp16", "sharding_kind": "fsdp", **LEARNED}, "training.attention", None),
        ({"precision_kind": "fp16", "model.position": "rope"}, "training.attention", None),
        ({"precision_kind": "fp16", "cp": 2, "gpus": 4, **LEARNED}, "training.attention", None),
        ({"attention_kernel": "fa3"}, "training.attention_kernel", "fa3"),
        ({"attention_kernel": "xFormers"}, "training.attention_kernel", "fa1"),
        ({"attention_kernel": "flash"}, "training.attention_kernel", None),
        ({"moe_dispatcher": "hybridep", "model.moe": MOE}, "training.moe_dispatcher", "deepep"),
        ({}, "training.workspaces", None),
        ({"peak_mem_measure": "allocated"}, "training.workspaces", "transformer_engine"),
        ({"peak_mem_measure": "printed_gb"}, "training.workspaces", None),
        ({"peak_mem_measure": "reserved"}, "training.workspaces", None),
        ({"peak_mem_measure": "allocated", "sharding_kind": "fsdp"}, "training.workspaces", None),
        ({"attention": "auto (whatever is there)"}, "training.workspaces", "transformer_engine"),
        ({"attention": "local"}, "training.workspaces", "torch"),
        ({**FORMULA, "attention": "local"}, "training.workspaces", None),
        ({}, "training.grad_dtype", None),
        ({"precision_kind": "fp16"}, "training.grad_dtype", "fp16"),
        ({"precision_kind": "fp16", "grad_dtype": "fp32 (main grads)"}, "training.grad_dtype", "fp32"),
        ({"precision_kind": "fp16", "grad_dtype": "who knows"}, "training.grad_dtype", "fp16"),
        ({**FORMULA, "precision_kind": "fp16"}, "training.grad_dtype", None),
        ({"layout": {"first": 1, "last": 1}}, "parallel.layout", {"first": 1, "last": 1}),
        ({}, "model.transformer.dropout", 0.0),
        ({"attention": "unfused"}, "model.transformer.dropout", 0.1),
        ({"attention": "unfused", "model.dropout": 0.2}, "model.transformer.dropout", 0.2),
        ({"model.vocab_padded": 1280}, "model.transformer.vocab", 1280),
        (FORMULA, "model.transformer.vocab", 1),
        (FORMULA, "model.transformer.positions", None),
        (LEARNED, "model.transformer.positions", 512),
        ({**LEARNED, "model.max_position_embeddings": 2048}, "model.transformer.positions", 2048),
        ({"model.position": "rope"}, "model.transformer.positions", None),
        ({"model.position": "rope"}, "model.transformer.rotary", True),
        ({"model.moe": MOE}, "model.transformer.experts", 8),
        ({"model.moe": MOE}, "model.transformer.top_k", 2),
        ({"model.moe": MOE}, "model.transformer.moe_ffn", 768),
        ({"model.moe": MOE}, "model.transformer.shared_ffn", None),
        ({"model.moe": {**MOE, "layer_freq": 2}}, "model.transformer.moe_layer_freq", 2),
        ({"model.moe": MOE, "etp": 2}, "parallel.etp", 2),
        ({"model.moe": MOE}, "training.moe_grouped_gemm", None),
        ({"model.moe": {**MOE, "grouped_gemm": False}}, "training.moe_grouped_gemm", False),
        ({"etp": 2}, "parallel.etp", None),
        ({"model.mla": {"q_lora_rank": 192, "v_head_dim": None}}, "model.transformer.mla", {"q_lora_rank": 192}),
        ({"model.mtp_layers": 1}, "model.transformer.mtp_layers", 1),
        ({}, "overlap.param_gather", None),
        ({"overlap": {"fsdp_prefetch": True}}, "overlap.param_gather", True),
        ({"overlap": {"fsdp_prefetch": True, "dp_param_gather": False}}, "overlap.param_gather", False),
        ({"overlap": {"pp_p2p": True}}, "overlap.pipeline", True),
        ({"overlap": {"tp_comm": True}}, "overlap.pipeline", None),  # there is none
    ],
)
def test_what_a_field_means(changes: dict[str, Any], place: str, value: object) -> None:
    table: Any = tables(changes)
    *path, key = place.split(".")
    for part in path:
        table = table[part]
    assert table.get(key) == value


@pytest.mark.parametrize(
    ("told", "moe", "covered"),
    [
        (["moe", "mlp"], None, ["mlp"]),
        (["moe"], None, "none"),
        (["moe_act", "mlp", "shared_experts", "layernorm"], MOE, ["moe_act", "layernorm"]),
        (["moe_act", "mlp"], {**MOE, "dense_layers": 1}, ["moe_act", "mlp"]),
        (["mla_up_proj", "shared_experts"], {**MOE, "shared_expert_ffn": 256}, ["shared_experts"]),
    ],
)
def test_modules_that_a_model_lacks_are_not_recomputed(told: list[str], moe: object, covered: object) -> None:
    changes = {"recompute_kind": "selective", "recompute_modules": told, "model.moe": moe}
    assert tables(changes, recompute="selective")["training"]["recompute"] == covered


def test_several_chunks_per_rank_are_interleaved() -> None:
    changes = {"pp": 2, "gpus": 4, "schedule_kind": "interleaved"}
    result = tables(changes, vp=2)
    assert (result["parallel"]["vpp"], result["training"]["schedule"]) == (2, "interleaved")
    assert result["parallel"]["layout"] == {"layers": [1, 1, 1, 1]}
    assert tables(changes, vp=1)["training"]["schedule"] == "1f1b"


@pytest.mark.parametrize("global_batch", [8, 16, 400])
def test_a_closed_form_runs_until_its_pipeline_is_full(global_batch: int) -> None:
    pipeline = {**FORMULA, "pp": 4, "gpus": 8, "dp": 2, "global_batch": global_batch}
    assert tables(pipeline)["training"]["global_batch"] == 2 * 4 * 2 * 2  # 2 pp microbatches on dp replicas, of two


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"sharding_kind": "zero9"}, "sharding_kind"),
        ({"model.norm": "batchnorm"}, "model.norm"),
        ({"model.position": "alibi"}, "model.position"),
        ({"model.activation": "swiglu"}, "model.activation"),
        ({"model.activation": "squared_gelu", "model.gated_mlp": True}, "model.activation"),
        ({"model.moe": {"num_experts": 8}}, "model.moe.topk"),
    ],
)
def test_words_and_sizes_that_semu_does_not_know(changes: dict[str, Any], where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        tables(changes)
    assert caught.value.where == where


@given(layers=st.integers(1, 200), chunks=st.integers(1, 64))
def test_layers_are_shared_out_evenly(layers: int, chunks: int) -> None:
    even = layers % chunks == 0
    if not even and (layers + 2) % chunks:
        with pytest.raises(ConfigError):
            layers_of_chunks(layers, chunks)
        return
    counts = layers_of_chunks(layers, chunks)
    assert (sum(counts), len(counts)) == (layers, chunks)
    assert len(set(counts[1:-1])) <= 1
    assert counts[0] == counts[-1]
    assert even == (len(set(counts)) == 1)
    assert even or counts[0] == counts[1] - 1


@given(vocab=st.integers(1, 200_000), tp=st.sampled_from([1, 2, 3, 4, 8]))
def test_a_vocabulary_is_padded_as_megatron_does(vocab: int, tp: int) -> None:
    changes = {"model.vocab": vocab, "tp": tp, "gpus": 2 * tp}
    table = tables(changes)["model"]["transformer"]
    rows = TransformerConfig.from_table(table).table_rows(tp)
    assert vocab <= rows < vocab + 128 * tp
    assert rows == vocab if tp == 1 else rows % (128 * tp) == 0


def test_which_vocabularies_are_padded() -> None:
    def multiple(changes: dict[str, Any]) -> object:
        return tables(changes)["model"]["transformer"].get("vocab_multiple")

    assert multiple({}) is None
    assert multiple({"pp": 2, "gpus": 4, "schedule_kind": "1f1b"}) == 128
    assert multiple({"tp": 2, "gpus": 4}) == 128
    assert multiple({"tp": 2, "gpus": 4, "model.vocab_padded": 1280}) is None
    assert multiple({"tp": 2, "gpus": 4, "sharding_kind": "fsdp"}) is None
    assert multiple({"tp": 2, "gpus": 4, "sharding_kind": "fsdp", "model.vocab": 1023}) == 128
    assert multiple({**FORMULA, "tp": 2, "gpus": 4}) is None


def test_settings_that_run_files_lack_are_refused_by_name() -> None:
    wanted = tables({})
    wanted["parallel"]["unheard_of"] = 3
    with pytest.raises(ConfigError) as caught:
        make_job(wanted)
    assert caught.value.where == "parallel.unheard_of"
    wanted["training"]["schedule"] = "unheard-of"  # a word that semu knows to be wrong comes first
    with pytest.raises(ConfigError) as caught:
        make_job(wanted)
    assert caught.value.where == "training.schedule"


def test_unknown_tables_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        make_job({**tables({}), "extras": {"a": 1}})
    assert caught.value.where == "extras"


def test_a_pipeline_can_be_simulated() -> None:
    report = semu.simulate(plain_job(tables({"pp": 2, "gpus": 4, "schedule_kind": "1f1b"})))
    assert len(report.peak_memory_bytes) == 2


@pytest.mark.parametrize(
    ("recompute", "words"),
    [
        ("none", {"recompute": "none"}),
        ("full", {"recompute": "full"}),
        ("selective", {"recompute": "full", "recompute_policy": "every_second_matmul"}),
    ],
)
def test_fsdp_rows_have_torchtitans_policy_and_pytorchs_loss(recompute: str, words: dict[str, str]) -> None:
    read = row(sharding_kind="fsdp", recompute_kind=recompute)
    training = run_tables(read, Settings(1, 1, recompute), "h100")["training"]
    assert {key: training[key] for key in words} == words
    assert ("recompute_policy" in training) == ("recompute_policy" in words)
    assert training["cross_entropy"] == "unfused"
    other = run_tables(row(recompute_kind=recompute), Settings(1, 1, recompute), "h100")["training"]
    assert other["recompute"] == recompute
    assert "cross_entropy" not in other


@pytest.mark.parametrize(
    ("changes", "vp", "may"),
    [
        ({}, 2, True),
        ({}, 1, False),  # no virtual stages
        ({"pp": 1, "dp": 4}, 2, False),
        ({"ep": 1}, 2, False),
        ({"model.moe": None}, 2, False),
        ({"overlap": {"moe_a2a": False}}, 2, False),  # the row says it
        ({"software_date": "2025-09"}, 2, True),  # the month of Megatron-LM 0.14
        ({"software_date": "2025-08"}, 2, False),
        ({"software": "torch"}, 2, False),
    ],
)
def test_when_exchanges_may_hide_without_a_word(changes: dict[str, Any], vp: int, may: bool) -> None:
    base = {"software": "megatron", "model.moe": MOE, "pp": 2, "dp": 2, "ep": 2, "gpus": 4, "global_batch": 16}
    assert may_hide_exchanges(row({**base, **changes}), vp) is may


@pytest.mark.parametrize("sharding", ["zero1", "fsdp"])
def test_the_first_layers_are_offloaded(sharding: str) -> None:
    """As a run file says it; memory falls by what the layers keep, and the host has it."""

    def report(**more: Any) -> semu.Report:
        settings = Settings(2, 1, "full")
        return semu.simulate(make_job(run_tables(row(sharding_kind=sharding, **more), settings, "a100-80g")))

    plain, moved = report(), report(cpu_offloading="2 of 4")
    inputs = 2 * 2 * 512 * 256  # bytes of a layer's input: bf16, 2 sequences of 512 tokens, 256 wide
    assert moved.host_memory_bytes == (2 * inputs,)
    assert plain.ranks[0].activation_bytes - moved.ranks[0].activation_bytes == 2 * inputs
