"""``semu assign`` at the corners of what it takes: odd numbers of microbatches, text alone, other layouts."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from searcher.assignment.jobs import draw_text, draw_vlm, text_assigner, vlm_assigner, write_samples

import semu
from semu.cli.command import main
from semu.searcher.assignment.assigner import Assigner
from semu.searcher.assignment.methods.table import METHODS
from semu.workload.samples import Items, Samples

ENCODERS_ONLY = {name for name, method in METHODS.items() if method.needs_encoder}


def assign(capsys: pytest.CaptureFixture[str], run: str, *words: str) -> tuple[int, dict[str, Any]]:
    code = main(["assign", *run.split(), *words, "--json", "--quiet"])
    return code, json.loads(capsys.readouterr().out)


def vlm(batch: int, cluster: str = "h800:2x8", parallel: str = "dp2-tp2-pp4") -> str:
    return f"vlm-s --cluster {cluster} --parallel {parallel} --set training.global_batch={batch}"


def check_lines(out: Path, samples: int) -> list[dict[str, Any]]:
    """Every sample once for the encoders and once for the backbone; deferral to the next microbatch alone."""
    lines = [json.loads(line) for line in (out / "assignment.jsonl").read_text().splitlines()]
    assert len({name for line in lines for name in line["ids"]}) == sum(len(line["ids"]) for line in lines) == samples
    encoded = [name for line in lines for name in line.get("encode", line["ids"])]
    assert len(set(encoded)) == len(encoded) == samples
    for line, behind in zip(lines, [*lines[1:], None], strict=True):
        late = line["encode"][len(line["encode"]) - line["deferred"] :] if line.get("deferred") else []
        if late:
            assert behind is not None
            assert (behind["replica"], behind["microbatch"]) == (line["replica"], line["microbatch"] + 1)
            assert behind["ids"][: len(late)] == late
            assert line["microbatch"] % 2 == 0
    return lines


@pytest.mark.parametrize("method", ["entrain-literal", "coupled"])
def test_an_odd_number_of_microbatches(method: str, tmp_path, capsys) -> None:
    """The lightest stays alone: it stands last, and nothing waits in it."""
    path = write_samples(tmp_path / "samples.jsonl", draw_vlm(60, 1))
    words = ["--samples", str(path), "--method", method, "--count", "60", "--out", str(tmp_path / "out")]
    code, found = assign(capsys, vlm(10), *words)
    assert code == 0
    lines = check_lines(tmp_path / "out", 60)
    if method == "coupled":
        assert found["methods"][0]["microbatches"] == 5
    last = [line for line in lines if line["microbatch"] == found["methods"][0]["microbatches"] - 1]
    assert not any(line.get("deferred") for line in last)


def test_pairs_of_an_odd_number_leave_the_lightest_alone() -> None:
    """Through a method: five coupled microbatches, two pairs, the unpaired one with the least of the backbone."""
    from semu.searcher.assignment.methods.coupled import deal_coupled
    from semu.searcher.assignment.methods.literal import deferred

    assigner = vlm_assigner(1, 5)
    samples = draw_vlm(40, 3)
    problem = assigner(samples).problem
    coupled = deal_coupled(problem)
    found = deferred(problem, coupled)
    loads = np.bincount(found.microbatch, weights=problem.backbone, minlength=5)
    assert int(np.argmin(loads)) == 4
    assert not (found.reader[found.microbatch == 3] != 3).any()
    assert not (found.reader == 4)[found.microbatch != 4].any()


def test_text_alone_for_a_model_with_an_encoder(tmp_path, capsys) -> None:
    """No sample has an image: encoders are idle, and no method stumbles over w_max = 0."""
    samples = Samples(draw_text(300, 2, 900).text_tokens, {})
    path = write_samples(tmp_path / "samples.jsonl", samples)
    words = ["--samples", str(path), "--method", "all", "--count", "200", "--out", str(tmp_path / "out")]
    code, found = assign(capsys, vlm(16), *words)
    assert code == 0
    assert {row["method"] for row in found["methods"]} == METHODS.keys()
    assert all(row["balance"]["vit"] == 1.0 and row["deferred"] == 0 for row in found["methods"])
    times = {row["method"]: row["iteration_time_s"] for row in found["methods"]}
    assert times["entrain"] <= 1.005 * min(times.values())
    check_lines(tmp_path / "out", 200)


def test_microbatches_without_images(tmp_path, capsys) -> None:
    """A few samples have images: most microbatches have nothing for the encoder."""
    text = draw_text(120, 3, 900).text_tokens
    images = np.zeros(120, np.int64)
    images[:3] = 1
    ptr = np.concatenate(([0], np.cumsum(images)))
    samples = Samples(text, {"vision": Items(ptr, np.full(3, 1024), np.full(3, 64))})
    path = write_samples(tmp_path / "samples.jsonl", samples)
    words = ["--samples", str(path), "--method", "all", "--count", "120", "--out", str(tmp_path / "out")]
    code, found = assign(capsys, vlm(16), *words)
    assert code == 0
    assert {row["method"] for row in found["methods"]} == METHODS.keys()
    check_lines(tmp_path / "out", 120)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("cluster", "parallel"), [("h800:1x8", "dp4-tp2-pp1"), ("h800:2x8", "dp2-tp2-cp2-pp2")], ids=["pp1", "cp2"]
)
def test_no_pipeline_and_context_parallelism(cluster: str, parallel: str, tmp_path, capsys) -> None:
    path = write_samples(tmp_path / "samples.jsonl", draw_vlm(130, 4))
    words = ["--samples", str(path), "--method", "all", "--count", "120", "--out", str(tmp_path / "out")]
    code, found = assign(capsys, vlm(16, cluster, parallel), *words)
    assert code == 0
    times = {row["method"]: row["iteration_time_s"] for row in found["methods"]}
    assert times.keys() == METHODS.keys()
    assert times["entrain"] <= min(1.005 * times["coupled"], times["order"])
    check_lines(tmp_path / "out", 120)


def test_text_with_context_parallelism(tmp_path, capsys) -> None:
    path = write_samples(tmp_path / "documents.jsonl", draw_text(400, 4))
    run = "llama3-8b --cluster h100:2x8 --parallel dp2-tp2-cp2-pp2 --set training.global_batch=16"
    code, found = assign(capsys, run, "--samples", str(path), "--method", "all", "--count", "100")
    assert code == 0
    times = {row["method"]: row["iteration_time_s"] for row in found["methods"]}
    assert times["entrain"] < times["order"]
    assert set(found["refused"]) == ENCODERS_ONLY


def test_a_model_with_a_decoder_is_refused(tmp_path, capsys) -> None:
    path = write_samples(tmp_path / "samples.jsonl", draw_vlm(60, 1))
    code, found = assign(capsys, "t2v-s", "--samples", str(path))
    assert (code, found["error"]["where"]) == (2, "setup t2v-s model")
    assert "decoder" in found["error"]["got"]


@pytest.mark.parametrize("name", ["fixed_s", "slope_s"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_costs_that_are_no_numbers(name: str, value: float) -> None:
    costs = vlm_assigner().costs(draw_vlm(10, 1))
    wrong = getattr(costs, name).copy()
    wrong.flat[1] = value
    with pytest.raises(semu.ConfigError, match="not a cost"):
        replace(costs, **{name: wrong})


def test_samples_of_the_library_that_no_file_could_hold() -> None:
    samples = draw_vlm(90, 1)
    with pytest.raises(semu.ConfigError, match="not an id for every sample"):
        vlm_assigner()(samples, ["a"] * 90)
    with pytest.raises(semu.ConfigError, match="not an id for every sample"):
        vlm_assigner()(samples, range(91))
    text = np.array([5] * 40)
    text[7] = 0
    with pytest.raises(semu.ConfigError, match="nothing in the sample") as caught:
        text_assigner()(Samples(text, {}))
    assert caught.value.where == "sample 7"


@pytest.mark.slow
def test_threads_change_nothing() -> None:
    """Many assignments at once, by assigners of their own and by one."""
    batches = [draw_vlm(100, seed) for seed in range(6)]
    costs = vlm_assigner().costs(batches[0])
    alone = [Assigner(vlm_assigner().job, "entrain", costs=costs)(own) for own in batches]
    shared = Assigner(vlm_assigner().job, "entrain", costs=costs)
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda own: shared(own), batches))
        apart = list(pool.map(lambda own: Assigner(vlm_assigner().job, "entrain", costs=costs)(own), batches))
    for other in (together, apart):
        for one, two in zip(alone, other, strict=True):
            assert np.array_equal(one.dealt.bins, two.dealt.bins)
            assert np.array_equal(one.dealt.reader, two.dealt.reader)
