"""``[schedule.NAME]`` of a run file, and a rule's text as ``training.schedule``."""

from __future__ import annotations

from pathlib import Path

import pytest

import semu
from semu.errors import ConfigError
from semu.runfile import load_run
from semu.runfile.resolve import resolve_run

RUN = """
[model.transformer]
layers = 8
hidden = 512
ffn = 2048
heads = 8
vocab = 1024
[cluster]
device = "h100"
nodes = 1
gpus_per_node = 4
[parallel]
pp = 4
[training]
global_batch = 8
seq_len = 1024
schedule = "mine"
"""


def write(folder: Path, tables: str) -> Path:
    path = folder / "run.toml"
    path.write_text(RUN + tables, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ('in_flight = "p - r"', "priority in-flight=p-r"),
        ('text = "priority  in-flight=p-r"', "priority in-flight=p-r"),
        ('rule = "alternate"\nwarm_up = "p - r - 1"\nweight_delay = "r"', "alternate warm-up=p-r-1 weight-delay=r"),
        (
            'placement = "v-shape"\nvpp = 2\nforward = "depth(p,last)"\nunits = [2, 1]\nin_flight = [3, "p"]',
            "v-shape/2: priority units=[2,1] forward=depth(p,last) in-flight=[3,p]",
        ),
        ('vpp = 2\nin_flight = "2 * p"', "circular/2: priority in-flight=2*p"),
        (
            'rule = "separated"\nactivations = "p"\n[schedule.mine.inner]\nin_flight = "p - r"',
            "separated inner={priority in-flight=p-r} activations=p",
        ),
        ("[schedule.mine.modules.text]\nin_flight = 3", "priority modules=[text:{priority in-flight=3}]"),
        ('rule = "pattern"\nsteps = [["m", "F0 B0"]]', "pattern steps=[m:F0.B0]"),
    ],
)
def test_a_table_is_one_line_of_text(tmp_path: Path, table: str, text: str) -> None:
    path = write(tmp_path, f"[schedule.mine]\n{table}\n[schedule.other]\nin_flight = 1")
    run = resolve_run(path)
    assert run.config["training"]["schedule"] == text
    assert f"training.schedule: 'mine' is {text!r}" in run.notes


def test_the_rule_of_a_run_file_is_simulated(tmp_path: Path) -> None:
    """As 1F1B, whose tokens it has, where sends are told to wait as 1F1B's do; and it brings its placement."""
    mine, plain = (
        load_run(write(tmp_path, '[schedule.mine]\nin_flight = "p - r"'), ["overlap.pipeline=false", *more])
        for more in ([], ["training.schedule=1f1b"])
    )
    assert semu.simulate(mine).iteration_time_s == semu.simulate(plain).iteration_time_s
    wave = load_run(write(tmp_path, '[schedule.mine]\nplacement = "v-shape"\nvpp = 2\nin_flight = "2 * p"'))
    assert (wave.parallel.vpp, wave.parallel.placement) == (2, "v-shape")
    assert semu.simulate(wave).fits


@pytest.mark.parametrize(
    ("table", "where", "nearest"),
    [
        ('forwards = "depth"', "schedule.mine", "forward"),
        ('forward = "deep"', "schedule.mine.forward", "depth"),
        ('in_flight = "p - q"', "schedule.mine.in_flight", None),
        ('in_flight = "__import__(1)"', "schedule.mine.in_flight", None),
        ('rule = "prioriti"', "schedule.mine", "priority"),
        ('placement = "v-shap"', "schedule.mine.placement", "v-shape"),
        ("vpp = 0", "schedule.mine.vpp", 1),
        ('text = "sweep"\nin_flight = 3', "schedule.mine", None),
    ],
)
def test_a_bad_table_names_the_place(tmp_path: Path, table: str, where: str, nearest: object) -> None:
    with pytest.raises(ConfigError) as caught:
        load_run(write(tmp_path, f"[schedule.mine]\n{table}"))
    assert caught.value.exit_code == 2
    assert where in str(caught.value.where)
    assert "run.toml" in str(caught.value.where)
    if nearest is not None:
        assert caught.value.nearest == nearest


def test_the_name_of_a_schedule_that_ships_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ships"):
        load_run(write(tmp_path, "[schedule.zb-v]\nin_flight = 3"))


@pytest.mark.parametrize(
    ("text", "exit_code"), [("priority in-flight=0", 2), ("priority in-flight=1 when-blocked=wait prefer=alternate", 0)]
)
def test_a_rule_that_does_not_fit_the_pipeline_is_refused(tmp_path: Path, text: str, exit_code: int) -> None:
    job = load_run(write(tmp_path, ""), [f'training.schedule="{text}"'])
    if exit_code:
        with pytest.raises(ConfigError, match="too small"):
            semu.simulate(job)
    else:
        assert semu.simulate(job).fits
