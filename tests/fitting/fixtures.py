"""Small files in the formats of the real ones."""

from __future__ import annotations

import json
from pathlib import Path

GEMM_HEADER = "device,dtype,m,n,k,batch,time_us,time_us_min,time_us_max,n_src,source,note\n"

NCCL_TEXT = """\
# Collective test starting: {test}_perf
# nThread 1 nGpus 1 minBytes 1024 maxBytes 1048576 step: 4(factor) warmup iters: 5 iters: 20 agg iters: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid   4242 on    node-1 device  0 [0000:18:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   4243 on    node-1 device  1 [0000:2a:00] NVIDIA H100 80GB HBM3
#  Rank  2 Group  0 Pid   4244 on    {host} device  2 [0000:3a:00] NVIDIA H100 80GB HBM3
#  Rank  3 Group  0 Pid   4245 on    {host} device  3 [0000:5d:00] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           0             0     float     sum      -1     0.10    0.00    0.00      0     0.10    0.00    0.00      0
        1024           256     float     sum      -1    11.20    0.09    0.14      0    11.04    0.09    0.14      0
       65536         16384     float     sum      -1    13.41    4.89    7.33      0    13.33    4.92    7.37      0
     1048576        262144     float     sum      -1    {time}   50.00   75.00      0    20.96   50.02   75.04      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 20.6194
#
"""


def nccl_json() -> str:
    """What ``all_gather_perf -J`` writes."""
    devices = [{"rank": i, "group": 0, "pid": 40 + i, "hostname": "node-1", "device": i} for i in range(8)]
    results = [
        {
            "size": size,
            "count": size // 32,
            "type": "float",
            "redop": "none",
            "root": "-1",
            "out_of_place": {"time": time, "alg_bw": size / time * 1e-3, "bus_bw": 0.9, "nwrong": "N/A"},
            "in_place": {"time": time * 0.9, "alg_bw": 1.0, "bus_bw": 0.9, "nwrong": "N/A"},
        }
        for size, time in ((1 << 20, 30.0), (1 << 26, 220.0))
    ]
    return json.dumps(
        {
            "version": 1,
            "args": ["./build/all_gather_perf", "-b", "1M", "-e", "64M"],
            "devices": devices,
            "results": results,
        }
    )


def trace(*, with_shapes: bool = True) -> dict[str, object]:
    """A trace of torch.profiler with a product, fused attention, a norm and a kernel of no operator."""
    operators = [
        ("aten::mm", 1, [[4096, 2048], [2048, 8192]], ["c10::BFloat16", "c10::BFloat16"], ["", ""]),
        (
            "aten::_scaled_dot_product_flash_attention",
            2,
            [[2, 16, 4096, 128], [2, 4, 4096, 128], [2, 4, 4096, 128], [], [], [], []],
            ["c10::BFloat16"] * 3 + ["Scalar"] * 4,
            ["", "", "", "0.", "True", "False", ""],
        ),
        ("aten::native_layer_norm", 3, [[8192, 4096], [], [4096], [4096], []], ["c10::BFloat16"] * 4 + ["Scalar"], []),
        ("aten::cumsum", 4, [[8192, 4096], []], ["float", "Scalar"], []),
    ]
    kernels = [
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", 1, 230.0),
        ("splitKreduce_kernel for gemm", 1, 10.0),
        ("flash_fwd_kernel<Flash_fwd_kernel_traits<128,128,64>>", 2, 310.0),
        ("vectorized_layer_norm_kernel<c10::BFloat16>", 3, 65.0),
        ("scan_kernel", 4, 50.0),
    ]
    events: list[dict[str, object]] = []
    for name, identity, dims, types, concrete in operators:
        arguments: dict[str, object] = {"External id": identity}
        if with_shapes:
            arguments |= {"Input Dims": dims, "Input type": types, "Concrete Inputs": concrete}
        events.append({"ph": "X", "cat": "cpu_op", "name": name, "ts": 10.0 * identity, "dur": 5.0, "args": arguments})
    for name, identity, duration in kernels:
        events.append(
            {
                "ph": "X",
                "cat": "kernel",
                "name": name,
                "ts": 1000.0 * identity,
                "dur": duration,
                "args": {"External id": identity},
            }
        )
    return {"schemaVersion": 1, "traceEvents": events}


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)
