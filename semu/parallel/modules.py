"""``ModuleParallel``: how one modality module is spread over GPUs, those of the job's other modules or its own.

A pipeline rank of one data-parallel replica has tp x cp GPUs. A module with smaller sizes of its own cuts the same GPUs
into more, smaller groups; each group has the module's weights, split over its tp, and runs some of the items (images,
clips) of every microbatch: data parallelism inside the replica. Megatron-LM's ranks are ordered anew for it, tensor
fastest, then context, then data. A module with ``gpus`` has GPUs of its own, as in Cornstarch
(``semu.parallel.own_gpus``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from semu.checks import check_integer, check_switch, check_word
from semu.errors import ConfigError
from semu.parallel.axes import AXES
from semu.parallel.context import module_ranks
from semu.parallel.pipeline import nearest_multiple
from semu.records import dataclass


@dataclass(frozen=True)
class ModuleParallel:
    """Sizes of one modality module; None: as the job's, dp as it follows.

    Attributes:
        tp: tensor-parallel size, a divisor of the job's tp x cp, at most its tp.
        sequence_parallel: shard activations over the sequence between tensor-parallel regions.
        cp: context-parallel size: 1 or the job's.
        dp: data-parallel size. It follows: all GPUs of a pipeline rank are used, so dp x tp x cp is the job's.
        pp: pipeline ranks of the module, where modules have ranks of their own (``segments`` of ``"apart"`` or
            ``"colocated"``); else the job's.
        vpp, ep: the job's; others are not modelled by this version.
        gpus: GPUs that the module has for itself, of all replicas together: a multiple of the job's dp x tp x cp x pp
            of the module; what is more runs further groups of ranks, each some of the items. Its tp and cp are any
            sizes then. None: its pipeline ranks have the job's tp x cp GPUs.
        first_rank: its first pipeline rank; ``on_own_gpus`` finds it, no run file says it.
    """

    tp: int | None = None
    sequence_parallel: bool | None = None
    cp: int | None = None
    dp: int | None = None
    pp: int | None = None
    vpp: int | None = None
    ep: int | None = None
    gpus: int | None = None
    first_rank: int | None = None

    @classmethod
    def of(cls, name: str, value: object) -> ModuleParallel:
        """A module's parallelism, or the one that a table of a run file describes.

        Args:
            name: of the module. value: a ``ModuleParallel`` or a table.
        Raises:
            ConfigError: neither, an unknown key, something that is no size.
        """
        where = f"parallel.modules.{name}"
        made = value
        if isinstance(value, Mapping):
            legal = [item.name for item in fields(cls) if item.name != "first_rank"]
            for key in value:
                check_word(key, legal, "key", f"{where}.{key}")
            made = cls(**value)
        if not isinstance(made, ModuleParallel):
            raise ConfigError(
                "not a module's parallelism",
                where=where,
                expected="a table, or semu.ModuleParallel(...)",
                got=repr(value),
            )
        for key in (item.name for item in fields(cls) if item.name in (*AXES, "gpus")):
            size = getattr(made, key)
            if size is not None:
                check_integer(size, f"{where}.{key}", "a number of GPUs" if key == "gpus" else "a parallel size")
        if made.sequence_parallel is not None:
            check_switch(made.sequence_parallel, f"{where}.sequence_parallel")
        return made

    def to_table(self) -> dict[str, Any]:
        """The keys that are set, as ``of`` reads them."""
        values = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "first_rank"}
        return {name: value for name, value in values.items() if value is not None}

    def sizes(self, name: str, job: Mapping[str, int], *, has_ranks: bool = False) -> tuple[int, int, int]:
        """The module's (dp, cp, tp).

        Args:
            name: of the module. job: the job's ``sizes``. has_ranks: the module has pipeline ranks of its own.
        Raises:
            ConfigError: sizes that do not divide, that contradict one another, or that this version does not model.
        """
        where = f"parallel.modules.{name}"
        for key in ("pp", "vpp", "ep"):
            size = getattr(self, key)
            if size not in (None, job[key]) and not (key == "pp" and has_ranks):
                same = "experts are spread alike in all modules" if key == "ep" else "all share the pipeline ranks"
                raise ConfigError(
                    f"{key} = {size} for one module is not modelled by this version: {same}",
                    where=f"{where}.{key}",
                    expected=f"{job[key]}, as parallel.{key}",
                    got=size,
                    nearest=job[key],
                )
        tp = self.tp if self.tp is not None else job["tp"]
        if self.gpus is not None:
            return self._sizes_of_own(self.gpus, tp, job, where)
        cp = module_ranks(self.cp, job["cp"], where)
        if job["tp"] % tp:
            legal = [size for size in range(1, job["tp"] + 1) if job["tp"] % size == 0]
            raise ConfigError(
                f"tensor-parallel groups of {tp} do not fit into the job's of {job['tp']}",
                where=f"{where}.tp",
                expected=f"a divisor of parallel.tp = {job['tp']}",
                got=tp,
                nearest=min(legal, key=lambda size: (abs(size - tp), size)),
            )
        return self._checked(job["tp"] * job["cp"] // (tp * cp), cp, tp, job, where)

    def _sizes_of_own(self, gpus: int, tp: int, job: Mapping[str, int], where: str) -> tuple[int, int, int]:
        """The same on GPUs of its own."""
        cp = self.cp if self.cp is not None else job["cp"]
        each = job["dp"] * tp * cp * (self.pp or 1)
        if gpus % each:
            raise ConfigError(
                f"{gpus} GPUs do not divide into groups of dp x tp x cp x pp = "
                f"{job['dp']} x {tp} x {cp} x {self.pp or 1}",
                where=f"{where}.gpus",
                expected=f"a multiple of {each}",
                got=gpus,
                nearest=nearest_multiple(gpus, each),
            )
        return self._checked(gpus // each, cp, tp, job, where)

    def _checked(self, groups: int, cp: int, tp: int, job: Mapping[str, int], where: str) -> tuple[int, int, int]:
        """(dp, cp, tp) of so many groups of ranks in each replica, where nothing else that was told contradicts."""
        dp = job["dp"] * groups
        if self.dp not in (None, dp):
            raise ConfigError(
                f"dp = {self.dp} leaves GPUs without the module, or needs more than there are",
                where=f"{where}.dp",
                expected=f"{dp} = {job['dp']} x {groups}, or no dp",
                got=self.dp,
                nearest=dp,
            )
        if self.sequence_parallel and tp == 1 and job["tp"] > 1:
            raise ConfigError(
                "sequence parallelism without tensor parallelism",
                where=f"{where}.sequence_parallel",
                expected="false or nothing, or tp >= 2",
                got="true with tp = 1",
                nearest=False,
            )
        return dp, cp, tp
