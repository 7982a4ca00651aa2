"""Every iteration planned while the one before it trains; what happens to plans that are late."""

import tempfile
from pathlib import Path

import semu
from semu.runfile import load_run
from semu.searcher.planner.training_loop import IterationRow, train
from semu.searcher.planner.training_report import TrainingReport
from semu.workload import read_stream, write_stream

job = load_run("vlm-s", ["training.global_batch=4"])
planner = semu.Planner(job, [semu.workload.vlm_batch(seed=seed) for seed in range(3)], rollouts=50, patience_s=None)
with planner:
    for step in planner:  # a training loop: the plan is there, the next one is being made
        print(step.index, step.outcome.value, f"{step.latency_s:.2f} s", f"{step.rollouts} rollouts")
        report = semu.simulate(step.job, plan=step.plan)  # or train by it
        print(f"  {report.iteration_time_s:.4f} s, sub-microbatches {step.plan.parts['vit']}")

rows: list[IterationRow] = []
with semu.Planner(job, rollouts=50) as planner:  # batches of the job's own kind, seed by seed
    train(planner, 3, has_deadline=False, tell=rows.append)  # iterations are simulated, planning is real
    summary = TrainingReport("vlm-s", rows, 3, "iterations", planner.is_reproducible, planner.num_workers)
print(summary)

with semu.Planner(job, rollouts=50) as planner:
    late = planner.take(wait_s=0.0)  # nobody waits: a schedule that is legal for every batch
    assert late is not None
    print(late.outcome.value, f"{semu.simulate(late.job, plan=late.plan).iteration_time_s:.4f} s")

with tempfile.TemporaryDirectory() as folder:  # a stream as a file: one iteration a line
    path = Path(folder) / "stream.jsonl"
    write_stream(path, (semu.workload.vlm_batch(seed=seed) for seed in range(2)), count=4, micro_batch=1)
    stream = read_stream(path, job.batch, count=4, micro_batch=1)
    with semu.Planner(job, stream, rollouts=0, patience_s=None) as planner:
        print([semu.simulate(step.job, plan=step.plan).fits for step in planner])
