"""``Cluster``: a number of equal nodes with equal GPUs, and where ranks sit on them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from fractions import Fraction
from functools import cached_property
from typing import Any, Self

from semu.checks import check_integer, check_number
from semu.errors import ConfigError
from semu.hardware.capabilities import DeviceProfile
from semu.hardware.device import Device, DeviceKind, Direction
from semu.hardware.kinds import Port
from semu.hardware.network import CommGroup
from semu.hardware.profile import load_fabric, load_profile
from semu.records import dataclass

BYTES_PER_GBIT = 1e9 / 8


@dataclass(frozen=True)
class Cluster:
    """Nodes, GPUs and what they can do. GPUs are numbered node by node.

    Attributes:
        device: name of a shipped profile (what ``known_devices`` takes for one becomes it), path of a profile TOML, or
            a profile.
        nodes: nodes, >= 1.
        gpus_per_node: GPUs of each node, >= 1.
        override: dotted profile key (or nested tables of them) -> number, e.g. ``{"nvlink_bytes_per_s": 1e11}``.
        oversubscription: of the network between nodes, >= 1: GPUs that send at once share its upper tiers, and each
            reaches its card's bandwidth divided by this.
        fabric: of the network between nodes, one of ``list_fabrics``; None: that which the profile was measured with.
        nics_per_node: network cards that the GPUs of a node share evenly; None: one for each GPU.
        nic_gbit: of a card, one direction [Gbit/s]; None: the profile's card.
        leaf_nodes: consecutive nodes whose cards meet below the upper tiers, which ``oversubscription`` is of: of a
            rail-optimised network as many nodes as a rail's switch has ports; None: no two nodes do.
        nvlink_domain: consecutive GPUs that NVLink joins across nodes (trays of a rack); None: those of a node.
    Raises:
        ConfigError: unknown device or fabric, unknown override key, a count or an oversubscription below one, a domain
            that nodes do not divide, cards beside an overridden ``nic_bytes_per_s``.
    """

    device: str | DeviceProfile
    nodes: int = 1
    gpus_per_node: int = 8
    override: Mapping[str, object] = field(default_factory=dict)
    oversubscription: float = 1.0
    fabric: str | None = None
    nics_per_node: int | None = None
    nic_gbit: float | None = None
    leaf_nodes: int | None = None
    nvlink_domain: int | None = None

    def __post_init__(self) -> None:
        for name in ("nodes", "gpus_per_node"):
            count = getattr(self, name)
            check_integer(count, f"cluster.{name}")
        check_number(self.oversubscription, "cluster.oversubscription", "a ratio", least=1)
        if self.nvlink_domain is not None:
            check_integer(self.nvlink_domain, "cluster.nvlink_domain")
            if self.nvlink_domain % self.gpus_per_node:
                raise ConfigError(
                    "an NVLink domain that nodes do not make up",
                    where="cluster.nvlink_domain",
                    expected=f"a multiple of gpus_per_node = {self.gpus_per_node}",
                    got=self.nvlink_domain,
                    nearest=max(self.nvlink_domain // self.gpus_per_node, 1) * self.gpus_per_node,
                )
        object.__setattr__(self, "override", dict(self.override))
        for name in ("nics_per_node", "leaf_nodes"):
            if getattr(self, name) is not None:
                check_integer(getattr(self, name), f"cluster.{name}")
        if self.nic_gbit is not None:
            check_number(self.nic_gbit, "cluster.nic_gbit", is_above=True)
        if self.has_own_cards and "nic_bytes_per_s" in self.override:
            raise ConfigError(
                "network cards are told twice",
                where="cluster.override.nic_bytes_per_s",
                expected="nics_per_node and nic_gbit, or bytes per second and GPU",
                got=self.override["nic_bytes_per_s"],
            )
        name = self.profile.name  # reads and checks the profile at the door
        if isinstance(self.device, str) and not self.device.endswith(".toml"):
            object.__setattr__(self, "device", name)

    def __hash__(self) -> int:
        return hash((self.profile, self.nodes, self.gpus_per_node))

    @property
    def island(self) -> int:
        """Consecutive GPUs that talk without the network between nodes: those of a node, or of an NVLink domain."""
        return self.nvlink_domain or self.gpus_per_node

    @cached_property
    def profile(self) -> DeviceProfile:
        """What each GPU can do, overrides included."""
        profile = self.device if isinstance(self.device, DeviceProfile) else _load(self.device)
        if self.fabric is not None:
            profile = profile.over(load_fabric(self.fabric))
        profile = profile.override(self.override, where="cluster.override")
        if self.nvlink_domain is not None:
            profile = profile.override({"nvlink_gpus": self.nvlink_domain}, where="cluster.nvlink_domain")
        card = profile.nic_bytes_per_s.value if self.nic_gbit is None else self.nic_gbit * BYTES_PER_GBIT
        share = card * (self.nics_per_node or self.gpus_per_node) / self.gpus_per_node
        if self.leaf_nodes is None:
            share /= self.oversubscription
        if share == profile.nic_bytes_per_s.value:
            return profile
        return profile.override({"nic_bytes_per_s": share}, where="cluster.nics_per_node")

    @property
    def has_own_cards(self) -> bool:
        """Whether the network cards of a node are told."""
        return self.nics_per_node is not None or self.nic_gbit is not None

    @property
    def shares_cards(self) -> bool:
        """Whether several GPUs of a node send through one network card."""
        return self.nics_per_node is not None and self.nics_per_node < self.gpus_per_node

    @property
    def card_share(self) -> Fraction:
        """Of a network card, what a GPU has when all of its node send evenly."""
        return Fraction(self.nics_per_node or self.gpus_per_node, self.gpus_per_node)

    def card_of(self, gpu: int) -> int:
        """Network card that a GPU sends through: neighbours share one, as evenly as that goes."""
        node, local = divmod(gpu, self.gpus_per_node)
        cards = self.nics_per_node or self.gpus_per_node
        return node * cards + local * cards // self.gpus_per_node

    @property
    def period_gpus(self) -> int:
        """GPUs after which places repeat: groups that are so far apart are alike."""
        return math.lcm(self.island, self.gpus_per_node * (self.leaf_nodes or 1))

    @property
    def places(self) -> tuple[object, ...]:
        """What decides how ranks lie to one another."""
        reach = self.profile.nvlink_gpus.value, self.profile.socket_gpus.value
        return self.nodes, self.gpus_per_node, self.island, self.leaf_nodes, self.oversubscription, *reach

    @property
    def num_gpus(self) -> int:
        """GPUs of all nodes."""
        return self.nodes * self.gpus_per_node

    def label(self) -> str:
        """Short form, ``h800:8x8`` = device, nodes, GPUs per node; ``parse`` reads it."""
        device = self.device.name if isinstance(self.device, DeviceProfile) else self.device
        return f"{device}:{self.nodes}x{self.gpus_per_node}"

    @classmethod
    def parse(cls, text: str, override: Mapping[str, object] | None = None) -> Self:
        """Read the short form ``DEVICE:NODESxGPUS`` or ``DEVICE:GPUS``.

        Args:
            text: e.g. ``h800:8x8`` or ``h800:64``, as ``said_of_cluster`` reads it.
            override: as in the constructor.
        Raises:
            ConfigError: another form, no size, an unknown device.
        """
        said = said_of_cluster(text)
        if not said.keys() >= {"device", "nodes"}:
            raise _not_a_cluster(text)
        return cls(**said, override=override or {})

    def node_of(self, gpu: int) -> int:
        """Node of a GPU.

        Args:
            gpu: number in 0..num_gpus - 1.
        Raises:
            ConfigError: no such GPU.
        """
        if not 0 <= gpu < self.num_gpus:
            raise ConfigError(
                "no such GPU",
                where=f"cluster {self.label()}",
                expected=f"a GPU in 0..{self.num_gpus - 1}",
                got=gpu,
                nearest=min(max(gpu, 0), self.num_gpus - 1),
            )
        return gpu // self.gpus_per_node

    @property
    def hosts(self) -> tuple[Device, ...]:
        """One host per node."""
        return tuple(Device(DeviceKind.HOST, node) for node in range(self.nodes))

    @property
    def gpus(self) -> tuple[Device, ...]:
        """The compute device of every GPU."""
        return tuple(Device(DeviceKind.COMPUTE, gpu) for gpu in range(self.num_gpus))

    def host_of(self, gpu: int) -> Device:
        """Host of a GPU's node."""
        return Device(DeviceKind.HOST, self.node_of(gpu))

    def link(self, gpu: int, port: Port, direction: Direction) -> Device:
        """One of the two link devices of a GPU's port."""
        self.node_of(gpu)
        return Device(DeviceKind.LINK, gpu, port, direction)

    def place_group(self, name: str, gpus: Sequence[int]) -> CommGroup:
        """The communicator of some GPUs, with its shape on the nodes.

        Ranks of one node meet over NVLink where it joins them all (``nvlink_gpus`` consecutive GPUs), else over PCIe;
        an NVLink domain is one node. Where a group over PCIe crosses sockets, so do those of the node's other GPUs.

        Args:
            name: stream of the communicator, ``tp``, ``dp``, ...
            gpus: its members, each once; one member makes a group that sends nothing.
        Raises:
            ConfigError: no member, a member twice, no such GPU.
        """
        where = f"communicator {name}"
        if not gpus:
            raise ConfigError("no members", where=where, expected="at least one GPU", got=list(gpus))
        doubled = [gpu for gpu, count in Counter(gpus).items() if count > 1]
        if doubled:
            raise ConfigError("a GPU occurs twice", where=where, expected="each GPU once", got=doubled[0])
        for gpu in (min(gpus), max(gpus)):
            self.node_of(gpu)  # refuses a GPU that is not there
        places = [divmod(gpu, self.island) for gpu in gpus]
        per_node = Counter(node for node, _ in places)
        reach = int(self.profile.nvlink_gpus.value)
        islands = {(node, local // reach) for node, local in places}
        local_port = Port.NVLINK if len(islands) == len(per_node) else Port.PCIE
        below = self.profile.socket_gpus.value
        crosses = local_port is Port.PCIE and len({(n, local // below) for n, local in places}) > len(per_node)
        across = max(self.gpus_per_node // max(per_node.values()), 1) if crosses else 0
        leaf = self.gpus_per_node * (self.leaf_nodes or self.nodes)
        is_slowed = self.leaf_nodes is not None and len({gpu // leaf for gpu in gpus}) > 1
        slower = self.oversubscription if is_slowed and len(per_node) > 1 else 1.0
        return CommGroup(name, len(gpus), len(per_node), min(per_node.values()), local_port, 1.0, slower, across)


def _load(device: object) -> DeviceProfile:
    if not isinstance(device, str):
        raise ConfigError("not a device", where="cluster.device", expected="a name, a path or a profile", got=device)
    try:
        return load_profile(device)
    except ConfigError as error:
        error.where = "cluster.device" if error.where is None else error.where
        raise


DEFAULT_DEVICE = "h100"
"""The device where none is said."""
PER_NODE = 8
"""GPUs of a node where only the number of GPUs is said, as most machines for training have."""


def said_of_cluster(text: str) -> dict[str, Any]:
    """What a short form says of ``[cluster]``: ``device``, ``nodes`` and ``gpus_per_node``, or some of them.

    Args:
        text: ``DEVICE:NODESxGPUS``; ``DEVICE:GPUS``, one node or whole nodes of ``PER_NODE``; ``DEVICE`` or ``:GPUS``
            alone. The device may be the path of a profile TOML.
    Raises:
        ConfigError: another form, GPUs that make no whole nodes.
    """
    match = re.fullmatch(r"(?P<device>.*?)(?::(?:(?P<nodes>\d+)x)?(?P<gpus>\d+))?", text.strip())
    if match is None or (":" in match["device"] and not match["device"].endswith(".toml")):
        raise _not_a_cluster(text)
    device = {"device": match["device"]} if match["device"] else {}
    if match["gpus"] is None:
        if not device or re.fullmatch(r"\d+(x.*)?|[a-z][\w-]*[a-z\d]x\d+(x\d+)?", match["device"], re.IGNORECASE):
            raise _not_a_cluster(text)
        return device
    gpus = int(match["gpus"])
    if match["nodes"] is not None:
        return {**device, "nodes": int(match["nodes"]), "gpus_per_node": gpus}
    if gpus > PER_NODE and gpus % PER_NODE:
        raise ConfigError(
            f"{gpus} GPUs do not make nodes of {PER_NODE}",
            where="cluster",
            expected=f"up to {PER_NODE} GPUs, a multiple of {PER_NODE}, or DEVICE:NODESxGPUS",
            got=repr(text),
            nearest=f"{match['device']}:{-(-gpus // PER_NODE) * PER_NODE}".removeprefix(":"),
        )
    return {**device, "nodes": max(1, gpus // PER_NODE), "gpus_per_node": min(gpus, PER_NODE)}


def _not_a_cluster(text: str) -> ConfigError:
    """The error of a text that says no cluster; ``8xh100``, ``h100x8`` and the like with what was meant."""
    turned = re.fullmatch(r"(\d{1,9})(?:x(\d{1,9}))?[x:]([a-zA-Z][\w-]*)", text.strip())
    joined = re.fullmatch(r"([a-zA-Z][\w-]*?)x(\d{1,9})(?:x(\d{1,9}))?", text.strip())
    nearest = None
    if turned is not None:
        nearest = f"{turned[3]}:{turned[1]}" + (f"x{turned[2]}" if turned[2] else "")
    elif joined is not None:
        nearest = f"{joined[1]}:{joined[2]}" + (f"x{joined[3]}" if joined[3] else "")
    return ConfigError(
        "not a cluster",
        where="cluster",
        expected="DEVICE:NODESxGPUS or DEVICE:GPUS, e.g. h800:8x8 or h800:64",
        got=repr(text),
        nearest=nearest,
    )
