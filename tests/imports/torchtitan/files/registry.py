"""Two configurations in the manner of torchtitan's registries; read as text, never run."""

from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.trainer import Trainer

from . import model_registry


def llama3_8b_small_batch() -> Trainer.Config:
    spec = model_registry("8B")
    return Trainer.Config(
        model_spec=spec,
        loss=ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config()),
        training=TrainingConfig(local_batch_size=1, seq_len=8192),
        activation_checkpoint=SelectiveAC.Config(),
    )


def llama3_8b_tensor() -> Trainer.Config:
    config = llama3_8b_small_batch()
    config.model_spec = model_registry("8B", converters=[Float8LinearConverter.Config()])
    config.training.local_batch_size = 4
    config.parallelism = ParallelismConfig(tensor_parallel_degree=2)
    config.compile = CompileConfig(enable=True, enable_async_tensor_parallel=True)
    config.activation_checkpoint = FullAC.Config()
    return config
