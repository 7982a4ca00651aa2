"""semu: how long a training step takes, what it costs in memory, and how to make it shorter; before renting a GPU.

    import semu, semu_models

    job = semu.TrainingJob(
        model=semu_models.vlm_m(),
        cluster=semu.Cluster("h800", nodes=8, gpus_per_node=8),
        parallel=semu.Parallel(dp=8, tp=2, pp=4),
        training=semu.Training(micro_batch=1, global_batch=128, recompute="full"),
        batch=semu.workload.vlm_batch(seed=0),
    )
    print(semu.simulate(job))

Names are imported on first use, so that ``import semu`` costs nothing that is not needed; they are declared once, with
their modules, in ``__init__.pyi``.
"""

from semu.lazy import lazy_names

__version__ = "0.1.0"
__getattr__, __dir__ = lazy_names(__name__)
