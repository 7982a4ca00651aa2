import semu
import semu_models

model = semu_models.llama3_8b()
for tp in (1, 2, 4, 8):
    for pp in (1, 2, 4):
        cluster = semu.Cluster("h100", nodes=2, gpus_per_node=8)
        job = semu.TrainingJob(model, cluster, semu.Parallel(tp=tp, pp=pp), semu.Training(global_batch=64, recompute="full"))
        found = semu.evaluate(job)
        print(tp, pp, job.parallel.dp, found.iteration_time_s, found.fits)
