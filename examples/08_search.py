"""A schedule made for the batch at hand: searched, compared with Megatron-LM's, written, run again, looked into."""

import tempfile
from dataclasses import replace
from pathlib import Path

import semu
from semu.runfile import load_run

GIB = 1 << 30
job = load_run("vlm-s")
found = semu.search(job, rollouts=300, seed=0)  # or time_s=10.0: better, and different every time
print(found)
assert found.baseline is not None
print(f"{found.baseline.iteration_time_s / found.report.iteration_time_s:.2f} x as fast, gap {found.gap:.1%}")

for module in found.partition.modules:  # DIP §4: sub-microbatches, segments, layers of chunks
    print(module.name, module.sub_batch, module.segments, module.layers, [max(own) for own in module.parts])

for one in found.curve[-3:]:
    print(f"{one.time_s:.2f} s, {one.rollouts} rollouts: {one.makespan_s:.4f} s")

with tempfile.TemporaryDirectory() as folder:  # schedule.json, result.json, timeline.png, memory.png, curve.png
    for file in found.save(folder):
        print(file.name)
    path = str(Path(folder) / "schedule.json")
    again = semu.simulate(replace(job, training=replace(job.training, schedule_file=path)))
    assert again.iteration_time_s == found.report.iteration_time_s

tight = semu.search(job, rollouts=300, memory_limit_bytes=32 * GIB)  # strategies per layer trade time for memory
print(f"{max(tight.report.peak_memory_bytes) / GIB:.2f} GiB: {tight.report.iteration_time_s:.3f} s")
halves = semu.search(job, rollouts=300, sub_batch={"vit": 4}, strategies=("none", "full"))
print(f"sub-microbatches of 4 images: {halves.report.iteration_time_s:.3f} s")

try:
    semu.search(job, rollouts=0, memory_limit_bytes=12 * GIB)
except semu.SemuError as error:
    print(error)
