"""A batch must hold what the model's encoders make tokens of; run files and the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from simulation.jobs import ListedBatch, job_of, vlm
from simulation.multimodal_jobs import model_of

import semu
import semu_models
from semu.cli import main
from semu.errors import ConfigError
from semu.job import Training, TrainingJob
from semu.parallel.config import Parallel
from semu.runfile import load_run
from semu.runfile.resolve import resolve_run
from semu.simulation import simulate
from semu.workload import Microbatch, mixed_batch, vlm_batch

Lengths = dict[str, list[int]]


def refusal(kind: str, streams: Lengths, text: int = 500) -> ConfigError:
    model = vlm() if kind == "vlm" else model_of(kind)
    with pytest.raises(ConfigError) as caught:
        simulate(job_of(model, [Microbatch({"text": [text], **streams}, samples=1)]))
    return caught.value


@pytest.mark.parametrize(
    ("kind", "streams", "nearest"),
    [
        ("vlm", {"vision": [16], "vision_tokens": [5]}, "16 patches, 4 tokens"),
        ("qwen2-vl", {"vision": [16, 40], "vision_tokens": [4, 11]}, "40 patches, 10 tokens"),
        ("qwen2-vl", {"vision": [18], "vision_tokens": [4]}, "16 patches, 4 tokens"),
        ("llava", {"vision": [37], "vision_tokens": [37]}, "36 patches, 36 tokens"),
        ("internvl", {"vision": [16], "vision_tokens": [4]}, "36 patches, 9 tokens"),
        ("qwen2-audio", {"audio": [80], "audio_tokens": [21]}, "80 frames, 20 tokens"),
        ("qwen2-audio", {"audio": [80], "audio_tokens": [0]}, "80 frames, 20 tokens"),
        ("qwen2-audio", {"audio": [78], "audio_tokens": [19]}, "80 frames, 20 tokens"),
        ("omni", {"vision": [], "vision_tokens": [], "audio": [81], "audio_tokens": [21]}, "81 frames, 20 tokens"),
        ("whisper", {"audio": [79]}, "80 frames"),
    ],
)
def test_items_that_contradict_the_model(kind: str, streams: Lengths, nearest: str) -> None:
    error = refusal(kind, streams)
    assert "contradicts" in str(error)
    assert (error.where, error.nearest) == ("batch", nearest)


def test_as_many_items_in_the_encoder_as_in_the_backbone() -> None:
    assert "2 images enter the encoder, 1 the backbone" in str(
        refusal("llava", {"vision": [36, 36], "vision_tokens": [36]})
    )


def test_text_has_room_for_its_items() -> None:
    error = refusal("llava", {"vision": [36, 36], "vision_tokens": [36, 36]}, text=71)
    assert (error.expected, error.got) == (">= 72 tokens of text, those of vision_tokens included", 71)


def test_a_generated_batch_that_does_not_fit_says_how_it_would() -> None:
    def job(batch: object) -> TrainingJob:
        cluster = semu.Cluster("h100", 1, 8)
        training = Training(global_batch=4, recompute="full")
        return TrainingJob(semu_models.qwen2_vl_2b(), cluster, Parallel(dp=4, tp=2), training, batch)  # type: ignore[arg-type]

    with pytest.raises(ConfigError, match="the batch contradicts qwen2-vl-2b") as caught:
        simulate(job(vlm_batch()))
    assert caught.value.nearest == "patches_per_image = 2704, tokens_per_image = 676"
    assert simulate(job(vlm_batch(tokens_per_image=676))).fits
    with pytest.raises(ConfigError, match="contradicts"):
        simulate(job(mixed_batch(audio_share=0)))
    items = vlm_batch(tokens_per_image=676).microbatches(4, 1)
    assert simulate(job(ListedBatch(tuple(items)))).fits


RUN = """
[model]
name = "{model}"
[cluster]
device = "h100"
[parallel]
dp = 4
tp = 2
[training]
recompute = "full"
{more}
"""


def run_file(folder: Path, model: str, more: str = "") -> Path:
    path = folder / "run.toml"
    path.write_text(RUN.format(model=model, more=more))
    return path


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("qwen2-vl-2b", "vlm"),
        ("internvl3-1b", "vlm"),
        ("siglip-so400m", "vlm"),
        ("qwen2-audio-7b", "mixed"),
        ("qwen2.5-omni-7b", "mixed"),
        ("whisper-large-v3", "mixed"),
        ("llama3-8b", "text"),
    ],
)
def test_the_default_batch_fits_the_model(tmp_path: Path, model: str, kind: str) -> None:
    run = resolve_run(run_file(tmp_path, model))
    assert run.config["batch"]["kind"] == kind
    said = [note for note in run.notes if note.startswith("batch.kind: not given")]
    assert len(said) == (kind != "text")
    assert simulate(run.job()).iteration_time_s > 0


def test_a_run_file_with_audio(tmp_path: Path) -> None:
    batch = '[batch]\nkind = "mixed"\naudio_share = 0.9\nimage_share = 0.0\naudio_seconds = 20\nseed = 3'
    job = load_run(run_file(tmp_path, "qwen2-audio-7b", batch))
    report = simulate(job)
    (item,) = job.batch.microbatches(1, 1)
    assert set(item.lengths["audio"].tolist()) == {3000}
    assert set(item.lengths["audio_tokens"].tolist()) == {500}
    assert report.fits


def test_a_metadata_file_with_audio(tmp_path: Path) -> None:
    line = {"text_tokens": 45, "audio": [{"frames": 3000, "tokens": 307}]}
    (tmp_path / "m.jsonl").write_text("\n".join([json.dumps(line)] * 600))
    more = '[batch]\nkind = "file"\npath = "m.jsonl"'
    path = run_file(tmp_path, "qwen2-audio-7b", more)
    assert simulate(load_run(path, ["training.global_batch=8"])).fits
    line["audio"] = [{"frames": 3000, "tokens": 800}]
    (tmp_path / "m.jsonl").write_text("\n".join([json.dumps(line)] * 600))
    with pytest.raises(ConfigError, match="contradicts qwen2-audio-7b"):
        simulate(load_run(path, ["training.global_batch=8"]))


def test_an_image_size_that_the_model_does_not_take(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the model's tiles have 1024 patches") as caught:
        load_run(run_file(tmp_path, "internvl3-1b", '[batch]\nkind = "vlm"\npatches_per_image = 1000'))
    assert "run.toml:13 batch.patches_per_image" in str(caught.value.where)
    with pytest.raises(ConfigError, match="do not merge") as caught:
        load_run(run_file(tmp_path, "qwen2-vl-2b", '[batch]\nkind = "vlm"\npatches_per_image = 1002'))
    assert caught.value.nearest == 1000


@pytest.mark.parametrize("setup", ["qwen2-vl-7b", "qwen2-audio-7b"])
def test_setups_on_the_command_line(setup: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", setup, "--json", "--set", "training.global_batch=8"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["fits"]
    assert document["parameters"] == semu_models.build(setup).num_parameters()
