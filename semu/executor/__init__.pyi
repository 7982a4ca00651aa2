# The names of ``semu.executor``, each beside the module that has it.

from semu.executor.assigned_sampler import AssignedSampler as AssignedSampler
from semu.executor.chunk import LayerChunk as LayerChunk
from semu.executor.communicator import Communicator as Communicator
from semu.executor.communicator import Operation as Operation
from semu.executor.delivery import publish_plans as publish_plans
from semu.executor.delivery import received_plans as received_plans
from semu.executor.fake_communicator import FakeCommunicator as FakeCommunicator
from semu.executor.fake_communicator import FakeWorld as FakeWorld
from semu.executor.fake_communicator import run_threads as run_threads
from semu.executor.gang import RankGroup as RankGroup
from semu.executor.model import ModuleStages as ModuleStages
from semu.executor.model import PipelineModel as PipelineModel
from semu.executor.model import split_model as split_model
from semu.executor.processes import Place as Place
from semu.executor.processes import RankFailure as RankFailure
from semu.executor.processes import launch as launch
from semu.executor.recording import Recording as Recording
from semu.executor.recording import timeline_of as timeline_of
from semu.executor.runner import IterationResult as IterationResult
from semu.executor.runner import Runner as Runner
from semu.executor.runner import run_plan as run_plan
from semu.executor.runner import run_plans as run_plans
from semu.executor.sharded import Cut as Cut
from semu.executor.sharded import ShardedCommunicator as ShardedCommunicator
from semu.executor.torch_communicator import TorchCommunicator as TorchCommunicator

def require_torch() -> None: ...
