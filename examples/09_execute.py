"""A schedule that runs: compiled into a plan, executed with layers of one's own, a thread per rank."""

import torch
from torch import nn

import semu
from semu.executor import FakeWorld, ModuleStages, run_plan, run_threads, split_model
from semu.runfile import Overrides, resolve_run

settings = ["training.global_batch=4", "training.schedule=zb-h1"]
plan = semu.compile_plan(resolve_run("lm-7b", Overrides(settings, "h800:1x4", "pp4", None, 0)).job())
print(plan.to_text(rank=3))
layers = sum(chunk.num_layers for chunk in plan.chunks)


def modules() -> dict[str, ModuleStages]:
    """The model's one module, with small layers: how its data comes, what its loss is."""
    return {
        "llm": ModuleStages(
            load=lambda microbatch, first, last: torch.full((last - first, 8), float(microbatch + 1)),
            loss=lambda output, microbatch, first, last: (output**2).mean(),
            layers=[nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)) for _ in range(layers)],
        )
    }


torch.manual_seed(0)
own = modules()  # all ranks share these layers, as threads may; processes would each make their own
results = run_threads(FakeWorld(4), lambda mine: run_plan(plan, split_model(plan, own, mine.rank), mine))
weights = [layer[0].weight for layer in own["llm"].layers]
pipelined = [weight.grad.clone() for weight in weights]

whole = nn.Sequential(*own["llm"].layers)  # the same model in one piece
losses = [(whole(torch.full((1, 8), float(microbatch + 1))) ** 2).mean() for microbatch in range(4)]
gradients = torch.autograd.grad(sum(losses), weights)
print(f"loss {results[-1].loss():.6f}, in one piece {sum(losses):.6f}")
print("gradients equal:", all(torch.allclose(a, b) for a, b in zip(pipelined, gradients, strict=True)))
# Processes each make a TorchCommunicator() after torch.distributed.init_process_group(...) in place of the thread's.
