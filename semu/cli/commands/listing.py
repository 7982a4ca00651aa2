"""``semu list``: models, setups, devices, schedules, masks."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from semu.checks import check_word
from semu.cli.console import emit, emit_json
from semu.cli.options.every import LISTS
from semu.units import GIB

_OTHER_WORDS = {"gpus": "devices", "gpu": "devices", "hardware": "devices", "clusters": "devices", "runs": "setups"}
"""What people ask for, and the list that has it."""


def list_command(arguments: argparse.Namespace) -> int:
    """Print one list, or which lists there are; returns the exit code.

    Raises:
        ConfigError: an unknown list.
    """
    what = _OTHER_WORDS.get(arguments.what, arguments.what)
    if what is None:
        if arguments.json:
            emit_json({"lists": [{"name": name, "description": text} for name, text in LISTS.items()]})
        else:
            emit(_table(("list", "what it holds"), [list(item) for item in LISTS.items()]))
        return 0
    check_word(what, LISTS, "list", "semu list")
    text, rows = _LISTS[what]
    if arguments.json:
        found = rows()
        emit_json(found if isinstance(found, dict) else {what: found})
    else:
        emit(text())
    return 0


# -- models and setups ---------------------------------------------------------------------------------------------
def _models_text() -> str:
    from semu_models import parameter_table
    from semu_models.listing import LENGTH

    note = (
        f"FLOP/token: training one token of the backbone in a sequence of {LENGTH:,}\ntokens, causal attention counted "
        "half; --json has the conventions of\nMegatron-LM, PaLM and torchtitan beside it. -: not known without a batch."
    )
    return f"{parameter_table()}\n\n{note}"


def _model_rows() -> list[dict[str, object]]:
    from semu_models.listing import list_models

    return [item.to_json() for item in list_models()]


def _setup_rows() -> list[dict[str, object]]:
    from semu_models import SETUPS

    return [
        {
            "name": setup.name,
            "model": setup.model,
            "cluster": setup.cluster,
            "parallel": setup.parallel.label(),
            "micro_batch": setup.training.micro_batch,
            "global_batch": setup.training.global_batch,
            "recompute": setup.training.recompute.value,
            "batch": setup.batch.get("kind", "text"),
            "source": setup.source,
        }
        for setup in SETUPS.values()
    ]


def _setups_text() -> str:
    heads = ("setup", "cluster", "parallel", "model", "batch", "recompute", "global batch", "source")
    keys = ("name", "cluster", "parallel", "model", "batch", "recompute", "global_batch", "source")
    return _table(heads, [[str(row[key]) for key in keys] for row in _setup_rows()], right=(6,))


# -- devices -------------------------------------------------------------------------------------------------------
def _device_rows() -> list[dict[str, Any]]:
    from semu.hardware.capabilities import PEAKS
    from semu.hardware.profile import list_profiles, load_profile

    return [
        {
            "name": name,
            "description": profile.description,
            **{key: getattr(profile, key).value for key in PEAKS},
            "flop_per_s": {dtype.value: number.value for dtype, number in profile.flop_per_s.items()},
            "matmul_provenance": profile.provenance_of("efficiency.matmul").value,
            "numbers_by_provenance": {item.value: len(keys) for item, keys in profile.by_provenance().items()},
        }
        for name, profile in ((name, load_profile(name)) for name in list_profiles())
    ]


def _devices_text() -> str:
    heads = ("device", "GiB", "TFLOP/s", "HBM GB/s", "NVLink GB/s", "NIC GB/s", "matmul", "description")
    cells = [
        [
            row["name"],
            f"{row['memory_bytes'] / GIB:.1f}",
            f"{row['flop_per_s']['bf16'] / 1e12:.0f}",
            *(f"{row[key] / 1e9:.0f}" for key in ("mem_bytes_per_s", "nvlink_bytes_per_s", "nic_bytes_per_s")),
            row["matmul_provenance"],
            row["description"],
        ]
        for row in _device_rows()
    ]
    note = "Peaks, TFLOP/s in bf16; links in one direction, per GPU.\nmatmul: where its efficiency comes from."
    return f"{_table(heads, cells, right=(1, 2, 3, 4, 5))}\n\n{note}"


# -- schedules -----------------------------------------------------------------------------------------------------
def _schedule_rows() -> list[dict[str, Any]]:
    from semu.schedule.registry import ALL_SCHEDULES, SCHEDULES

    return [
        {
            "name": name,
            "placement": family.placement.value,
            "splits_backward": family.splits_backward,
            "source": family.source,
            "is_executed": True,
            "description": family.description,
        }
        for name, family in ((name, ALL_SCHEDULES[name]) for name in dict.fromkeys((*SCHEDULES, *ALL_SCHEDULES)))
    ]


def _schedules_text() -> str:
    heads = ("schedule", "placement", "backward", "description", "source")
    cells = [
        [row["name"], row["placement"], ("whole", "split")[row["splits_backward"]], row["description"], row["source"]]
        for row in _schedule_rows()
    ]
    return _table(heads, cells)


# -- masks ---------------------------------------------------------------------------------------------------------
def _mask_rows() -> dict[str, list[dict[str, str]]]:
    from semu.masks.balance import POLICIES
    from semu.masks.mask import MASKS

    return {
        "masks": [{"name": kind.value, "description": text} for kind, text in MASKS.items()],
        "policies": [{"name": policy.value, "description": text} for policy, text in POLICIES.items()],
    }


def _masks_text() -> str:
    found = _mask_rows()
    masks, policies = ([[row["name"], row["description"]] for row in found[key]] for key in ("masks", "policies"))
    note = "training.attention_mask takes a mask, or a file: int64 bits (.npy), intervals (.npz);\n"
    note += "parallel.cp_balance takes a policy."
    return f"{_table(('mask', 'who sees whom'), masks)}\n\n{_table(('policy', 'who holds what'), policies)}\n\n{note}"


def _table(heads: tuple[str, ...], rows: list[list[str]], right: tuple[int, ...] = ()) -> str:
    from semu.units import fit_columns

    return "\n".join(fit_columns([heads, *rows], [column in right for column in range(len(heads))]))


_LISTS: Mapping[str, tuple[Callable[[], str], Callable[[], object]]] = {
    "models": (_models_text, _model_rows),
    "setups": (_setups_text, _setup_rows),
    "devices": (_devices_text, _device_rows),
    "schedules": (_schedules_text, _schedule_rows),
    "masks": (_masks_text, _mask_rows),
}
