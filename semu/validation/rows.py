"""Reading a runs file: ``read_rows``, ``parse_rows``, and the set that ships with semu, ``published_rows``.

A row that lacks a field, or has a wrong one, becomes a ``BadRow`` that names the field; the others are read all the
same. Fields that semu does not need are not looked at.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from semu.checks import check_member, is_integer, is_number
from semu.errors import ConfigError
from semu.files import parse_json
from semu.hardware.profile import list_fabrics, list_profiles
from semu.hardware.software import Software
from semu.simulation.effects.pass_times import PassTimes
from semu.validation.adapters import lora_table
from semu.validation.launch_arguments import told_by_arguments
from semu.validation.multimodal import run_of_multimodal
from semu.validation.multimodal_training import training_of_multimodal
from semu.validation.open_sizes import complete_sizes
from semu.validation.row import NO_TRANSFORMER, BadRow, Measure, Row, Scope, Shape, Trust

PUBLISHED = Path(__file__).with_name("published.json")
"""Published runs that ship with semu, typed in from their sources."""

_E = TypeVar("_E", bound=Enum)


def published_rows() -> tuple[Row | BadRow, ...]:
    """The rows that ship with semu."""
    return read_rows(PUBLISHED)


def read_rows(path: str | os.PathLike[str]) -> tuple[Row | BadRow, ...]:
    """The rows of a runs file.

    Args:
        path: a JSON file, a list of objects.
    Raises:
        ConfigError: the file cannot be read, is no JSON, or is no list.
    """
    where = os.fspath(path)
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(
            f"cannot read the runs file: {error.strerror}", where=where, expected="a JSON file with a list of runs"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError("not UTF-8 text", where=where, expected="a JSON file", got=error.reason) from error
    data = parse_json(text, where, "a list of objects")
    if not isinstance(data, list):
        raise ConfigError("not a list of runs", where=where, expected="a list of objects", got=type(data).__name__)
    return parse_rows(data)


def parse_rows(data: Sequence[object]) -> tuple[Row | BadRow, ...]:
    """Rows of a runs file that has been read.

    Args:
        data: its objects; a second one with the same id is a ``BadRow``.
    """
    rows: list[Row | BadRow] = []
    seen: set[str] = set()
    for number, item in enumerate(data, start=1):
        row = _parse_row(item, number)
        if row.id in seen:
            row = BadRow(f"{row.id} (row {number})", row.group, "", "id: another row has it")
        seen.add(row.id)
        rows.append(row)
    return tuple(rows)


def _parse_row(item: object, number: int) -> Row | BadRow:
    if not isinstance(item, Mapping):
        return BadRow(f"row {number}", "", "", f"not an object: {type(item).__name__}")
    name, group, trust = (item.get(key) for key in ("id", "group", "trust"))
    try:
        return _row(_Fields({**item, **told_by_arguments(item)}, ""))
    except ConfigError as error:
        return BadRow(
            name if isinstance(name, str) and name else f"row {number}",
            group if isinstance(group, str) else "",
            trust if isinstance(trust, str) else "",
            str(error),
        )


class _Fields:
    """Typed access to one object; every error names the field.

    Args:
        table: the object. path: dotted path of the object in the row, with a dot at its end, or empty.
    """

    def __init__(self, table: Mapping[str, object], path: str) -> None:
        self.table, self.path = table, path

    def _get(self, name: str, expected: str) -> object:
        if name not in self.table:
            raise ConfigError("missing field", where=self.path + name, expected=expected)
        return self.table[name]

    def _refuse(self, name: str, expected: str) -> ConfigError:
        return ConfigError(
            "a wrong value", where=self.path + name, expected=expected, got=json.dumps(self.table[name])[:60]
        )

    def size(self, name: str, least: int = 1) -> int:
        """An integer of at least ``least``."""
        expected = f"an integer >= {least}"
        value = self._get(name, expected)
        if not is_integer(value) or value < least:
            raise self._refuse(name, expected)
        return value

    def _is_null(self, name: str, expected: str, *, is_optional: bool) -> bool:
        """Whether a field is null, or absent where it is optional."""
        return self.table.get(name) is None if is_optional else self._get(name, f"{expected} or null") is None

    def size_or_none(self, name: str, *, is_optional: bool = False) -> int | None:
        """An integer of at least one, or null for 'not published'."""
        return None if self._is_null(name, "an integer >= 1", is_optional=is_optional) else self.size(name)

    def amount_or_none(self, name: str, *, is_optional: bool = False) -> float | None:
        """A positive number, or null."""
        if self._is_null(name, "a number > 0", is_optional=is_optional):
            return None
        value = self.table[name]
        if not is_number(value) or not 0 < value < math.inf:
            raise self._refuse(name, "a number > 0 or null")
        return float(value)

    def word(self, name: str) -> str:
        """A text that is not empty."""
        value = self._get(name, "a word")
        if not isinstance(value, str) or not value:
            raise self._refuse(name, "a word")
        return value

    def word_or_none(self, name: str, *, is_optional: bool = False) -> str | None:
        """A text that is not empty, or null."""
        return None if self._is_null(name, "a word", is_optional=is_optional) else self.word(name)

    def words(self, name: str) -> tuple[str, ...]:
        """A list of words; absent or null: none."""
        value = self.table.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(word, str) and word for word in value):
            raise self._refuse(name, "a list of words")
        return tuple(value)

    def member(self, name: str, kind: type[_E]) -> _E | None:
        """One of an enum's words; None: absent or null."""
        value = self.word_or_none(name, is_optional=True)
        return None if value is None else check_member(value, kind, self.path + name, "word")

    def switch(self, name: str) -> bool:
        """True or false."""
        value = self._get(name, "true or false")
        if not isinstance(value, bool):
            raise self._refuse(name, "true or false")
        return value

    def switch_or_none(self, name: str) -> bool | None:
        """True, false; None: absent or null."""
        return None if self.table.get(name) is None else self.switch(name)

    def child(self, name: str, *, is_optional: bool = False) -> Mapping[str, object] | None:
        """An object, or None where it is optional and absent or null."""
        value = self.table.get(name) if is_optional else self._get(name, "an object")
        if value is None and is_optional:
            return None
        if not isinstance(value, Mapping):
            raise self._refuse(name, "an object")
        return value


_OVERLAPS = ("dp_grad_reduce", "dp_param_gather", "tp_comm", "pp_p2p", "fsdp_prefetch", "moe_a2a")


def _row(fields: _Fields) -> Row:
    trust = fields.member("trust", Trust)
    if trust is None:
        raise ConfigError("missing field", where="trust", expected="one of " + ", ".join(t.value for t in Trust))
    overlap = _Fields(fields.child("overlap", is_optional=True) or {}, "overlap.")
    measured = _Fields(fields.child("measured_values", is_optional=True) or {}, "measured_values.")
    run, remarks = _run(fields)
    sizes = {name: fields.size(name) for name in ("gpus", "gpus_per_node", "dp", "tp", "pp", "cp", "ep")}
    domain, tray = None, fields.size_or_none("gpus_per_tray", is_optional=True)
    if tray is not None and tray < sizes["gpus_per_node"]:
        domain, sizes["gpus_per_node"] = sizes["gpus_per_node"], tray
    open_: dict[str, Any] = {}
    if run is not None:
        run, sizes, batch = complete_sizes(fields.table, run, sizes, remarks)
        open_ = {"micro_batch": batch[0], "global_batch": batch[1], "iteration_time_s": batch[2]}
    row = Row(
        id=fields.word("id"),
        group=fields.word("group"),
        trust=trust,
        shape=NO_TRANSFORMER if run is not None and "model" in run else _shape(_Fields(_model(fields), "model.")),
        profile=_device(fields),
        **sizes,
        nvlink_domain=domain,
        global_batch=open_["global_batch"] if open_ else fields.size("global_batch"),
        vp=fields.size_or_none("vp"),
        micro_batch=open_["micro_batch"] if open_ else fields.size_or_none("micro_batch"),
        lora=lora_table(fields.child("lora", is_optional=True)),
        run=run,
        precision=fields.word("precision_kind"),
        fp8_recipe="mxfp8" if str(fields.table.get("precision", "")).startswith("mxfp8") else None,
        recompute=fields.word("recompute_kind"),
        sharding=fields.word("sharding_kind"),
        schedule=fields.word_or_none("schedule_kind"),
        sequence_parallel=fields.switch("sequence_parallel"),
        zero_group=fields.size_or_none("zero_group", is_optional=True),
        activation_limit=fields.word_or_none("activation_limit", is_optional=True),
        etp=fields.size_or_none("etp", is_optional=True),
        overlap={name: overlap.switch_or_none(name) for name in _OVERLAPS},
        software=_software(fields),
        software_date=fields.word_or_none("software_date", is_optional=True),
        attention=_first_word(fields.word_or_none("attention", is_optional=True)),
        attention_kernel=fields.word_or_none("attention_kernel", is_optional=True),
        attention_deterministic=fields.switch_or_none("attention_deterministic"),
        cross_entropy=fields.word_or_none("cross_entropy", is_optional=True),
        moe_dispatcher=fields.word_or_none("moe_dispatcher", is_optional=True),
        drops_tokens=re.search(r"\btoken[- ]drop", str(fields.table.get("notes") or ""), re.IGNORECASE) is not None,
        gradient_accumulation_fusion=fields.switch_or_none("gradient_accumulation_fusion"),
        recompute_modules=fields.words("recompute_modules"),
        nic_bytes_per_s=fields.amount_or_none("nic_bytes_per_s", is_optional=True),
        fabric=_fabric(fields),
        grad_dtype=_first_word(fields.word_or_none("grad_dtype", is_optional=True)),
        offloaded_layers=_offloaded_layers(fields, remarks),
        compiled=fields.switch_or_none("torch_compile"),
        layout=fields.child("layout", is_optional=True),
        scope=fields.member("peak_mem_scope", Scope),
        measure=_measure(fields),
        iteration_time_s=open_["iteration_time_s"] if open_ else fields.amount_or_none("iteration_time_s"),
        peak_mem_bytes=fields.amount_or_none("peak_mem_bytes"),
        activation_bytes=measured.amount_or_none("activation_bytes", is_optional=True),
        static_bytes=measured.amount_or_none("params_grads_optimizer_bytes", is_optional=True),
        remarks=tuple(remarks),
        pass_times=_pass_times(measured.child("profiled_ms_per_microbatch", is_optional=True)),
    )
    _check(row)
    return row


def _offloaded_layers(fields: _Fields, remarks: list[str]) -> int:
    """Layers in ``cpu_offloading``: a number, or words with "N of M"; words that tell no number are said to be left
    out."""
    value = fields.table.get("cpu_offloading")
    if value is None or value is False:
        return 0
    if is_integer(value):
        return fields.size("cpu_offloading", 0)
    told = re.search(r"\b(\d+) of \d+\b", fields.word("cpu_offloading"))
    if told is None:
        remarks.append("cpu_offloading tells no number of layers (N of M): taken as none")
    return 0 if told is None else int(told[1])


def _device(fields: _Fields) -> str:
    """The row's profile; where the row's words name another GPU of which semu has one profile, that."""
    named = re.match(r"[a-z0-9]+", (fields.word_or_none("gpu", is_optional=True) or "").lower())
    profile = fields.word("profile")
    if named is None or profile.split("-")[0] == named[0]:
        return profile
    alike = [name for name in list_profiles() if name.split("-")[0] == named[0]]
    return alike[0] if len(alike) == 1 else profile


def _fabric(fields: _Fields) -> str | None:
    """The network between nodes, where the file names one that semu has, by itself or in its words on the network."""
    words = re.findall(r"\w+", (fields.word_or_none("inter_net", is_optional=True) or "").lower())
    named = fields.word_or_none("fabric", is_optional=True)
    return named or next((name for name in list_fabrics() if name in words), None)


def _software(fields: _Fields) -> str | None:
    """The framework that the file names, or, where its remarks or its source name one that runs the same kernels, that
    one."""
    named = fields.word_or_none("software", is_optional=True)
    told = " ".join(str(fields.table.get(name) or "") for name in ("notes", "source")).lower()
    runs_them = (item.value for item in Software if item.kernels is not item and item.kernels.value == named)
    return next((name for name in runs_them if name in told), named)


def _measure(fields: _Fields) -> Measure | None:
    """What of a device's memory was measured; what nvidia-smi shows is more than the allocator holds."""
    measure, words = fields.member("peak_mem_measure", Measure), fields.word_or_none("peak_mem_kind", is_optional=True)
    return Measure.DEVICE if measure is Measure.RESERVED and "nvidia-smi" in (words or "") else measure


def _model(fields: _Fields) -> Mapping[str, object]:
    model = fields.child("model")
    assert model is not None
    return model


def _run(fields: _Fields) -> tuple[Mapping[str, Mapping[str, object]] | None, list[str]]:
    """A row's ``run``, or what its ``multimodal`` object says where it has no transformer; None: it has neither."""
    told, multimodal = fields.child("run", is_optional=True), fields.child("multimodal", is_optional=True)
    if told is not None:
        tables = _Fields(told, "run.")
        return {name: tables.child(name) or {} for name in told}, []
    model = fields.child("model", is_optional=True) or {}
    if multimodal is None or ("layers" in model and "hidden" in model):
        return None, []
    tables_of, remarks = run_of_multimodal(multimodal)
    training, more = training_of_multimodal(fields.table, multimodal)
    return tables_of | ({"training": training} if training else {}), [*remarks, *more]


def _pass_times(table: Mapping[str, object] | None) -> PassTimes | None:
    """``T_F``, ``T_B`` and ``T_W`` in ms; None: the row has none."""
    told = _Fields(table or {}, "measured_values.profiled_ms_per_microbatch.")
    found = [told.amount_or_none(name, is_optional=True) for name in ("T_F", "T_B", "T_W")]
    forward, inputs, weights = (None if ms is None else ms / 1e3 for ms in found)
    if forward is None or inputs is None or weights is None:
        return None
    return PassTimes(forward, inputs, weights)


def _shape(fields: _Fields) -> Shape:
    dropout = fields.table.get("dropout")
    if dropout is not None and not is_number(dropout):
        raise ConfigError("a wrong value", where="model.dropout", expected="a number >= 0 or null", got=dropout)
    sizes = ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocab", "seq_len")
    return Shape(
        **{name: fields.size(name) for name in sizes},
        ffn=fields.size("ffn_hidden"),
        gated_mlp=fields.switch("gated_mlp"),
        tied_embeddings=fields.switch("tied_embeddings"),
        bias=fields.switch("bias_linear"),
        norm=fields.word("norm"),
        position=fields.word("position"),
        activation=fields.word_or_none("activation", is_optional=True),
        qkv_bias=fields.switch_or_none("attention_bias"),
        vocab_padded=fields.size_or_none("vocab_padded", is_optional=True),
        positions=fields.size_or_none("max_position_embeddings", is_optional=True),
        dropout=None if dropout is None else float(dropout),
        moe=fields.child("moe", is_optional=True),
        mla=fields.child("mla", is_optional=True),
        mtp_layers=0 if fields.table.get("mtp_layers") is None else fields.size("mtp_layers", least=0),
    )


def _first_word(text: str | None) -> str:
    return next(iter((text or "").split()), "").lower()


def _check(row: Row) -> None:
    """Fields that contradict one another."""
    ranks = row.dp * row.tp * row.pp * row.cp
    if ranks != row.gpus:
        raise ConfigError(
            "not the product of dp, tp, pp and cp",
            where="gpus",
            expected=f"{row.dp} x {row.tp} x {row.pp} x {row.cp} = {ranks}",
            got=row.gpus,
        )
    if row.gpus > row.gpus_per_node and row.gpus % row.gpus_per_node:
        raise ConfigError(
            "no whole number of nodes", where="gpus", expected=f"a multiple of {row.gpus_per_node}", got=row.gpus
        )
    step = row.dp * (row.micro_batch or 1)
    if row.global_batch % step:
        raise ConfigError(
            "does not divide into microbatches",
            where="global_batch",
            expected=f"a multiple of {step}",
            got=row.global_batch,
        )
    if row.trust is Trust.FORMULA and row.measure is None:
        raise ConfigError("missing beside trust = formula", where="peak_mem_measure", expected="analytic")
    if row.peak_mem_bytes is not None:
        for name, value in (("peak_mem_scope", row.scope), ("peak_mem_measure", row.measure)):
            if value is None:
                raise ConfigError("missing beside peak_mem_bytes", where=name, expected="a word")
