"""The registries that torchtitan ships, where it is installed; its files are enough (``pip install --no-deps``).

Parameters are compared with torchtitan's own models on the meta device, where it can be imported: with a module that
stands for Triton, whose kernels run on GPUs only.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from imports.dataclass_defaults import class_defaults, package_folder, told

import semu_models
from semu.errors import ConfigError
from semu.imports.torchtitan.read import FLAGS
from semu.imports.torchtitan.tables import CONFIGS, MODELS, SIZES, UNMODELLED
from semu.runfile.importing import import_run
from semu.runfile.overrides import Overrides
from semu.simulation import simulate

pytestmark = pytest.mark.extras
REFUSED = {
    r"\w+_nvfp4": "nvfp4 is not modelled",
    "llama3_debugmodel_float8_emulate_lora": "LoRAConverter is not modelled",
    "moonlight_16b_a3b": "DistMuon is not modelled",
    "kimi_.*": "not modelled: an encoder of images",
}
"""Functions -> why they are refused although their model is one of ``MODELS``."""
STAND_IN = """
import importlib, importlib.abc, importlib.machinery, json, sys, types

class Meta(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing

class Nothing(metaclass=Meta):
    def __init__(self, *given, **named): pass
    def __call__(self, *given, **named): return Nothing()
    def __getattr__(self, name): return Nothing
    def __class_getitem__(cls, item): return cls

class Empty(types.ModuleType):
    __version__ = "3.0.0"
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing

class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] == "triton" else None
    def create_module(self, spec): return Empty(spec.name)
    def exec_module(self, module): module.__path__ = []

import torch
sys.meta_path.append(Finder())
found = {}
for line in sys.argv[1:]:
    name, _, flavor = line.partition(" ")
    spec = importlib.import_module(f"torchtitan.models.{name}").model_registry(flavor)
    with torch.device("meta"):
        found[line] = sum(item.numel() for item in spec.model.build().parameters())
print(json.dumps(found))
"""


def _root() -> Path | None:
    return package_folder("torchtitan")


def _configurations() -> list[tuple[Path, str]]:
    """Registry and function of every configuration of a model."""
    root = _root()
    found = []
    for path in sorted(root.glob("models/*/config_registry.py")) if root is not None else []:
        for item in ast.parse(path.read_text("utf-8")).body:
            is_public = isinstance(item, ast.FunctionDef) and not item.name.startswith("_")
            if is_public and item.returns is not None and ast.unparse(item.returns).endswith("Trainer.Config"):
                found.append((path, item.name))
    return found


SHIPPED = _configurations()
needs_files = pytest.mark.skipif(not SHIPPED, reason="torchtitan 0.3 is not installed (pip install --no-deps)")


def _reason(path: Path, name: str) -> str | None:
    """Why a configuration is refused; None: it is not."""
    folder = path.parent.name
    if folder not in MODELS:
        assert folder in UNMODELLED, f"{folder} is a model of torchtitan that flags.toml does not name"
        return f"not modelled: {UNMODELLED[folder]}"
    return next((why for pattern, why in REFUSED.items() if re.fullmatch(pattern, name)), None)


pytestmark = pytest.mark.by_hand


@needs_files
@pytest.mark.parametrize(("path", "name"), SHIPPED, ids=[name for _, name in SHIPPED])
def test_every_configuration(path: Path, name: str) -> None:
    """It is imported and simulated, or refused for the reason that is told above."""
    reason = _reason(path, name)
    if reason is None:
        run = import_run(str(path), Overrides(defined={"config": name})).run
        assert simulate(run.job()).iteration_time_s > 0
        return
    with pytest.raises(ConfigError, match=re.escape(reason)):
        import_run(str(path), Overrides(defined={"config": name}))
    if "an encoder" not in reason and path.parent.name in MODELS:
        import_run(str(path), Overrides(defined={"config": name}, allow_unmodelled=True))


@needs_files
def test_share_of_configurations() -> None:
    """Of those whose model semu has, four in five are read as they are."""
    known = [(path, name) for path, name in SHIPPED if path.parent.name in MODELS and not name.startswith("kimi")]
    assert sum(_reason(path, name) is None for path, name in known) >= 0.8 * len(known) > 30


@needs_files
def test_other_trainers() -> None:
    """The model is that of the registry from which a configuration is taken; the trainer is refused."""
    root = _root()
    assert root is not None
    path = str(root / "experiments" / "graph_trainer" / "llama3" / "config_registry.py")
    with pytest.raises(ConfigError, match="a trainer of its own"):
        import_run(path, Overrides(defined={"config": "graph_trainer_llama3_405b"}))
    found = import_run(path, Overrides(defined={"config": "graph_trainer_llama3_405b"}, allow_unmodelled=True))
    assert found.tables["model"] == {"name": "llama3-405b"} and found.tables["parallel"]["tp"] == 8


@needs_files
def test_parameters_are_those_of_its_models() -> None:
    for module in ("torch", "tyro", "spmd_types", "einops", "torch_checkpointing", "torchdata"):
        if find_spec(module) is None:
            pytest.skip(f"torchtitan cannot be imported without {module}")
    flavors = [
        f"{name} {flavor}"
        for name in MODELS
        for flavor in {**MODELS[name], **SIZES.get(name, {}), **CONFIGS.get(name, {})}
    ]
    done = subprocess.run([sys.executable, "-c", STAND_IN, *flavors], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = json.loads(done.stdout.splitlines()[-1])
    assert theirs == {flavor: _parameters(*flavor.split(" ")) for flavor in flavors}


def _parameters(name: str, flavor: str) -> int:
    text = f'[job]\n[model]\nname = "{name}"\nflavor = "{flavor}"\n'
    if flavor in MODELS[name]:
        return semu_models.build(MODELS[name][flavor]).num_parameters()
    from semu.imports.torchtitan import read_torchtitan
    from semu.runfile.places import Places
    from semu.runfile.resolve import resolve_tables

    tables = read_torchtitan(text, "x.toml").tables
    return resolve_tables({"model": tables["model"], "cluster": {"device": "h100"}}, Places("")).model.num_parameters()


@needs_files
@pytest.mark.parametrize("table", ["training", "parallelism", "compile"])
def test_defaults(table: str) -> None:
    """Of keys that 0.3 has as well; CUDA graphs are new there, and a registry's keys say so."""
    root = _root()
    assert root is not None
    theirs = class_defaults(root / "config" / "configs.py", f"{table.capitalize()}Config")
    ours = {key.partition(".")[2]: flag.default for key, flag in FLAGS.understood.items() if key.startswith(table)}
    shared = (theirs.keys() & ours.keys()) - {"disable_cuda_graphs"}
    assert shared and {key: ours[key] for key in shared} == {key: told(theirs[key]) for key in shared}
