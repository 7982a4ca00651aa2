"""``list_models``: every shipped model with its counts, untraced; ``parameter_table``: the same for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from types import MappingProxyType

from semu import memo
from semu.nn import MixtureOfExperts, Module
from semu.records import dataclass
from semu.units import fit_columns, format_count
from semu_models.flop_formulas import flop_per_token
from semu_models.registry import MODELS, ModelEntry

LENGTH = 4096
"""Length of the sequences for which FLOP per token are listed [tokens]."""


@dataclass(frozen=True)
class ListedModel:
    """A shipped model with its parameters and FLOP.

    Attributes:
        entry: of ``MODELS``. parameters: all. active_parameters: those that a token uses.
        modules: parameters of each modality module.
        flop_per_token: of training one token of the backbone, by convention; None: no closed form.
    """

    entry: ModelEntry
    parameters: int
    active_parameters: int
    modules: Mapping[str, int]
    flop_per_token: Mapping[str, float] | None

    def to_json(self) -> dict[str, object]:
        """A row of ``semu list models --json``."""
        flop = None if self.flop_per_token is None else {"seq_len": LENGTH, **self.flop_per_token}
        return {
            "name": self.entry.name,
            "family": self.entry.family.value,
            "parameters": self.parameters,
            "active_parameters": self.active_parameters,
            "nominal_parameters": self.entry.nominal_parameters,
            "modules": dict(self.modules),
            "flop_per_token": flop,
            "source": self.entry.source,
        }


def list_models() -> Iterator[ListedModel]:
    """Every model of ``MODELS``, in its order."""
    return (_LISTED.get(entry, partial(_listed, entry)) for entry in MODELS.values())


def _listed(entry: ModelEntry) -> ListedModel:
    model = entry.builder()
    modules = {module.name: module.body.num_parameters() for module in model.modules}
    idle = sum(idle_parameters(module.body) for module in model.modules)
    total = model.num_parameters()
    return ListedModel(entry, total, total - idle, MappingProxyType(modules), flop_per_token(model, LENGTH))


_LISTED = memo.Table[ListedModel]("counts of shipped models", 256)


def parameter_table() -> str:
    """All models, a line each: name, parameters counted and active, FLOP per token, family, modules, nominal size,
    source, as many of these as the terminal has room for; FLOP as ``flop_per_token`` counts them
    under semu's convention, at ``LENGTH`` tokens."""
    rows = [("model", "parameters", "", "active", "FLOP/token", "family", "modules", "nominal", "source")]
    for item in list_models():
        parts = ", ".join(f"{name} {format_count(count)}" for name, count in item.modules.items())
        active = "" if item.active_parameters == item.parameters else format_count(item.active_parameters)
        flop = "-" if item.flop_per_token is None else f"{item.flop_per_token['semu'] / 1e9:,.2f} G"
        nominal = f"{item.entry.nominal_parameters / 1e9:.3g} B"
        counted = (f"{item.parameters:,}", format_count(item.parameters), active, flop)
        rows.append((item.entry.name, *counted, item.entry.family.value, parts, nominal, item.entry.source))
    return "\n".join(fit_columns(rows, (False, True, True, True, True, False, False, True, False)))


def idle_parameters(body: Module) -> int:
    """Parameters of experts that a token was not routed to."""
    return sum(item.idle_parameters for _, item in body.named_modules() if isinstance(item, MixtureOfExperts))
