"""``JobFigures``: what a long run needs to know of a job: its iteration, its state, how fast that moves."""

from __future__ import annotations

from semu.hardware.capabilities import DeviceProfile
from semu.hardware.kinds import OpKind, Port
from semu.hardware.network.cost import collective_latency
from semu.hardware.network.group import CommGroup
from semu.job import TrainingJob
from semu.present.report import Report
from semu.records import dataclass
from semu.resilience.options import CheckpointOptions

NODE_GB_PER_S = 1.0
"""What a node writes to storage and reads from it where nobody says [GB/s]: 2 TB/s sustained for 2,048 nodes (Llama 3
herd of models, 2407.21783 §3.3.1), a default."""
RESTART_S = 600.0
"""From a failure until training goes on where nobody says [s]: processes, communicators, data loaders; a default."""


@dataclass(frozen=True)
class JobFigures:
    """What a long run needs to know of a job.

    Attributes:
        title: of the job. nodes, gpus_per_node: that it uses. iteration_s: of an iteration without failures [s].
        tokens: of an iteration. state_bytes: of a training checkpoint, all nodes together. saved_bytes: that the GPU
            with most writes. loaded_bytes: that a GPU needs to go on, at most.
        profile: of the devices.
    """

    title: str
    nodes: int
    gpus_per_node: int
    iteration_s: float
    tokens: int
    state_bytes: int
    saved_bytes: int
    loaded_bytes: int
    profile: DeviceProfile

    @classmethod
    def of(cls, job: TrainingJob, report: Report) -> JobFigures:
        """From a job and its simulation."""
        gpus, pp, dp = job.cluster.num_gpus, job.parallel.pp, job.parallel.dp
        zero = job.parallel.zero
        saved, loaded = [], []
        for kinds in report.memory:
            optimizer = kinds.optimizer if zero >= 1 else -(-kinds.optimizer // dp)
            parameters = kinds.parameters if zero >= 3 else -(-kinds.parameters // dp)
            saved.append(optimizer + parameters)
            loaded.append(kinds.optimizer + kinds.parameters)
        return cls(
            report.title,
            job.cluster.nodes,
            job.cluster.gpus_per_node,
            report.iteration_time_s,
            report.tokens,
            sum(saved) * (gpus // pp),
            max(saved),
            max(loaded),
            job.cluster.profile,
        )

    def storage_s(self, gpu_bytes: int, options: CheckpointOptions) -> float:
        """How long every GPU takes to write or read so many bytes of storage [s]: the slower of a node's way there and
        of all nodes' together."""
        node = gpu_bytes * self.gpus_per_node / ((options.node_gb_per_s or NODE_GB_PER_S) * 1e9)
        together = gpu_bytes * self.gpus_per_node * self.nodes / ((options.storage_gb_per_s or 1e30) * 1e9)
        return max(node, together)

    def save_s(self, options: CheckpointOptions) -> float:
        """How long a save to storage lasts [s]."""
        given = options.seconds("save_s")
        return self.storage_s(self.saved_bytes, options) if given is None else given

    def load_s(self, options: CheckpointOptions) -> float:
        """How long loading from storage lasts [s]."""
        given = options.seconds("load_s")
        if given is None:
            return 0.0 if options.restart_s is not None else self.storage_s(self.loaded_bytes, options)
        return given

    def host_copy_s(self) -> float:
        """How long a GPU takes to copy what it saves to its host [s]."""
        group = CommGroup("offload", 2, 1, local_port=Port.PCIE)
        return collective_latency(self.profile, OpKind.P2P, group, self.saved_bytes)

    def peer_copy_s(self, gpu_bytes: int | None = None) -> float:
        """How long a node takes to send another what its GPUs save, or so many bytes of each GPU, each over its own
        share of the cards [s]."""
        size = self.saved_bytes if gpu_bytes is None else gpu_bytes
        return collective_latency(self.profile, OpKind.P2P, CommGroup("copy", 2, 2), size)

    @staticmethod
    def restart_s(options: CheckpointOptions) -> float:
        """From a failure noticed until training goes on, loading not counted [s]."""
        given = options.seconds("restart_s")
        return RESTART_S if given is None else given
