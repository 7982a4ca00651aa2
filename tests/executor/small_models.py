"""Small models whose modules really depend on one another, in float64, with data of any number of items."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from semu.executor import ModuleStages

_LOCK = threading.Lock()
WIDTH = 6
DTYPE = torch.float64


class Mix(nn.Module):
    """A residual layer: rows on their own, and their mean where ``mixes``."""

    def __init__(self, *, mixes: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, dtype=DTYPE)
        self.core = nn.Linear(WIDTH, 2 * WIDTH, dtype=DTYPE)
        self.out = nn.Linear(2 * WIDTH, WIDTH, dtype=DTYPE)
        self.mixes = mixes
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.out(torch.tanh(self.core(self.norm(x))))
        if self.mixes:
            y = y + (x * torch.softmax(x, 0)).sum(0, keepdim=True)
        return x + self.dropout(y)


class Project(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, dtype=DTYPE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


class Sequence_(nn.Module):
    """Text ids with the encoders' rows behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, WIDTH, dtype=DTYPE)

    def forward(self, ids: torch.Tensor, *encoded: torch.Tensor | None) -> torch.Tensor:
        rows = [one for one in encoded if one is not None]
        return torch.cat([self.embedding(ids), *rows])


class VideoStem(nn.Module):
    """Clips' rows, with what their captions say to each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, dtype=DTYPE)

    def forward(self, video: torch.Tensor, whose: torch.Tensor, text: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.linear(video), whose @ text, whose.sum(1).round().to(torch.int64)


class VideoLayer(nn.Module):
    """Hands the text on, changed, and a tensor of integers."""

    def __init__(self) -> None:
        super().__init__()
        self.core = nn.Linear(2 * WIDTH, WIDTH, dtype=DTYPE)

    def forward(self, x: torch.Tensor, text: torch.Tensor, ones: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x + torch.tanh(self.core(torch.cat((x, text), 1))) * ones[:, None], text * 1.01, ones


class VideoHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, dtype=DTYPE)

    def forward(self, x: torch.Tensor, text: torch.Tensor, ones: torch.Tensor) -> torch.Tensor:
        return self.linear(x + text)


def random(*key: int, rows: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum((k + 1) * 1009**i for i, k in enumerate(key)) % (1 << 40))
    return torch.randn(rows, WIDTH, dtype=DTYPE, generator=generator)


@dataclass(frozen=True)
class SmallModel:
    """``items``: module -> per replica, items of every microbatch. ``sources``: of the modules."""

    name: str
    items: Mapping[str, Sequence[Sequence[int]]]
    layers: Mapping[str, int]
    frozen: tuple[str, ...] = ()
    dropout: float = 0.0
    seed: int = 0

    @property
    def sources(self) -> Mapping[str, tuple[str, ...]]:
        return {
            "lm": {"lm": ()},
            "vlm": {"vit": (), "llm": ("vit",)},
            "two encoders": {"vit": (), "audio": (), "llm": ("vit", "audio")},
            "two readers": {"vit": (), "depth": ("vit",), "llm": ("vit", "depth")},
            "t2v": {"llm": (), "dit": ("llm",)},
        }[self.name]

    def modules(self, replica: int) -> dict[str, ModuleStages]:
        """With the same parameters every time."""
        with _LOCK:  # threads share torch's random numbers
            torch.manual_seed(self.seed)
            return self._modules(replica)

    def _modules(self, replica: int) -> dict[str, ModuleStages]:
        found: dict[str, ModuleStages] = {}
        for name, sources in self.sources.items():
            count = self.layers[name]
            common: dict[str, Any] = {"sources": sources, "selective": ("core",)}
            if name == "dit":
                common |= {
                    "stem": VideoStem(),
                    "layers": [VideoLayer() for _ in range(count)],
                    "head": VideoHead(),
                    "load": self._video(replica),
                    "loss": self._loss(replica),
                }
            else:
                is_encoder = any(name in others for others in self.sources.values())
                common |= {
                    "stem": Project() if is_encoder else Sequence_(),
                    "layers": [Mix(mixes=not is_encoder, dropout=self.dropout) for _ in range(count)],
                    "head": Project(),
                    "load": self._ids(replica) if not is_encoder else None if sources else self._rows(name, replica),
                    "loss": None if is_encoder else self._loss(replica),
                    "rows": self._begin(name, replica),
                }
            found[name] = ModuleStages(**common)
            if name in self.frozen:
                for part in (found[name].stem, *found[name].layers, found[name].head):
                    assert part is not None
                    part.requires_grad_(False)
        return found

    def _size(self, item: int) -> int:
        return 2 + item % 3

    def _begin(self, name: str, replica: int) -> Any:
        return lambda _reader, _microbatch, item: sum(self._size(i) for i in range(item))

    def _rows(self, name: str, replica: int) -> Any:
        key = len(name)

        def load(microbatch: int, first: int, last: int) -> torch.Tensor:
            return torch.cat([random(key, replica, microbatch, i, rows=self._size(i)) for i in range(first, last)])

        return load

    def _ids(self, replica: int) -> Any:
        return lambda microbatch, first, last: (torch.arange(5) * (microbatch + 2) + replica) % 11

    def _video(self, replica: int) -> Any:
        def load(microbatch: int, first: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
            video = torch.cat([random(77, replica, microbatch, i, rows=3) for i in range(first, last)])
            means = [torch.full((3, self._size(i)), 1 / self._size(i), dtype=DTYPE) for i in range(first, last)]
            return video, torch.block_diag(*means)

        return load

    def _loss(self, replica: int) -> Any:
        def loss(output: torch.Tensor, microbatch: int, first: int, last: int) -> torch.Tensor:
            goal = torch.sin(
                torch.arange(output.numel(), dtype=DTYPE, device=output.device).reshape(output.shape)
                + first * 7
                + microbatch
            )
            return ((output - goal) ** 2).sum() / 10

        return loss


def unpipelined(
    model: SmallModel, num_replicas: int, cuts: Mapping[str, Sequence[int]] | None = None
) -> dict[str, Any]:
    """Loss and gradients of the whole model, microbatch after microbatch, averaged over replicas.

    ``cuts``: module -> parts of every microbatch, for modules with a loss of their own parts.
    """
    total = 0.0
    sums: dict[str, torch.Tensor] = {}
    for replica in range(num_replicas):
        modules = model.modules(replica)
        count = len(next(iter(model.items.values()))[replica])
        for microbatch in range(count):
            made: dict[str, Any] = {}
            for name, module in modules.items():
                items = model.items[name][replica][microbatch]
                ranges = [(0, items)]
                if cuts and name in cuts and module.loss is not None:
                    parts = min(cuts[name][microbatch], items)
                    ranges = [(p * items // parts, (p + 1) * items // parts) for p in range(parts)]
                for first, last in ranges:
                    if items == 0:
                        made[name] = None
                        continue
                    loaded = module.load(microbatch, first, last) if module.load is not None else ()
                    values = list(loaded) if isinstance(loaded, tuple) else [loaded]
                    for source in module.sources:
                        value = made[source]
                        if ranges != [(0, items)]:
                            begin = modules[source].rows
                            value = value[begin(name, microbatch, first) : begin(name, microbatch, last)]
                        values.append(value)
                    out: Any = tuple(values)
                    for layer in (module.stem, *module.layers, module.head):
                        assert layer is not None
                        out = layer(*out) if isinstance(out, tuple) else layer(out)
                    made[name] = out
                    if module.loss is not None:
                        loss = module.loss(out, microbatch, first, last)
                        loss.backward(retain_graph=True)
                        total += loss.item()
        for key, parameter in named_parameters(modules).items():
            if parameter.requires_grad:
                grad = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
                sums[key] = sums.get(key, 0) + grad / num_replicas
    return {"loss": total, "gradients": sums}


def named_parameters(modules: Mapping[str, ModuleStages]) -> dict[str, nn.Parameter]:
    found = {}
    for name, module in modules.items():
        for place, part in (("stem", module.stem), ("head", module.head), *enumerate(module.layers)):
            if part is not None:
                for key, parameter in part.named_parameters():
                    found[f"{name}.{place}.{key}"] = parameter
    return found
