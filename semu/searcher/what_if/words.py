"""``plain_key`` and ``plain_value``: what a change is of, in the words of people instead of a run file's."""

from __future__ import annotations

_RATES = {
    "mem_bytes_per_s": "device memory",
    "nvlink_bytes_per_s": "NVLink",
    "nic_bytes_per_s": "network card",
    "pcie_bytes_per_s": "PCIe",
}
_LAUNCHES = tuple(f"cluster.host.{kind}launch_s" for kind in ("", "eager_", "blocking_"))
_KEYS = {
    **dict.fromkeys(_LAUNCHES, "launch of a kernel"),
    "overlap.tensor_parallel": "overlap of tp",
    "parallel.sequence_parallel": "sequence parallelism",
    "training.gradient_accumulation_fusion": "fused accumulation",
    "parallel.vpp training.schedule": "interleaving (vpp)",
}
_CLUSTER, _PEAK = "cluster.", "flop_per_s."


def plain_key(key: str) -> str:
    """``cluster.nvlink_bytes_per_s`` as ``NVLink``; keys that have no other words stay."""
    name = key.removeprefix(_CLUSTER)
    if name.startswith(_PEAK):
        return f"{name.removeprefix(_PEAK)} peak"
    return _RATES.get(name) or _KEYS.get(key, key)


def plain_value(key: str, value: str) -> str:
    """A number of the device's profile with its unit, ``2e+11`` as ``200 GB/s``; other values stay."""
    name = key.removeprefix(_CLUSTER)
    try:
        number = float(value)
    except ValueError:
        return value
    if name.startswith(_PEAK):
        return f"{number / 1e12:.0f} TFLOP/s"
    if name in _RATES:
        return f"{number / 1e9:,.0f} GB/s"
    return f"{number * 1e6:g} us" if key in _LAUNCHES else value
