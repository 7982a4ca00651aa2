"""A node of unequal pipelines dies while they train: the others compose themselves anew and go on (threads here)."""

import semu
from semu.executor import require_torch
from semu.executor.drill import Failure, run_drill
from semu.resilience.templates.drilled import Arranger

require_torch()  # import torch
settings = ["parallel.zero=0", "training.global_batch=4"]
job = semu.load_run("lm-7b", settings, cluster="h100:5x1", parallel="pp5")
templates = semu.pipeline_templates(job, faults=1)
print(templates.compose(5), templates.compose(4), sep="\n\n")

arranger = Arranger(templates, fewest=4)
first = arranger.first()  # layers, ranks and microbatches of all nodes
failures = [Failure(iteration=1, node=1)]
report = run_drill(arranger, first, iterations=3, failures=failures, backend="fake", width=8)
print(report)
(recovery,) = report.recoveries
print(f"{recovery.nodes} nodes went on; {recovery.copied_bytes / 1024:.0f} KiB of state were copied")
print("as without the failure:", report.state_error < 1e-9 and report.loss_error < 1e-9)
# With processes and SIGKILL: semu drill lm-7b --cluster h100:5x1 --parallel pp5 --set parallel.zero=0 --kill 1:1
