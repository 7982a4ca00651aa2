"""``DeviceProfile``: peaks and efficiencies of one GPU, every number with its provenance; ``Host``: of its node."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from functools import cached_property
from typing import Any

from semu.checks import check_number
from semu.errors import ConfigError, unknown_name
from semu.hardware.attention_kernels import (
    COMPARED,
    FIRST_FLASH,
    PASSES,
    RELATIVES,
    SAME,
    SHORT,
    AttentionFactors,
    AttentionKernel,
)
from semu.hardware.efficiency import (
    CollectiveEfficiency,
    Efficiency,
    LinkEfficiency,
    coefficient_names,
    with_coefficient,
)
from semu.hardware.fp8 import Fp8Recipe
from semu.hardware.kinds import DType, OpKind, Port, Provenance
from semu.hardware.number import Number, located, worst_provenance
from semu.hardware.software import FACTORS, NEUTRAL_FACTORS, Software, SoftwareFactors
from semu.records import dataclass


@dataclass(frozen=True, slots=True)
class Host:
    """What a node's host gives to one GPU.

    Attributes:
        launch_s: CPU time to launch one kernel [s]; it costs only when the GPU runs dry.
        memory_bytes: host memory per GPU, for offload [bytes].
        eager_launch_s: like launch_s, where modules run operator by operator: with Python, dispatch and autograd [s].
        blocking_launch_s: from the end of a kernel to the start of the next one, where launches block
            (``CUDA_LAUNCH_BLOCKING``): the host wakes up, runs Python, and launches [s].
        transfer_stall: what launches of an eager framework take longer for every further rank of the tensor group, as
            a share of themselves, on ranks whose pipeline transfers cross nodes; 0 where adapters need no host thread.
    """

    launch_s: Number
    memory_bytes: Number
    eager_launch_s: Number
    blocking_launch_s: Number
    transfer_stall: Number

    def launch(self, *, is_eager: bool, blocks: bool = False) -> tuple[str, Number]:
        """What a launch takes, with its dotted key. ``is_eager``: modules run operator by operator. ``blocks``: every
        launch waits for its kernel."""
        name = "blocking_launch_s" if blocks else "eager_launch_s" if is_eager else "launch_s"
        return f"host.{name}", getattr(self, name)


_NO_MARGIN = Number(0.0, Provenance.DEFAULT, "none")
_ONE_SOCKET = Number(8, Provenance.DEFAULT, "one node of eight")
_NO_SOCKET_LINK = Number(1e12, Provenance.DEFAULT, "no limit")
_ONE_LAYOUT = Number(1, Provenance.DEFAULT, "along the summed axis")
_SAME_PRODUCTS = Number(1, Provenance.DEFAULT, "products take the same time in training")


@dataclass(frozen=True)
class Fabric:
    """A network between nodes, where it is another than the one that profiles were measured with.

    Attributes:
        name: in ``cluster.fabric``. has_trees: whether all-reduces run on trees over nodes, or on rings alone.
        links: coefficients of collectives over it, in place of the profile's. transfer_stall: as of ``Host``.
    """

    name: str
    has_trees: bool
    links: Mapping[OpKind, CollectiveEfficiency]
    transfer_stall: Number


@dataclass(frozen=True)
class DeviceProfile:
    """Peaks and efficiencies of one GPU; every number has a provenance and a source.

    Attributes:
        name: name in ``semu list devices``, or what the user's file says.
        memory_bytes: device memory as the framework reports it [bytes].
        flop_per_s: dense peak per precision [FLOP/s]; BF16 always, FP8 only where the device has it.
        mem_bytes_per_s: peak device memory bandwidth [byte/s].
        nvlink_bytes_per_s: NVLink, all links of the GPU together, one direction [byte/s].
        nic_bytes_per_s: network card per GPU, one direction [byte/s].
        pcie_bytes_per_s: PCIe, one direction [byte/s].
        nvlink_gpus: GPUs of a node that NVLink joins: 8 behind a switch, 2 for a bridged pair.
        memory_margin: share of the memory that a run should leave free, 0 to less than 1.
        socket_gpus: consecutive GPUs of a node below one socket of its host, where PCIe joins them.
        socket_bytes_per_s: link between the sockets of a node, one way, all that cross it together [byte/s].
        fp8_layouts: layouts in which fp8 products take an operand: 1, along the summed axis only; 2, either.
        training_products: time of products of 16 bits in a training framework over that of the fit, >= 1, where most
            of the fitted rows are from inference libraries.
        efficiencies: one per compute kind.
        variants: departures from ``efficiencies``, by kind and precision (``DType``), head dimension (int) or fp8
            recipe (``Fp8Recipe``, which ``scaled`` applies).
        links: efficiencies per port.
        host: launch time and memory of the host.
        description: one line for ``semu list devices``.
        software: factors of training frameworks on the kernels; a framework without factors changes nothing.
        attention_kernels: factors of attention kernels; ``attention_factors`` finds those of any.
        has_trees: whether the library builds trees over nodes, see ``Fabric``. has_aggregated_trees: whether it has
            parallel aggregated trees, of the framework and date that ``under`` applied.
        interference, transfer_s: see ``SoftwareFactors``; of the framework that ``under`` applied, else 0.
    Raises:
        ConfigError: a missing kind, port or bf16 peak, or a peak that is not positive.
    """

    name: str
    memory_bytes: Number
    flop_per_s: Mapping[DType, Number]
    mem_bytes_per_s: Number
    nvlink_bytes_per_s: Number
    nic_bytes_per_s: Number
    pcie_bytes_per_s: Number
    nvlink_gpus: Number
    efficiencies: Mapping[OpKind, Efficiency]
    variants: Mapping[tuple[OpKind, VariantKey], Efficiency]
    links: Mapping[Port, LinkEfficiency]
    host: Host
    description: str = ""
    software: Mapping[Software, SoftwareFactors] = field(default_factory=dict)
    attention_kernels: Mapping[AttentionKernel, AttentionFactors] = field(default_factory=dict)
    interference: float = 0.0
    transfer_s: float = 0.0
    memory_margin: Number = _NO_MARGIN
    fp8_layouts: Number = _ONE_LAYOUT
    socket_gpus: Number = _ONE_SOCKET
    socket_bytes_per_s: Number = _NO_SOCKET_LINK
    training_products: Number = _SAME_PRODUCTS
    has_trees: bool = True
    has_aggregated_trees: bool = False

    def __post_init__(self) -> None:
        for name in PEAKS:
            if name != "memory_margin":  # times of anything stay finite, and sums of bytes within 64 bits
                most = LARGEST_MEMORY_BYTES if name == "memory_bytes" else math.inf
                check_number(getattr(self, name).value, name, least=1, most=most)
        check_number(self.memory_margin.value, "memory_margin", most=1.0)
        for name in ("nvlink_gpus", "socket_gpus"):
            count = getattr(self, name).value
            if count != int(count):
                raise ConfigError("not a valid number", where=name, expected="an integer >= 1", got=count)
        if self.fp8_layouts.value not in (1, 2):
            raise ConfigError(
                "not a number of layouts", where="fp8_layouts", expected="1 or 2", got=self.fp8_layouts.value, nearest=1
            )
        check_number(self.training_products.value, "training_products", least=1)
        for dtype, number in self.flop_per_s.items():
            check_number(number.value, f"flop_per_s.{dtype.value}", least=1)
        if DType.BF16 not in self.flop_per_s:
            raise ConfigError("no bf16 peak", where="flop_per_s.bf16", expected="a number > 0")
        for kind in OpKind:
            if not kind.is_communication and kind not in self.efficiencies:
                raise ConfigError("missing efficiency", where="efficiency", expected=kind.value)
        for port in Port:
            if port not in self.links:
                raise ConfigError("missing link efficiency", where="link", expected=port.value)
        for name in ("flop_per_s", "efficiencies", "variants", "links", "software", "attention_kernels"):
            object.__setattr__(self, name, dict(getattr(self, name)))

    def __hash__(self) -> int:
        return hash((self.name, self.memory_bytes, self.mem_bytes_per_s, self.nvlink_bytes_per_s))

    def peak_flop_per_s(self, dtype: DType) -> float:
        """Dense peak of a precision [FLOP/s].

        Raises:
            ConfigError: the device has no such arithmetic.
        """
        if dtype not in self.flop_per_s:
            names = ", ".join(have.value for have in self.flop_per_s)
            raise ConfigError(
                f"{self.name} has no {dtype.value} arithmetic",
                where=f"{self.name}: flop_per_s",
                expected=f"one of {names}",
                got=dtype.value,
                nearest=DType.BF16.value,
            )
        return self.flop_per_s[dtype].value

    def efficiency(self, kind: OpKind, *, dtype: DType | None = None, head_dim: int | None = None) -> Efficiency:
        """Efficiency of a compute kind, or its variant for a precision or for the nearest head dimension.

        Args:
            kind: a compute kind.
            dtype: precision of the arithmetic; selects e.g. the fp8 variant of MATMUL.
            head_dim: head dimension of an attention kernel; the variant of the nearest head dimension, by ratio,
                applies; the main coefficients are those of head dimension 128.
        """
        if dtype is not None and (kind, dtype) in self.variants:
            return self.variants[kind, dtype]
        if head_dim is not None:
            have = [key for of, key in self.variants if of is kind and isinstance(key, int)]
            nearest = min([MAIN_HEAD_DIM, *have], key=lambda dim: (max(dim, head_dim) / min(dim, head_dim), dim))
            return self.variants.get((kind, nearest), self.efficiencies[kind])
        return self.efficiencies[kind]

    def software_factors(self, software: Software) -> SoftwareFactors:
        """Factors of a framework, or of the one whose kernels it runs; neutral where the profile has neither."""
        return self.software.get(software) or self.software.get(software.kernels) or NEUTRAL_FACTORS

    def attention_factors(self, kernel: AttentionKernel | None) -> AttentionFactors:
        """Factors of an attention kernel, or of its relative; 1 where the profile has neither, and for None."""
        if kernel is None:
            return SAME
        own, other = self.attention_kernels.get(kernel), COMPARED.get(kernel)
        if own is not None:
            return own if other is None else own.of_times(self.attention_factors(other))
        factors = self.attention_factors(RELATIVES.get(kernel, other))
        is_first = kernel is AttentionKernel.FA1
        return AttentionFactors(FIRST_FLASH, FIRST_FLASH).of_times(factors) if is_first else factors

    def under(
        self,
        software: Software,
        kernel: AttentionKernel | None = None,
        *,
        is_deterministic: bool = False,
        has_aggregated_trees: bool = False,
    ) -> DeviceProfile:
        """The device with the factors of a training framework (KERNELS: without) and of an attention kernel.

        Args:
            software: the framework. kernel: that attention calls; None: the one that the profile was measured with.
            is_deterministic: whether its backward adds in a fixed order.
            has_aggregated_trees: whether the framework's library of collectives has them.
        """
        key = software, kernel, is_deterministic, has_aggregated_trees
        changed = self._under.get(key)
        if changed is None:
            changed = self._slowed(software, kernel, is_deterministic)
            if has_aggregated_trees:
                changed = replace(changed, has_aggregated_trees=True)
            self._under[key] = changed
        return changed

    @cached_property
    def _under(self) -> dict[tuple[Software, AttentionKernel | None, bool, bool], DeviceProfile]:
        return {}

    def _slowed(self, software: Software, kernel: AttentionKernel | None, is_deterministic: bool) -> DeviceProfile:
        factors = self.software_factors(software)
        attention = self.attention_factors(kernel)
        if is_deterministic:
            attention = attention.deterministic()
        products = self.training_products
        if software is Software.KERNELS or products.value <= factors.matmul.value:
            products = factors.matmul
        if factors.is_neutral and attention == SAME and products is factors.matmul:
            return self

        def _in_run(kind: OpKind, item: Efficiency, *, is_variant: bool = False) -> Efficiency:
            is_product = kind in _PRODUCTS and not is_variant
            return attention.slow(kind, item, products if is_product else factors.of_kind(kind))

        return replace(
            self,
            efficiencies={kind: _in_run(kind, item) for kind, item in self.efficiencies.items()},
            variants={key: _in_run(key[0], item, is_variant=True) for key, item in self.variants.items()},
            software={},
            attention_kernels={},
            interference=factors.interference.value,
            transfer_s=factors.transfer_s.value,
        )

    def over(self, fabric: Fabric) -> DeviceProfile:
        """The device with another network between its nodes."""
        nic = LinkEfficiency({**self.links[Port.NIC].kinds, **fabric.links})
        host = replace(self.host, transfer_stall=fabric.transfer_stall)
        return replace(self, links={**self.links, Port.NIC: nic}, has_trees=fabric.has_trees, host=host)

    def scaled(self, recipe: Fp8Recipe) -> DeviceProfile:
        """The device with the coefficients of an fp8 recipe for products and casts, where the profile has them."""
        if not any(key is recipe for _, key in self.variants):
            return self
        product = self.variants.get((OpKind.MATMUL, recipe), self.efficiency(OpKind.MATMUL, dtype=DType.FP8))
        cast = self.variants.get((OpKind.CAST, recipe), self.efficiencies[OpKind.CAST])
        return replace(
            self,
            efficiencies={**self.efficiencies, OpKind.CAST: cast},
            variants={**self.variants, (OpKind.MATMUL, DType.FP8): product},
        )

    def numbers(self) -> Iterator[tuple[str, Number]]:
        """Every number with its dotted key, e.g. ``flop_per_s.bf16``, ``efficiency.matmul.flop``, ``host.launch_s``."""
        for name in PEAKS:
            yield name, getattr(self, name)
        for dtype, number in self.flop_per_s.items():
            yield f"flop_per_s.{dtype.value}", number
        yield "host.launch_s", self.host.launch_s
        yield "host.memory_bytes", self.host.memory_bytes
        yield "host.eager_launch_s", self.host.eager_launch_s
        yield "host.blocking_launch_s", self.host.blocking_launch_s
        yield "host.transfer_stall", self.host.transfer_stall
        for key, section in self.sections().items():
            for name in coefficient_names(type(section)):
                yield f"{key}.{name}", Number(getattr(section, name), section.provenance, section.source)
        for software, factors in self.software.items():
            for name in FACTORS:
                yield f"software.{software.value}.{name}", getattr(factors, name)
        for kernel, attention in self.attention_kernels.items():
            for name in (*PASSES, *SHORT):
                if (number := getattr(attention, name)) is not None:
                    yield f"attention_kernel.{kernel.value}.{name}", number

    def sections(self) -> dict[str, Efficiency | CollectiveEfficiency]:
        """Dotted key -> coefficients, e.g. ``efficiency.matmul.fp8`` or ``link.nic.all_gather``."""
        links = ((port, *item) for port, link in self.links.items() for item in link.kinds.items())
        return {
            **{f"efficiency.{kind.value}": item for kind, item in self.efficiencies.items()},
            **{f"efficiency.{kind.value}.{variant_name(key)}": item for (kind, key), item in self.variants.items()},
            **{f"link.{port.value}.{kind.value}": item for port, kind, item in links},
        }

    def number(self, key: str, *, where: str | None = None) -> Number:
        """The number of a dotted key.

        Args:
            key: as ``numbers()`` gives it. where: place of the key, for errors; None: the profile's name.
        Raises:
            ConfigError: unknown key, with the nearest one.
        """
        numbers = dict(self.numbers())
        if key not in numbers:
            raise unknown_name("profile number", key, numbers, where=where or self.name)
        return numbers[key]

    def provenance_of(self, key: str) -> Provenance:
        """Provenance of a number, or the worst one of a section such as ``efficiency.matmul`` or ``link.nic``.

        Raises:
            ConfigError: unknown key, with the nearest one.
        """
        inside = [number.provenance for name, number in self.numbers() if name == key or name.startswith(f"{key}.")]
        return worst_provenance(*inside) if inside else self.number(key).provenance

    def by_provenance(self) -> dict[Provenance, list[str]]:
        """Dotted keys per provenance, best provenance first; provenances that do not occur are left out."""
        keys: dict[Provenance, list[str]] = {provenance: [] for provenance in Provenance}
        for key, number in self.numbers():
            keys[number.provenance].append(key)
        return {provenance: names for provenance, names in keys.items() if names}

    def override(self, numbers: Mapping[str, object], *, where: str = "override") -> DeviceProfile:
        """A copy with other numbers.

        Args:
            numbers: dotted key, as ``numbers()`` gives them, or nested tables of them -> value. An overridden number
                has provenance ``spec`` and source ``OVERRIDE_SOURCE``. A section with an overridden coefficient has
                provenance ``spec`` at best, and no ``relative_error``.
            where: place of the mapping, for errors.
        Raises:
            ConfigError: unknown key, with the nearest one; a number out of its range.
        """
        profile = self
        for key, value in _flatten(numbers):
            profile.number(key, where=f"{where}.{key}")
            with located(where):
                profile = profile._with_number(key, check_number(value, key, is_infinite_ok=True))
        return profile

    def _with_number(self, key: str, value: float) -> DeviceProfile:
        number = Number(value, Provenance.SPEC, OVERRIDE_SOURCE)
        group, *path = key.split(".")
        if not path:
            changed: dict[str, Any] = {group: number}
        elif group == "host":
            changed = {"host": replace(self.host, **{path[0]: number})}
        elif group == "flop_per_s":
            changed = {group: {**self.flop_per_s, DType(path[0]): number}}
        elif group == "software":
            framework = Software(path[0])
            with located(".".join([group, path[0]])):
                factors = replace(self.software[framework], **{path[1]: number})
            changed = {group: {**self.software, framework: factors}}
        elif group == "attention_kernel":
            kernel = AttentionKernel(path[0])
            with located(".".join([group, path[0]])):
                attention = replace(self.attention_kernels[kernel], **{path[1]: number})
            changed = {"attention_kernels": {**self.attention_kernels, kernel: attention}}
        else:
            changed = self._with_coefficient(key.rpartition(".")[0], path[-1], value)
        return replace(self, **changed)

    def _with_coefficient(self, header: str, name: str, value: float) -> dict[str, Any]:
        with located(header):
            section = with_coefficient(self.sections()[header], name, value)
        _, first, second = f"{header}.".split(".")[:3]
        if isinstance(section, CollectiveEfficiency):
            link = LinkEfficiency({**self.links[Port(first)].kinds, OpKind(second): section})
            return {"links": {**self.links, Port(first): link}}
        kind = OpKind(first)
        if second:
            return {"variants": {**self.variants, (kind, parse_variant(second)): section}}
        return {"efficiencies": {**self.efficiencies, kind: section}}


OVERRIDE_SOURCE = "override"
"""Source of numbers that ``override`` puts into a profile."""
LARGEST_MEMORY_BYTES = float(1 << 60)
"""Of a device: sums of what is on it stay within 64 bits."""
PEAKS = (
    "memory_bytes",
    "mem_bytes_per_s",
    "nvlink_bytes_per_s",
    "nic_bytes_per_s",
    "pcie_bytes_per_s",
    "nvlink_gpus",
    "socket_gpus",
    "socket_bytes_per_s",
    "memory_margin",
    "fp8_layouts",
    "training_products",
)
"""The profile's top-level numbers, by attribute and TOML key."""

_PRODUCTS = (OpKind.MATMUL, OpKind.GROUPED_MATMUL)
MAIN_HEAD_DIM = 128
"""Head dimension of the attention coefficients in ``DeviceProfile.efficiencies``."""


VariantKey = DType | int | Fp8Recipe
"""What an efficiency variant is for: a precision, a head dimension, an fp8 recipe."""

FP8_BLOCK = "fp8_block"
"""TOML name of the variant for blockwise scales."""
MXFP8 = "mxfp8"
"""TOML name of the variant for MXFP8's scales."""


def variant_name(key: VariantKey) -> str:
    """TOML name of an efficiency variant: ``fp8``, ``fp8_block``, ``mxfp8`` or ``head_dim_64``."""
    if isinstance(key, Fp8Recipe):
        return MXFP8 if key is Fp8Recipe.MXFP8 else FP8_BLOCK
    return key.value if isinstance(key, DType) else f"head_dim_{key}"


def parse_variant(name: str) -> VariantKey:
    """The key of a variant's TOML name.

    Raises:
        ConfigError: neither a precision nor ``fp8_block``, ``mxfp8`` or ``head_dim_N``.
    """
    if name == FP8_BLOCK:
        return Fp8Recipe.BLOCKWISE
    if name == MXFP8:
        return Fp8Recipe.MXFP8
    head_dim = name.removeprefix("head_dim_")
    if head_dim != name and head_dim.isdecimal() and int(head_dim) > 0:
        return int(head_dim)
    names = [dtype.value for dtype in DType]
    if name in names:
        return DType(name)
    raise unknown_name("variant", name, [*names, FP8_BLOCK, MXFP8, "head_dim_64"], where=name)


def _flatten(numbers: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in numbers.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
