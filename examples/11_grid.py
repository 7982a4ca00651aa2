"""The best parallel configuration within memory: bounds and branch, a table, the nearest change that fits, files."""

import tempfile
from pathlib import Path

import semu
import semu_models

job = semu.TrainingJob(
    semu_models.llama3_8b(),
    semu.Cluster("h100", nodes=2, gpus_per_node=8),
    semu.Parallel(dp=16),  # where the grid begins: any configuration that exists
    semu.Training(global_batch=64, seq_len=8192),
)
found = semu.grid(job, vary=("tp", "pp", "micro_batch", "recompute"), top=5, price=2.5)
print(found)
assert found.best is not None
print(found.best.point, f"{found.best.usd_per_million_tokens:.3f} USD for a million tokens")
print(found.report)  # full simulation of the best

for row in found:  # all that can be among the best, and what is faster but does not fit
    if not row.fits:
        print(f"{row.figures.iteration_time_s:.3f} s: {-row.headroom_bytes / 2**30:.2f} GiB too much; {row.change}")

whole = semu.grid(job, vary={"tp": (1, 2), "pp": (1, 2), "recompute": None}, exhaustive=True)  # no bounds of time
print(f"{whole.num_legal} legal, {whole.cut_by_memory} too large, {whole.evaluated} simulated")
roomy = semu.grid(job, vary=("tp", "pp"), rank_by="headroom", top=1)
print(f"the smallest leaves {roomy[0].headroom_bytes / 2**30:.1f} GiB with {roomy[0].point}")

with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "grid.sqlite"
    semu.grid(job, vary=("tp",), results=file)
    print(f"{semu.grid(job, vary=('tp',), results=file).reused} results kept")  # or to_csv, to_pandas, to_polars
    print(*(path.name for path in found.save(Path(folder) / "out")))

try:
    semu.grid(job, vary=("pp",), fix={"tp": 16, "micro_batch": 5})
except semu.SemuError as error:
    print(error)
