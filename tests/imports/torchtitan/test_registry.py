"""Functions of a registry in Python, and what they say that TOML files do not."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from semu.errors import ConfigError
from semu.imports.reading import ImportedTables
from semu.imports.torchtitan import read_torchtitan
from semu.imports.torchtitan.following import Follower

HEAD = """
from torchtitan.trainer import Trainer
from . import model_registry

def base() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("8B"),
        optimizer=default_adamw(lr=1e-4),
        training=TrainingConfig(local_batch_size=1, seq_len=4096),
        activation_checkpoint=None,
    )
"""


def read(body: str, *, model: str = "llama3", lax: bool = False) -> ImportedTables:
    """The function ``it`` of a registry."""
    text = HEAD + "def it() -> Trainer.Config:\n    config = base()\n" + _indented(body) + "    return config\n"
    return read_torchtitan(text, f"models/{model}/config_registry.py", name="it", allow_unmodelled=lax)


def _indented(body: str) -> str:
    return "".join(f"    {line}\n" for line in dedent(body).strip().splitlines())


def test_what_a_registry_has_by_itself() -> None:
    """FlexAttention, CUDA graphs, no recomputation, an eager model."""
    training = read("").tables["training"]
    assert (training["attention_kernel"], training["launch"], training["recompute"]) == ("flex", False, "none")
    assert training["eager_modules"] and "left_out" not in training


@pytest.mark.parametrize(
    ("body", "training"),
    [
        ('config.model_spec = model_registry("8B", attn_backend="varlen")', {"attention_kernel": "sdpa"}),
        ("config.training.disable_cuda_graphs = True", {"launch": None}),
        (
            "config.parallelism = ParallelismConfig(pipeline_parallel_degree=2)\nconfig.training.local_batch_size = 2",
            {"launch": None},
        ),
        (
            'config.model_spec = model_registry("8B", converters=[Float8LinearConverter.Config()])',
            {"precision": "fp8", "left_out": ["quantize.linear.float8.recipe_name 0.05"]},
        ),
        (
            'config.model_spec = model_registry("8B", attn_backend="flex_flash")',
            {"attention_kernel": "flex", "left_out": ["model.attn_backend 0.1"]},
        ),
        ('config.override.imports.append("torchtitan.overrides.x")', {"left_out": ["override.imports 0.1"]}),
        (
            "config.parallelism = ParallelismConfig(pipeline_parallel_degree=2)\nconfig.training.local_batch_size = 2\n"
            "config.training.global_batch_size = 1024",
            {"left_out": ["training.global_batch_size 0.1"]},
        ),
        (
            'groups = [ParamGroupConfig(optimizer_name="Adam"), ParamGroupConfig(optimizer_name="AdamW")]\n'
            "config.optimizer = OptimizersContainer.Config(param_groups=groups)",
            {"left_out": None},
        ),
    ],
)
def test_settings(body: str, training: dict[str, Any]) -> None:
    found = read(body).tables["training"]
    assert {name: found.get(name) for name in training} == training


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ('config.optimizer = OptimizersContainer.Config(param_groups=[Group(optimizer_name="DistMuon")])', "DistMuon"),
        ("config.optimizer = something(config)", "optimizer.name another"),
        ('config.model_spec = model_registry("70B", num_mtp_layers=2)', "2 further tokens"),
        ("enable_this(config)", r"enable_this\(\)"),
        ("if x:\n    config.parallelism = 1", "parallelism .*: unknown"),
        ('config = FaultTolerantTrainer.Config(model_spec=model_registry("8B"))', "a trainer of its own"),
        ("config.training = sizes()", "training .*: unknown"),
        ("config = to_graph_trainer_config(config, model_registry)", "a trainer of its own"),
        (
            'config.model_spec = model_registry("8B", converters=[Float8LinearConverter.Config(emulate=True)])',
            "by way of bf16",
        ),
    ],
)
def test_refused_and_left_out(body: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read(body)
    if "model_registry(" not in body:
        assert read(body, lax=True).tables["model"] == {"name": "llama3-8b"}


def test_what_only_running_would_tell() -> None:
    """A value below an ``if`` is not taken, nor the one that it replaces."""
    with pytest.raises(ConfigError, match="only running the file would tell"):
        read("if fast:\n    config.training.local_batch_size = 4")


def test_attention_where_a_registry_does_not_say() -> None:
    """gpt-oss has varlen attention, the others FlexAttention."""
    body = 'config.model_spec = model_registry("{}")'
    assert read(body.format("20b"), model="gpt_oss").tables["training"]["attention_kernel"] == "sdpa"
    assert read(body.format("8B")).tables["training"]["attention_kernel"] == "flex"


def test_further_tokens() -> None:
    spec = 'config.model_spec = model_registry("{}", num_mtp_layers=1)'
    assert read(spec.format("671B"), model="deepseek_v3").tables["model"] == {"name": "deepseek-v3-mtp"}
    small = read(spec.format("debugmodel"), model="deepseek_v3").tables["model"]
    assert small["transformer"]["mtp_layers"] == 1 and small["transformer"]["layers"] == 6


def test_arguments_and_helpers_are_followed() -> None:
    text = HEAD + dedent(
        """
        def sized(flavor, batch=3) -> Trainer.Config:
            config = base()
            config.model_spec = model_registry(flavor)
            config.training.local_batch_size = batch
            return config

        def double(config):
            for name in ("a", "b"):
                config.override.imports.append(name)

        def it() -> Trainer.Config:
            config = sized("1B", batch=5)
            double(config)
            return config
        """
    )
    found = read_torchtitan(text, "models/llama3/config_registry.py", name="it")
    assert found.tables["model"] == {"name": "llama3.2-1b"} and found.tables["training"]["micro_batch"] == 5
    assert [(row.key, row.value) for row in found.reading.small] == [("override.imports", "a b")]


def test_arguments_by_name_alone_have_their_own_defaults() -> None:
    """Before and behind the star, with and without a default; what nobody gives is not known."""
    text = HEAD + dedent(
        """
        def sized(flavor, *, batch, length=2048, steps=7) -> Trainer.Config:
            config = base()
            config.model_spec = model_registry(flavor)
            config.training.local_batch_size = batch
            config.training.seq_len = length
            return config

        def it() -> Trainer.Config:
            return sized("1B", batch=5)

        def other() -> Trainer.Config:
            return sized("1B", length=512, batch=2)
        """
    )
    for name, batch, length in (("it", 5, 2048), ("other", 2, 512)):
        training = read_torchtitan(text, "models/llama3/config_registry.py", name=name).tables["training"]
        assert (training["micro_batch"], training["seq_len"]) == (batch, length)


def test_another_registry_is_found(tmp_path: Path) -> None:
    """A configuration is taken from another file of the same installation; its model is that file's."""
    for folder, text in (
        ("models/qwen3", HEAD),
        ("mine", "from torchtitan.models.qwen3.config_registry import base\n"
         "def it() -> Trainer.Config:\n    config = base()\n    config.training.seq_len = 128\n    return config\n"),
    ):  # fmt: skip
        place = tmp_path / "torchtitan" / folder
        place.mkdir(parents=True)
        (place / "config_registry.py").write_text(text)
    found = read_torchtitan((place / "config_registry.py").read_text(), str(place / "config_registry.py"))
    assert found.tables["model"] == {"name": "qwen3-8b"} and found.tables["training"]["seq_len"] == 128


@pytest.mark.parametrize(
    ("model", "flavor", "why"), [("flux", "flux-dev", "text encoders"), ("kimi_k2_7", "Kimi-VL-A3B", "images")]
)
def test_models_that_semu_does_not_have(model: str, flavor: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"{model} {flavor} of torchtitan is not modelled: .*{why}"):
        read(f'config.model_spec = model_registry("{flavor}")', model=model)


def test_functions_that_are_no_configuration() -> None:
    text = HEAD + "def other() -> Controller.Config:\n    return Controller.Config()\n"
    with pytest.raises(ConfigError, match="other returns no configuration") as caught:
        read_torchtitan(text, "config_registry.py", name="other")
    assert caught.value.got == "Controller.Config"


def test_python_does_not_warn_of_a_damaged_number() -> None:
    """It would on stderr; here a warning is an error."""
    assert not Follower("count = 1if True else 2\n", "x.py").functions
