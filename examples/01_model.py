"""A model as in PyTorch: PipeWeaver's Figure 7, one Norm and one Linear; its graph, timeline and memory curve."""

import semu
from semu import nn


class NormLinear(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.linear = nn.Linear(hidden, hidden)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return self.linear(self.norm(x))


tokens, hidden = 8192, 4096
graph = semu.trace(NormLinear(hidden), semu.Input((tokens, hidden), requires_grad=True))
print("The graph (backward by autograd: grad_bw and weight_bw of the Linear are two operators)")
print(graph.to_text())

timeline = semu.run(graph, semu.Cluster("h800", nodes=1, gpus_per_node=1).profile)
print(f"\nThe timeline: {timeline.makespan_s * 1e6:.1f} us")
print(timeline.to_text())

print("\nThe memory curve: time [us], allocated [MiB]")
for time, total in zip(timeline.memory.times_s, timeline.memory.total, strict=True):
    print(f"{time * 1e6:12.3f} {total / 2**20:10.2f}")
print(f"peak {timeline.peak.size_bytes / 2**20:.2f} MiB at {timeline.peak.operator}")
