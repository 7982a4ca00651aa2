"""A profile of one's own: measured kernels in a CSV, coefficients fitted to them, a training step simulated on both."""

import random
import tempfile
from itertools import product
from pathlib import Path

import semu
import semu_models
from semu.fitting.calibration import calibrate
from semu.fitting.readers import read_measurements
from semu.fitting.write import Provenances, profile_text
from semu.hardware.profile import load_profile

folder = Path(tempfile.mkdtemp())
table, rng = folder / "gemm.csv", random.Random(0)
rows = ["device,dtype,m,n,k,time_us,source"]
for m, n, k in product((512, 1024, 2048, 4096, 8192), (1024, 4096, 12288), (1024, 4096, 8192)):
    compute_s, memory_s = 2 * m * n * k / 560e12, 2 * (m * n + m * k + n * k) / 2.4e12  # a GPU with less power
    time_us = (5e-6 + (compute_s**3 + memory_s**3) ** (1 / 3)) * rng.gauss(1, 0.03) * 1e6
    rows.append(f"H100-SXM,bf16,{m},{n},{k},{time_us:.2f},mine")
table.write_text("\n".join(rows) + "\n")

calibration = calibrate(read_measurements([table], "h100"), load_profile("h100"))
profile = folder / "h100-mine.toml"
profile.write_text(profile_text(calibration, "h100-mine", "h100", Provenances("examples/05_calibrate.py")))
print(profile.read_text().split("\n\n")[1])

for device in ("h100", str(profile)):
    job = semu.TrainingJob(
        model=semu_models.build("llama3-8b"),
        cluster=semu.Cluster(device, nodes=1, gpus_per_node=8),
        parallel=semu.Parallel(dp=4, tp=2, zero=1),
        training=semu.Training(micro_batch=1, global_batch=32, seq_len=8192, recompute="full"),
    )
    report = semu.simulate(job)
    low, high = report.iteration_time_interval_s
    most = ", ".join(item.kind for item in report.uncertainty.kinds[:3])
    print(f"{job.profile.name:10} {report.iteration_time_s:.3f} s, 90 % within {low:.3f} to {high:.3f} s, for {most}")
