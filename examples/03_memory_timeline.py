"""Memory of every pipeline rank over one iteration: numbers, the operator at the peak, and a picture."""

import sys
from pathlib import Path

import semu
import semu_models
from semu.present.plots import draw_memory

out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("out")
out.mkdir(parents=True, exist_ok=True)

for recompute in ("none", "full"):
    job = semu.TrainingJob(
        model=semu_models.lm_7b(),
        cluster=semu.Cluster("h800", nodes=1, gpus_per_node=8),
        parallel=semu.Parallel(tp=2, pp=4),
        training=semu.Training(global_batch=16, seq_len=4096, recompute=recompute),
    )
    report = semu.simulate(job)
    print(f"recompute {recompute}: {report.iteration_time_s:.3f} s")
    for rank in report.timeline.ranks:
        peak = rank.peak
        parts = ", ".join(f"{role.value} {size / 2**30:.2f}" for role, size in peak.by_role.items() if size)
        print(f"  rank {rank.rank}: {peak.size_bytes / 2**30:6.2f} GiB in {peak.stage} at {peak.operator} ({parts})")
    path = out / f"memory_{recompute}.png"
    draw_memory(path, report.timeline, title=f"LM 7B, recompute {recompute}")
    print(f"  wrote {path}")
