"""How long one training step of a vision-language model takes on 64 H800, under three parallel configurations."""

import semu
import semu_models

for parallel in (
    semu.Parallel(dp=8, tp=2, pp=4),
    semu.Parallel(dp=8, tp=2, pp=4, partition="latency"),
    semu.Parallel(dp=4, tp=4, pp=4, partition="latency"),
):
    job = semu.TrainingJob(
        model=semu_models.vlm_m(),
        cluster=semu.Cluster("h800", nodes=8, gpus_per_node=8),
        parallel=parallel,
        training=semu.Training(micro_batch=1, global_batch=128, recompute="full"),
        batch=semu.workload.vlm_batch(seed=0),
    )
    report = semu.simulate(job)
    print(
        f"{parallel.label():14} stages cut by {parallel.partition:10} {report.iteration_time_s:7.3f} s  "
        f"MFU {report.mfu:5.1%}  bubble {report.bubble_ratio:5.1%}  "
        f"peak {max(report.peak_memory_bytes) / 2**30:5.1f} GiB"
    )

print()
print(report)
