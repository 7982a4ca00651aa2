"""``read_registry``: a function of torchtitan's Python registry (0.3), read as text, becomes keys of TOML files.

    def llama3_8b() -> Trainer.Config:
        return Trainer.Config(model_spec=model_registry("8B"), training=TrainingConfig(local_batch_size=1), ...)

A key whose value only running the file would tell is a gap. Where releases have other defaults than 0.2, the registry's
are written out: attention, the recipe of fp8, CUDA graphs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from semu.errors import ConfigError, unknown_name
from semu.imports.arguments import Argument, Given
from semu.imports.flags import FlagTable
from semu.imports.torchtitan.following import EFFECT, UNKNOWN, Call, Follower, Unknown

_MODES = {"SelectiveAC": "selective", "FullAC": "full", "MemoryBudgetAC": "memory_budget"}
_CONVERTERS = {
    "Float8LinearConverter": "float8",
    "Float8GroupedExpertsConverter": "grouped_mm.float8",
    "MXFP8LinearConverter": "mx",
    "MXFP8GroupedExpertsConverter": "grouped_mm.mx",
    "NVFP4LinearConverter": "nvfp4",
}
_FLOAT8 = {"recipe_name": "rowwise", "filter_fqns": None, "emulate": None}
"""Keywords of Float8LinearConverter -> its default; None: as a TOML file's."""
_SPEC = {
    "attn_backend": "model.attn_backend",
    "moe_comm_backend": "parallelism.expert_parallel_comm_backend",
    "non_blocking_capacity_factor": "model.non_blocking_capacity_factor",
    "num_mtp_layers": "model.num_mtp_layers",
}
_ATTENTION = {"gpt_oss": "varlen"}
"""Model -> its attention where a registry does not say; else flex."""
_TABLES = ("training", "parallelism", "compile", "comm", "debug", "override", "fault_tolerance")
_CONSTRUCTORS = ("Config", "FaultTolerance")
"""Ends of names of what makes such a table; what another function makes is not known."""
_ADAM = ("AdamW", "Adam")
_ANOTHER = "another"
_TRAINER = "Trainer.Config"


def read_registry(text: str, source: str, name: str | None, flags: FlagTable, models: Collection[str]) -> Given:
    """Keys of one function.

    Args:
        text: the file. source: its name, for messages; the folder of a model tells whose registry it is.
        name: of the function; None: the only one. flags: torchtitan's keys. models: names of its models.
    Raises:
        ConfigError: text that is no Python, no function of that name, several and none is named.
    """
    follower = Follower(text, source)
    found = {key: function for key, function in follower.functions.items() if _returns(function).endswith(_TRAINER)}
    chosen = _chosen(follower, found, source, name)
    trainer = follower.result(chosen)
    if not isinstance(trainer, Call):
        where = f"{source}:{found[chosen].lineno}"
        raise ConfigError("not a configuration", where=where, expected="Trainer.Config(...)")
    trainer.name = follower.base(trainer.name)
    spec = trainer.fields.get("model_spec")
    folder = re.search(r"(?:^|/)models/(\w+)/[^/]*$", source)
    named = [model for model in models if chosen.startswith(f"{model}_")]
    told = spec.whose if isinstance(spec, Call) and spec.whose in models else None
    whose = told or (folder[1] if folder is not None else max(named, key=len, default=None))
    return Given(source, "registry of torchtitan", flags, tuple(_arguments(trainer, whose, flags)))


def _chosen(follower: Follower, found: Mapping[str, ast.FunctionDef], source: str, name: str | None) -> str:
    """The function that is meant."""
    if name is None and len(found) == 1:
        return next(iter(found))
    if name is None:
        raise ConfigError(
            f"{len(found)} configurations in the file",
            where=source,
            expected="--define config=NAME, one of " + ", ".join(found),
            got="no name",
            nearest=f"--define config={next(iter(found))}" if found else None,
        )
    if name in found:
        return name
    if name in follower.functions:
        function = follower.functions[name]
        got = _returns(function) or "nothing that it names"
        message = f"{name} returns no configuration of a trainer that semu reads"
        raise ConfigError(message, where=f"{source}:{function.lineno}", expected=_TRAINER, got=got)
    raise unknown_name("configuration", name, found, where="--define config")


def _returns(function: ast.FunctionDef) -> str:
    return "" if function.returns is None else ast.unparse(function.returns).strip("'\"")


def _arguments(trainer: Call, model: str | None, flags: FlagTable) -> Iterator[Argument]:
    """The keys that a TOML file would have."""

    def _one(key: str, value: Any, line: int) -> Argument:
        gap = f"{key} (line {line}: only running the file would tell)"
        if isinstance(value, list):
            words = tuple(_word(item) for item in value) or ("[]",)
            return Argument(flags.spelt(key), key, words, line, "" if UNKNOWN not in value else gap)
        return Argument(flags.spelt(key), key, (_word(value),), line, gap if value is UNKNOWN else "")

    kind = trainer.name.rpartition(".")[0].rpartition(".")[2] or trainer.name
    yield _one("trainer", kind, trainer.line)
    spec = trainer.fields.get("model_spec")
    yield _one("model.name", UNKNOWN if model is None else model, trainer.line)
    if isinstance(spec, Call):
        for key, value in _specified(spec, model):
            yield _one(key, value, spec.line)
    else:
        yield _one("model.flavor", UNKNOWN, trainer.line)
    again = trainer.fields.get("activation_checkpoint", Call("SelectiveAC.Config", trainer.line))
    mode = "none" if again is None else _MODES.get(again.name.partition(".")[0]) if isinstance(again, Call) else None
    yield _one("activation_checkpoint.mode", UNKNOWN if mode is None else mode, trainer.line)
    if mode == "selective":
        yield _one("activation_checkpoint.selective_ac_option", "op", trainer.line)
    loss = trainer.fields.get("loss")
    if isinstance(loss, Call) and loss.name.startswith("Chunked"):
        yield _one("loss.chunked", True, loss.line)
    yield _one("optimizer.name", _optimizer(trainer.fields.get("optimizer")), trainer.line)
    held = trainer.fields.get("training")
    if not isinstance(held, Call) or "disable_cuda_graphs" not in held.fields:
        yield _one("training.disable_cuda_graphs", False, trainer.line)
    for table in _TABLES:
        call = trainer.fields.get(table)
        if isinstance(call, Call) and call.name.endswith(_CONSTRUCTORS):
            for key, value in call.fields.items():
                yield _one(f"{table}.{key}", value, call.line)
        elif call is not None:
            yield _one(table, UNKNOWN, trainer.line)
    for key in trainer.fields:
        if key.endswith(EFFECT):
            yield _one(key, UNKNOWN, trainer.line)


def _specified(spec: Call, model: str | None) -> Iterator[tuple[str, Any]]:
    """What the call of a model's registry says."""
    yield "model.flavor", spec.first if spec.first is not None else spec.fields.get("flavor", UNKNOWN)
    told = {"attn_backend": _ATTENTION.get(model or "", "flex"), **spec.fields}
    for name, key in _SPEC.items():
        if told.get(name) is not None:
            yield key, told[name]
    if (backend := told.get("tp_gemm_backend", "default")) != "default":
        yield "parallelism.enable_async_tensor_parallel", True if backend == "dist_gemm" else UNKNOWN
    converters = told.get("converters") or []
    if converters:
        is_list = isinstance(converters, list)
        yield "model.converters", [_converter(item) for item in converters] if is_list else UNKNOWN
    for item in converters if isinstance(converters, list) else []:
        if isinstance(item, Call) and _converter(item) == "float8":
            for name, default in _FLOAT8.items():
                if (value := item.fields.get(name, default)) is not None:
                    yield f"quantize.linear.float8.{name}", value


def _optimizer(call: Any) -> str:
    """Name of the optimizer: AdamW where every group of parameters has it or Adam, else the first other one."""
    if call is None or (isinstance(call, Call) and call.name.endswith("default_adamw")):
        return "AdamW"
    groups = call.fields.get("param_groups", []) if isinstance(call, Call) else None
    if not isinstance(groups, list) or not call.name.endswith("OptimizersContainer.Config"):
        return _ANOTHER
    names = [item.fields.get("optimizer_name") if isinstance(item, Call) else None for item in groups]
    return next((name if isinstance(name, str) else _ANOTHER for name in names if name not in _ADAM), "AdamW")


def _converter(value: Any) -> str:
    name = value.name.partition(".")[0] if isinstance(value, Call) else "unknown"
    return _CONVERTERS.get(name, name)


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "?" if isinstance(value, Unknown | Call) else str(value)
