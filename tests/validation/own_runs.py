"""Two small runs of one's own, a text model and a VLM, and ways to write what a profiler or a framework would."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from semu import Report, simulate
from semu.engine.timeline import RankTimeline
from semu.graph.operator import OpKind
from semu.job import TrainingJob
from semu.runfile import load_run

TEXT = """
[model.transformer]
layers = 8
hidden = 1024
ffn = 4096
heads = 16
vocab = 8192
[cluster]
device = "h100"
nodes = 1
gpus_per_node = 8
[parallel]
dp = 2
tp = 2
pp = 2
zero = 1
[training]
micro_batch = 1
global_batch = 8
seq_len = 2048
"""


class OwnRun(NamedTuple):
    """A run: how the command line names it, and what it is."""

    words: tuple[str, ...]
    job: TrainingJob
    report: Report


def text_run(folder: Path) -> OwnRun:
    path = folder / "run.toml"
    path.write_text(TEXT)
    return OwnRun(("--run", str(path)), load_run(path), _text_report())


@cache
def _text_report() -> Report:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.toml"
        path.write_text(TEXT)
        return simulate(load_run(path))


@cache
def vlm_run() -> OwnRun:
    sets = ["training.global_batch=4"]
    job = load_run("vlm-s", sets)
    return OwnRun(("--run", "vlm-s", "--set", sets[0]), job, simulate(job))


def own_runs(folder: Path) -> list[OwnRun]:
    return [text_run(folder), vlm_run()]


KERNELS = {
    OpKind.MATMUL: "nvjet_hsh_256x128_64x4_2x1_v_bz_coopA_TNT",
    OpKind.ATTENTION_FORWARD: "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128, 128>>",
    OpKind.ATTENTION_BACKWARD: "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<...>",
    OpKind.NORM: "void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<...>",
    OpKind.SOFTMAX: "void scaled_upper_triang_masked_softmax_warp_forward<c10::Half, c10::Half, float, 11>",
    OpKind.ACTIVATION: "void at::native::vectorized_elementwise_kernel<4, at::native::silu_kernel>",
    OpKind.ADD: "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>",
    OpKind.ROPE: "void fused_rope_forward_kernel<c10::BFloat16>",
    OpKind.DROPOUT: "void at::native::fused_dropout_kernel_vec<c10::BFloat16>",
    OpKind.MODULATE: "triton_poi_fused_add_mul_12",
    OpKind.COPY: "void at::native::elementwise_kernel<128, 4, direct_copy_kernel_cuda>",
    OpKind.CAST: "void transformer_engine::cast_transpose_kernel<...>",
    OpKind.GROUPED_MATMUL: "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_grouped",
    OpKind.PERMUTE: "_permute_kernel",
    OpKind.TOP_K: "fused_topk_with_score_function_forward_kernel",
    OpKind.EMBEDDING: "void at::native::indexSelectLargeIndex<c10::BFloat16>",
    OpKind.CROSS_ENTROPY: "void at::native::cunn_SoftMaxForward<8, LogSoftMaxForwardEpilogue> log_softmax",
    OpKind.CUSTOM: "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<float, sum_functor>>",
    OpKind.OPTIMIZER: "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>",
    OpKind.ALL_REDUCE: "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    OpKind.ALL_GATHER: "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    OpKind.REDUCE_SCATTER: "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    OpKind.ALL_TO_ALL: "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    OpKind.P2P: "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
}
"""What a profiler would call semu's operators."""


def operators(rank: RankTimeline) -> list[tuple[OpKind, float, float]]:
    """(kind, start, end) [s] of all that a rank does."""
    found = [(piece.kind, piece.start_s, piece.end_s) for piece in rank.outer]
    for _, stage in rank.stage_operators():
        found += zip(stage.table.kinds, stage.start_s.tolist(), stage.end_s.tolist(), strict=True)
    return found


def kernel(name: str, ts: float, dur: float, *, tid: int = 7, correlation: int = 0, **more: Any) -> dict[str, Any]:
    """One kernel event, times in us."""
    arguments = {"stream": tid, "correlation": correlation, **more.pop("args", {})}
    event = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": tid, "ts": ts, "dur": dur, "args": arguments}
    return {**event, **more}


def launch(ts: float, correlation: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaLaunchKernel",
        "pid": 99,
        "tid": 99,
        "ts": ts,
        "dur": 1.0,
        "args": {"correlation": correlation},
    }


def step(number: int, ts: float, dur: float, category: str = "user_annotation", tid: int = 99) -> dict[str, Any]:
    pid = 99 if category == "user_annotation" else 0
    return {"ph": "X", "cat": category, "name": f"ProfilerStep#{number}", "pid": pid, "tid": tid, "ts": ts, "dur": dur}


def write_trace(path: Path, *events: dict[str, Any], **header: Any) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, **header, "traceEvents": list(events)}))
    return path


def megatron_line(number: int, time_ms: float, *, batch: int | None = 8, samples: int | None = None) -> str:
    told = "" if batch is None else f" global batch size: {batch:5d} |"
    consumed = number * (batch or 0) if samples is None else samples
    return (
        f" [2025-01-01 00:00:00] iteration {number:8d}/    1000 | consumed samples: {consumed:12d} | elapsed time per "
        f"iteration (ms): {time_ms:.1f} | learning rate: 1.000000E-06 |{told} lm loss: 1.052E+01 | grad norm: 1.0 |"
    )


def memory_line(rank: int, allocated: float, max_allocated: float, max_reserved: float) -> str:
    return (
        f"[Rank {rank}] (after 2 iterations) memory (MB) | allocated: {allocated} | max allocated: {max_allocated} | "
        f"reserved: {max_reserved} | max reserved: {max_reserved}"
    )


def titan_line(number: int, rate: int, *, word: str = "tps", memory: float = 12.5, rank: int = 0) -> str:
    return (
        f"[rank{rank}]:[titan] 2025-05-01 00:00:00,123 - root - INFO - \x1b[31mstep: {number:2}  \x1b[32mloss: 10.1  "
        f"\x1b[33mmemory: {memory:5.2f}GiB(15.3%)  \x1b[34m{word}: {rate:,}  \x1b[35mmfu: 40.40%\x1b[39m"
    )
