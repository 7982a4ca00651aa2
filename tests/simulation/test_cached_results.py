"""Results from a cache are those of a simulation without one, and what was computed once is not computed again."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from simulation.jobs import gpt, job_of, overlap, t2v, t2v_items, text_items, vlm, vlm_items

from semu import ResultCache
from semu.cli import main
from semu.compile.kernels import run_segment
from semu.costs.roofline import RuleInput
from semu.hardware.kinds import OpKind
from semu.job import TrainingJob
from semu.parallel.config import Overlap, Parallel
from semu.present.traces import write_trace
from semu.simulation import simulate
from semu.workload import Microbatch

JOBS: dict[str, Callable[[], TrainingJob]] = {
    "vlm": lambda: job_of(
        vlm(frozen=["vit.layers.0"], layers=6), vlm_items(8, empty=[2]), Parallel(dp=2, tp=2, pp=2), recompute="full"
    ),
    "t2v": lambda: job_of(t2v(), t2v_items(6), Parallel(dp=1, tp=2, pp=3), overlap=Overlap()),
    "overlapped": lambda: job_of(vlm(), vlm_items(6), Parallel(dp=2, tp=2, pp=2), overlap=overlap(tensor=True)),
    "gpt": lambda: job_of(gpt(6), text_items(6), Parallel(pp=3)),
    "by latency": lambda: by_latency(job_of(gpt(6), text_items(6), Parallel(pp=3))),
}
every_job = pytest.mark.parametrize("name", JOBS)


def by_latency(job: TrainingJob) -> TrainingJob:
    return replaced(job, parallel=replace(job.parallel, partition="latency"))


def replaced(job: TrainingJob, **changes: object) -> TrainingJob:
    parts = {name: getattr(job, name) for name in ("model", "cluster", "parallel", "training", "batch")}
    return TrainingJob(**{**parts, **changes})


def no_cache() -> ResultCache:
    return ResultCache(max_rows=0)


def result_of(job: TrainingJob, folder: Path, cache: ResultCache | None) -> str:
    """``result.json`` and ``trace.json`` as texts."""
    report = simulate(job, cache=cache)
    write_trace(folder / "trace.json", report.timeline, title=report.title, metadata={})
    return json.dumps(report.to_json()) + (folder / "trace.json").read_text()


@pytest.mark.sampled(4)
@every_job
def test_cold_warm_and_from_the_file_are_the_same(name: str, tmp_path: Path) -> None:
    plain = result_of(JOBS[name](), tmp_path, no_cache())
    memory = ResultCache()
    file = tmp_path / "cache.sqlite"
    caches = [memory, memory, ResultCache(file), ResultCache(file), ResultCache(file, max_rows=0), None, None]
    assert [result_of(JOBS[name](), tmp_path, cache) == plain for cache in caches] == [True] * len(caches)


@every_job
def test_nothing_is_computed_twice(name: str, tmp_path: Path) -> None:
    cache = ResultCache(tmp_path)
    simulate(JOBS[name](), cache=cache)
    computed, found = cache.misses, cache.hits
    assert computed > 0
    simulate(JOBS[name](), cache=cache)
    assert cache.misses == computed
    assert cache.hits >= found + computed
    other = ResultCache(tmp_path)
    simulate(JOBS[name](), cache=other)
    assert other.misses == 0


def test_a_warm_cache_runs_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(*arguments: object) -> None:
        calls.append(arguments)
        run_segment(*arguments)

    monkeypatch.setattr("semu.compile.kernels.run_segment", counted)
    cache = ResultCache()
    simulate(JOBS["vlm"](), cache=cache)
    assert calls
    calls.clear()
    simulate(JOBS["vlm"](), cache=cache)
    assert calls == []


def test_equal_layers_are_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernel calls and results do not grow with the number of layers."""
    counts = []
    for layers in (6, 24):
        cache = ResultCache()
        simulate(job_of(gpt(layers), text_items(6), Parallel(pp=2)), cache=cache)
        counts.append(cache.misses)
    assert counts[0] == counts[1]


def misses(job: TrainingJob, cache: ResultCache) -> int:
    """How many results a job has to compute."""
    before = cache.misses
    simulate(job, cache=cache)
    return cache.misses - before


def test_another_pipeline_uses_the_same_blocks(tmp_path: Path) -> None:
    def job(pp: int) -> TrainingJob:
        return job_of(vlm(layers=6), vlm_items(6), Parallel(tp=2, pp=pp))

    cache = ResultCache()
    simulate(job(2), cache=cache)
    fresh = misses(job(3), no_cache())
    again = misses(job(3), cache)
    assert again < fresh / 2
    assert result_of(job(3), tmp_path, cache) == result_of(job(3), tmp_path, no_cache())


def test_chunks_of_images_do_not_depend_on_the_text(tmp_path: Path) -> None:
    def job(extra: int) -> TrainingJob:
        items = [
            Microbatch(
                {**item.lengths, "text": [length + extra for length in item.lengths["text"]]}, samples=item.samples
            )
            for item in vlm_items(6)
        ]
        return job_of(vlm(), items, Parallel(pp=2))

    cache = ResultCache()
    simulate(job(0), cache=cache)
    fresh, again = misses(job(64), no_cache()), misses(job(64), cache)
    assert 0 < again < fresh
    counts = {len(item.lengths["vision"]) for item in vlm_items(6)}
    assert (fresh - again) % len(counts) == 0  # every segment that sees only images, for every count of images
    assert fresh - again >= 4 * len(counts)
    assert result_of(job(64), tmp_path, cache) == result_of(job(64), tmp_path, no_cache())


class Forgetful(ResultCache):
    """A cache that has forgotten other shapes of each segment."""

    def lookup(self, queries: Sequence[tuple[bytes, np.ndarray]]) -> list[tuple[np.ndarray, np.ndarray]]:
        answers = []
        for number, (found, values) in enumerate(super().lookup(queries)):
            kept = np.random.default_rng(number).random(len(found)) < 0.5
            answers.append((found & kept, values[kept[found]]))
        return answers


@every_job
def test_segments_of_which_other_shapes_are_known(name: str, tmp_path: Path) -> None:
    cache = Forgetful()
    plain = result_of(JOBS[name](), tmp_path, no_cache())
    assert [result_of(JOBS[name](), tmp_path, cache) == plain for _ in range(2)] == [True, True]


CHANGES: dict[str, Callable[[TrainingJob], TrainingJob]] = {
    "memory bandwidth": lambda job: replaced(job, cluster=replace(job.cluster, override={"mem_bytes_per_s": 1.1e12})),
    "precision": lambda job: replaced(job, training=replace_training(job, precision="fp32")),
    "recompute": lambda job: replaced(job, training=replace_training(job, recompute="full")),
    "tp": lambda job: job_of(gpt(6), text_items(6), Parallel(tp=2, pp=3)),
}


def replace_training(job: TrainingJob, **changes: object) -> object:
    kept = {name: getattr(job.training, name) for name in ("micro_batch", "global_batch", "schedule", "overlap")}
    return type(job.training)(**{"recompute": "none", **kept, **changes})


@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_a_result_changes_its_key(name: str, tmp_path: Path) -> None:
    cache = ResultCache()
    plain = result_of(JOBS["gpt"](), tmp_path, cache)
    changed = CHANGES[name](JOBS["gpt"]())
    expected = result_of(changed, tmp_path, no_cache())
    assert expected != plain
    assert result_of(changed, tmp_path, cache) == expected
    assert result_of(JOBS["gpt"](), tmp_path, cache) == plain


def test_custom_latencies_are_not_cached() -> None:
    def slower(seen: RuleInput) -> object:
        return 2.0 * seen.default_s

    cache, job = ResultCache(), JOBS["gpt"]()
    plain = simulate(job, cache=cache).iteration_time_s
    asked = cache.hits + cache.misses
    ruled = simulate(job, cache=cache, latency_rules={OpKind.MATMUL: slower}).iteration_time_s
    assert ruled == simulate(job, cache=no_cache(), latency_rules={OpKind.MATMUL: slower}).iteration_time_s
    assert ruled > plain
    assert cache.hits + cache.misses == asked
    assert simulate(job, cache=cache).iteration_time_s == plain


def test_a_damaged_file_changes_no_result(tmp_path: Path) -> None:
    messages: list[str] = []
    file = tmp_path / "cache.sqlite"
    plain = result_of(JOBS["vlm"](), tmp_path, ResultCache(file))
    content = bytearray(file.read_bytes())
    for place in range(4096, len(content), 997):
        content[place] ^= 0x41
    file.write_bytes(content)
    assert result_of(JOBS["vlm"](), tmp_path, ResultCache(file, warn=messages.append)) == plain
    assert len(messages) == 1
    assert result_of(JOBS["vlm"](), tmp_path, ResultCache(file)) == plain


# -- the command line -------------------------------------------------------------------------------------------------
def test_the_command_keeps_results_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def output(*options: str) -> str:
        assert main(["simulate", "vlm-s", "--json", *options]) == 0
        captured = capsys.readouterr()
        assert "cache" not in captured.err
        return captured.out

    monkeypatch.delenv("SEMU_CACHE", raising=False)
    plain = output()
    assert list(tmp_path.iterdir()) == []
    for _ in range(2):
        assert output("--cache", str(tmp_path / "given")) == plain
    assert len(list((tmp_path / "given").iterdir())) == 1
    monkeypatch.setenv("SEMU_CACHE", str(tmp_path / "from-environment"))
    assert output("--cache", str(tmp_path / "given")) == plain
    assert not (tmp_path / "from-environment").exists()
    assert output() == plain
    assert len(list((tmp_path / "from-environment").iterdir())) == 1


def test_the_command_says_once_what_is_wrong_with_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("not a cache")
    assert main(["simulate", "vlm-s", "--cache", str(file)]) == 0
    captured = capsys.readouterr()
    assert captured.err.count(str(file)) == 1
    assert str(file) not in captured.out
    assert file.read_text() == "not a cache"
