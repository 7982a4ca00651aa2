"""``data_sheet``: a device as its data sheet has it, kernels and transfers at the peak (DIP §6.1 with alpha = 1)."""

from __future__ import annotations

from dataclasses import replace

from semu.hardware.capabilities import DeviceProfile
from semu.hardware.efficiency import CollectiveEfficiency, Efficiency, LinkEfficiency
from semu.hardware.kinds import OpKind, Provenance
from semu.hardware.number import Number

SPEC = "spec"
"""Name of this profile where a run asks for one."""

_SOURCE = "data sheet: alpha = 1"


def data_sheet(profile: DeviceProfile) -> DeviceProfile:
    """A profile's peaks with neutral coefficients: alpha = 1, no fixed times, no software factors.

    Args:
        profile: of the device; its peaks, memory and host stay.
    """
    compute = Efficiency(provenance=Provenance.SPEC, source=_SOURCE)
    link = CollectiveEfficiency(provenance=Provenance.SPEC, source=_SOURCE)
    communication = LinkEfficiency({kind: link for kind in OpKind if kind.is_communication})
    return replace(
        profile,
        efficiencies=dict.fromkeys(profile.efficiencies, compute),
        variants={},
        links=dict.fromkeys(profile.links, communication),
        software={},
        training_products=Number(1, Provenance.SPEC, _SOURCE),
        interference=0.0,
        transfer_s=0.0,
    )
