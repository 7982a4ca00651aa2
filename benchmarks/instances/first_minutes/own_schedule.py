# one's own order of stages: all forwards of a rank, then its backwards, last first
import semu
import semu_models

job = semu.TrainingJob(
    semu_models.lm_7b(), semu.Cluster("h800", 1, 8), semu.Parallel(tp=2, pp=4),
    semu.Training(global_batch=16, seq_len=2048),
)
prepared = semu.prepare(job)
shape = prepared.shape
print(semu.simulate(job).iteration_time_s)
schedule = semu.schedule.gpipe(shape)
print(semu.simulate(job, schedule=schedule))
