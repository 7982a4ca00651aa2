"""``predict``: times of many shapes by a profile's formulas; ``Peaks``: the rates that efficiencies are fractions of.

A fit sees what a simulation computes: both call ``semu.hardware.shape_terms`` and ``semu.hardware.network``. Three
things differ in a measurement. An isolated kernel feels only a part of the sustained load: t = t1 (1 + power t1 /
(t1 + t')), where a run pays rate / (1 + power). Attention in inference engines writes keys and values into a cache.
The links inside nodes never limit a collective over nodes, whose section holds the network card's efficiency alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from semu.fitting.samples import Family, family_of
from semu.hardware.capabilities import DeviceProfile
from semu.hardware.kinds import DType, OpKind, Port
from semu.hardware.network import CommGroup, cost_on_links, wire_factor
from semu.hardware.network.algorithm import Links
from semu.hardware.network.cost import port_peak
from semu.hardware.shape_terms import attention_factor, cache_factor, p_norm, row_bytes_factor, tiled_flop
from semu.records import dataclass

Values = NDArray[np.float64]
THROTTLE_S = 2e-3
"""Time in which the clock falls under load [s]; pitfall "power" of the microbenchmark data."""
ATTENTION_THROTTLE_S = 1e-2
"""The same time for fused attention, which draws less power: its rates fall from 5 ms on (aic, H200)."""
QUANTISE = "quantise_mem"
"""Coefficient in fits of products: memory bandwidth reached by the kernel that quantises the input."""


@dataclass(frozen=True, slots=True)
class Peaks:
    """The rates that a section's efficiencies are fractions of.

    Attributes:
        flop_per_s: of the section's precision. mem_bytes_per_s: of the device. port_bytes_per_s: one way; 0: no port.
    """

    flop_per_s: float
    mem_bytes_per_s: float
    port_bytes_per_s: float = 0.0


def peaks_of(profile: DeviceProfile, section: str) -> Peaks:
    """The peaks of a section on a device.

    Raises:
        ConfigError: the device has no such arithmetic.
    """
    group, name, *rest = section.split(".")
    memory = profile.mem_bytes_per_s.value
    if group == "link":
        return Peaks(profile.peak_flop_per_s(DType.BF16), memory, port_peak(profile, Port(name)))
    is_fp8 = bool(rest) and rest[0].startswith("fp8")
    return Peaks(profile.peak_flop_per_s(DType.FP8 if is_fp8 else DType.BF16), memory)


def predict(section: str, coefficients: Mapping[str, float], shape: Values, peaks: Peaks) -> Values:
    """Times of isolated calls.

    Args:
        section: of the profile. coefficients: names of ``Efficiency`` or ``CollectiveEfficiency`` -> value, complete,
            and ``quantise_mem`` or ``forward`` where rows ask for it. shape: float64[num_columns, n] of the family.
    Returns:
        float64[n] [s].
    """
    family = family_of(section)
    if family is Family.LINK:
        return _collective(section, coefficients, shape, peaks)
    if family is Family.MEMORY:
        moved, width = shape
        size, rate = coefficients["cache_bytes"], max(coefficients["cached"], 1.0)
        missed = cache_factor(moved, cache_bytes=size, cached=rate) if size > 0 and rate > 1.0 else 1.0
        moved = moved * missed * row_bytes_factor(np.maximum(width, 1.0), coefficients["row0"])
        result: Values = coefficients["t0_s"] + moved / (coefficients["mem"] * peaks.mem_bytes_per_s)
        return result
    if family is Family.PRODUCT:
        return _product(coefficients, shape, peaks)
    return _attention(coefficients, shape, peaks, is_forward="forward" in section)


def flop_of(family: Family, shape: Values, *, is_forward: bool = True) -> Values:
    """FLOP of each row, without the shape terms: float64[n].

    Source:
        GEMM 2 m n k; attention forward 2 b h s_q s_kv (d + d_v), backward (3 d + 2 d_v), half when causal.
    """
    if family is Family.PRODUCT:
        m, n, k, groups = shape[:4]
        product: Values = 2.0 * m * n * k * groups
        return product
    batch, heads, _, s_q, s_kv, d, d_v, causal, *_ = shape
    dims = d + d_v if is_forward else 3.0 * d + 2.0 * d_v
    flop: Values = 2.0 * batch * heads * s_q * s_kv * dims / (1.0 + causal)
    return flop


def isolated(t1: Values, power: float, throttle_s: float = THROTTLE_S) -> Values:
    """Times of isolated calls that would take ``t1`` at full clocks [s]."""
    return t1 * (1.0 + power * t1 / (t1 + throttle_s))


def _product(numbers: Mapping[str, float], shape: Values, peaks: Peaks) -> Values:
    m, n, k, groups, in_bytes, out_bytes, quantised, weight_gradient = shape
    flop = flop_of(Family.PRODUCT, shape)
    if numbers["tiles_at_once"]:
        flop = tiled_flop(
            m,
            n,
            k,
            tiles_at_once=numbers["tiles_at_once"],
            k0=numbers["tile_k0"],
            rest=numbers["tile_rest"],
            tile_128=numbers["tile_128"],
            groups=groups,
        )
    rate = numbers["flop"] * peaks.flop_per_s * np.where(weight_gradient > 0, numbers["weight_gradient"], 1.0)
    moved = groups * (in_bytes * (m * k + k * n) + out_bytes * m * n)
    memory = moved / (numbers["mem"] * peaks.mem_bytes_per_s)
    time = isolated(numbers["t0_s"] + p_norm(flop / rate, memory, numbers["p"]), numbers["power"])
    if quantised.any():
        # the kernel before it reads 16-bit activations and writes fp8 ones
        time = time + quantised * 3.0 * m * k / (numbers[QUANTISE] * peaks.mem_bytes_per_s)
    return time


def _attention(numbers: Mapping[str, float], shape: Values, peaks: Peaks, *, is_forward: bool) -> Values:
    batch, heads, kv_heads, s_q, s_kv, d, d_v, causal, _, fills_cache = shape
    share = 1.0 + causal
    factor = attention_factor(
        batch * s_q,
        batch * s_q * s_kv,
        heads,
        share,
        s0=numbers["s0_tokens"],
        tiles_at_once=numbers["tiles_at_once"],
        rest=numbers["tile_rest"],
    )
    flop = factor * flop_of(Family.ATTENTION, shape, is_forward=is_forward)
    moved = (
        (2.0 if is_forward else 4.0) * batch * (heads * s_q + (1.0 + 2.0 * fills_cache) * kv_heads * s_kv) * (d + d_v)
    )
    compute = flop / (numbers["flop"] * peaks.flop_per_s)
    memory = moved / (numbers["mem"] * peaks.mem_bytes_per_s)
    t1 = numbers["t0_s"] + p_norm(compute, memory, numbers["p"])
    return isolated(t1, numbers["power"], ATTENTION_THROTTLE_S)


def _collective(section: str, numbers: Mapping[str, float], shape: Values, peaks: Peaks) -> Values:
    _, port, name = section.split(".")
    kind, rate = OpKind(name), numbers["net"] * peaks.port_bytes_per_s
    local = math.inf if Port(port) is Port.NIC else rate
    ranks, nodes, buffer, whole = shape
    result = np.empty(len(buffer))
    for n, m, is_whole in set(zip(ranks.tolist(), nodes.tolist(), (whole > 0).tolist(), strict=True)):
        group, links = CommGroup("group", int(n), int(m)), Links(local, rate, peaks.port_bytes_per_s, is_whole)
        chosen = (ranks == n) & (nodes == m) & ((whole > 0) == is_whole)
        net_bytes = float(wire_factor(kind, group.num_ranks)) * buffer[chosen]
        result[chosen] = cost_on_links(kind, group, links, numbers).times_s(net_bytes)
    return result
