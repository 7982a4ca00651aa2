"""``OffloadPlan``: what of a rank's memory lives on the host, and of which layers."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from semu.checks import check_number, check_word
from semu.errors import ConfigError
from semu.records import dataclass

OFFLOADS = ("activations", "weights", "optimizer")
"""What can be kept on the host. Gradients stay on the device.

Activations: what a layer saves for its backward pass is copied out behind its forward and back ahead of its backward.
Weights: a layer's parameters come in before its forward and again before its backward
(``semu.simulation.memory.weights_on_host``). Optimizer: master weights and moments come in, bucket by bucket, for the
step.
"""


@dataclass(frozen=True)
class OffloadPlan:
    """What is offloaded over PCIe.

    Attributes:
        activations, weights, optimizer: whether they are.
        layers: ``fnmatch`` patterns of the layers' paths; None: by ``fraction``.
        fraction: share of each modality module's layers, spread evenly, 0 to 1. Layers or fraction choose for
            activations and weights alike: where both are offloaded, both of the same layers.
    """

    activations: bool = False
    weights: bool = False
    optimizer: bool = False
    layers: tuple[str, ...] | None = None
    fraction: float = 1.0

    @classmethod
    def of(cls, offload: object, layers: object, fraction: object) -> OffloadPlan:
        """Read ``training.offload``, ``offload_layers`` and ``offload_fraction``; None: not given.

        Raises:
            ConfigError: an unknown word, layers or a fraction with neither activations nor weights, both at once, out
                of range.
        """
        words = _words(offload, "training.offload")
        for word in words:
            if word in ("parameters", "gradients"):
                raise ConfigError(
                    "offload of gradients is not modelled by this version: they stay on the device"
                    if word == "gradients"
                    else "parameters are called weights here",
                    where="training.offload",
                    expected=" or ".join(OFFLOADS),
                    got=word,
                    nearest="weights" if word == "parameters" else "optimizer",
                )
            check_word(word, OFFLOADS, "offload", "training.offload")
        given = [name for name, value in (("layers", layers), ("fraction", fraction)) if value is not None]
        if given and (not {"activations", "weights"} & set(words) or len(given) > 1):
            raise ConfigError(
                "layers by path and by share"
                if len(given) > 1
                else "layers to offload, and neither activations nor weights are",
                where=f"training.offload_{given[-1]}",
                expected='one of offload_layers and offload_fraction, with offload = "activations" or "weights"',
                got=str(fraction if given[-1] == "fraction" else layers),
            )
        share = 1.0 if fraction is None else check_number(fraction, "training.offload_fraction", "a share", most=1.0)
        return cls(
            activations="activations" in words,
            weights="weights" in words,
            optimizer="optimizer" in words,
            layers=None if layers is None else _words(layers, "training.offload_layers"),
            fraction=share,
        )

    def chooses(self, path: str, number: int) -> bool:
        """Whether a layer's activations are offloaded.

        Args:
            path: of the layer. number: of the layer in its modality module.
        """
        return self.activations and self._names(path, number)

    def streams(self, path: str, number: int) -> bool:
        """Whether a layer's weights are offloaded; arguments as ``chooses``."""
        return self.weights and self._names(path, number)

    def _names(self, path: str, number: int) -> bool:
        if self.layers is not None:
            return any(fnmatchcase(path, pattern) for pattern in self.layers)
        return int((number + 1) * self.fraction) > int(number * self.fraction)


def _words(value: object, where: str) -> tuple[str, ...]:
    if value is None:
        return ()
    words: Sequence[object] = [value] if isinstance(value, str) else value if isinstance(value, list | tuple) else [0]
    if not all(isinstance(word, str) for word in words):
        raise ConfigError("not words", where=where, expected="a string or a list of strings", got=repr(value))
    return tuple(str(word) for word in words)
