import semu
import semu_models

job = semu.TrainingJob(
    semu_models.llama3_8b(), semu.Cluster("h100", nodes=1, gpus_per_node=8), semu.Parallel(tp=2), semu.Training(global_batch=32)
)
report = semu.simulate(job)
assert "<table" in report._repr_html_()
try:
    print(report.to_pandas())
except ImportError as error:  # pandas is an extra: the error must say so
    assert "pandas" in str(error)
