import semu
import semu_models

job = semu.TrainingJob(
    semu_models.llama3_8b(), semu.Cluster("h100", nodes=1, gpus_per_node=8), semu.Parallel(tp=2, pp=4), semu.Training(global_batch=32)
)
report = semu.simulate(job)
report.save("pictures/")
