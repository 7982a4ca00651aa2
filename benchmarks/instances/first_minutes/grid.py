import semu
import semu_models

job = semu.TrainingJob(
    semu_models.llama3_8b(), semu.Cluster("h100", nodes=2, gpus_per_node=8), semu.Parallel(tp=2), semu.Training(global_batch=64)
)
print(semu.grid(job))
