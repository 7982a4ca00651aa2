"""How a job is spread over GPUs: sizes, sharding plan, placement of groups, pipeline chunks, data parallelism."""

from semu.parallel.config import Overlap, Parallel
from semu.parallel.layout import PipelineLayout
from semu.parallel.mesh import Mesh
from semu.parallel.modules import ModuleParallel
from semu.parallel.pipeline import Chunk, partition, place_chunks
from semu.parallel.tensor import megatron_plan

__all__ = [
    "Chunk",
    "Mesh",
    "ModuleParallel",
    "Overlap",
    "Parallel",
    "PipelineLayout",
    "megatron_plan",
    "partition",
    "place_chunks",
]
