"""A pipeline as a graph of one traced block: equal stages are simulated once, then restored under two schedules."""

from itertools import pairwise

import semu
from semu.hardware.device import Device, DeviceKind, Direction, Stream
from semu.schedule import SCHEDULES, PipelineShape

ranks, microbatches, shape = range(4), range(8), (8192, 4096)
layers = semu.nn.Sequential(*[semu.nn.TransformerLayer(4096, 16384, 32) for _ in range(3)])
block = semu.trace(layers, semu.Input(shape, requires_grad=True))
(x, dy), (y, dx) = block.inputs, block.outputs
half, end = sum(op.phase is semu.Phase.FORWARD for op in block.operators), len(block.operators)
static = {tensor.index for tensor in block.tensors if block.storages[tensor.storage].role.is_static}

graph, made = semu.Graph(), [{} for _ in ranks]  # made: tensor of the block -> tensor of the graph, for each rank
with graph.subgraph("step", level=semu.Level.ITERATION, replicas=8):  # data-parallel peers: simulated once
    for m in microbatches:
        made = [{old: new for old, new in own.items() if old in static} for own in made]
        with graph.subgraph(f"mb{m}", level=semu.Level.MICROBATCH):
            forward = [(f"F{r}", r, range(half), y, r + 1, x) for r in ranks]
            backward = [(f"B{r}", r, range(half, end), dx, r - 1, dy) for r in reversed(ranks)]
            for stage, r, part, result, to, given in forward + backward:
                with graph.subgraph(stage, level=semu.Level.STAGE):
                    made[r] = semu.include(graph, block, tensors=made[r], operators=part, rank=r, pool=f"gpu{r}")
                if to in ranks:
                    link = Stream(Device(DeviceKind.LINK, r, semu.Port.NVLINK, Direction.OUT), f"to {to}")
                    sent, arrived = made[r][result], graph.add_tensor(shape, semu.DType.BF16, pool=f"gpu{to}")
                    graph.add_operator(semu.OpKind.P2P, link, inputs=[sent], outputs=[arrived], net_bytes=2**26)
                    made[to][given] = arrived

state = semu.Simulation(graph, semu.Cluster("h800", nodes=4, gpus_per_node=8).profile).checkpoint()
print(f"{len(graph.operators)} operators, {state.num_units} units, {state.alone.num_simulated} of them simulated")
for name in ("gpipe", "1f1b"):
    orders = SCHEDULES[name](PipelineShape.chain(len(ranks), len(microbatches))).orders
    paths = [[f"step.mb{s.microbatch}.{s.phase.value}{s.chunk}" for s in order] for order in orders]
    timeline = state.restore(edge for order in paths for edge in pairwise(order))
    for span in map(timeline.span, ("step", "step.mb3", "step.mb3.F1", "step.mb3.F1.2.attention")):
        peak_gib = span.peak_bytes["gpu1"] / 2**30
        print(f"{name:5} {span.path:24} {span.start_s:.4f} to {span.end_s:.4f} s, GPU 1 up to {peak_gib:.1f} GiB")
