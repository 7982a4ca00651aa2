"""``semu context`` and the notes of ``semu simulate`` on context ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import semu
from semu.cli.command import main
from semu.masks import MaskKind, Spans
from semu.runfile import load_run

METADATA = [
    {"layout": [["text", 300], ["vision", 0], ["text", 500]], "images": [{"patches": 2704, "tokens": 169}]},
    {"text_tokens": 900, "images": []},
    {"layout": [["vision", 0, 60], ["text", 64], ["vision", 0, 109]], "images": [{"patches": 2704, "tokens": 169}]},
    {"text_tokens": 700, "images": 1},
]


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """A VLM over packed samples that say where their images stand."""
    path = tmp_path / "metadata.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in METADATA * 8))
    settings = {
        "batch.kind": "file",
        "batch.path": str(path),
        "batch.attend_across_samples": "true",
        "training.seq_len": "3000",
        "training.global_batch": "4",
    }
    return ["vlm-s", "--cluster", "h800:1x8", "--parallel", "tp2-cp4-pp1"] + [
        word for key, value in settings.items() for word in ("--set", f"{key}={value}")
    ]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    code = main([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_policies_side_by_side(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    code, found = run(
        capsys, "context", *words, "--mask", "multimodal", "--set", "parallel.cp_block=32", "--out", str(out)
    )
    assert code == 0
    rows = {row["policy"]: row for row in found["policies"] if not row["refused"]}
    assert set(rows) >= {"zigzag", "document-zigzag", "contiguous", "striped", "lpt", "random"}
    assert rows["lpt"]["tiles"] <= min(row["tiles"] for row in rows.values()) + 0.1
    assert 1.0 <= found["lower_bound"] < 1.1
    assert found["best"] == min(rows.values(), key=lambda row: row["iteration_s"])["policy"]
    assert (out / "mask.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((out / "context.json").read_text())["policies"] == found["policies"]


def test_each_row_is_what_simulate_says(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--set", "training.attention_mask=multimodal", "--set", "parallel.cp_block=32"]
    _, found = run(capsys, "context", *words, *settings, "--policies", "lpt")
    code, report = run(capsys, "simulate", *words, *settings, "--set", "parallel.cp_balance=lpt")
    assert code == 0
    (row,) = found["policies"]
    assert row["iteration_s"] == report["iteration_time_s"]
    assert row["memory_bytes"] == max(report["peak_memory_bytes"])


def test_places_are_those_of_the_file(words: list[str]) -> None:
    settings = [word for word in words if "=" in word]
    job = load_run("vlm-s", settings, cluster="h800:1x8", parallel="tp2-cp4-pp1")
    spans = job.batch.microbatches(1, 1, 3000)[0].spans()
    runs = [run for line in range(4) for run in _runs(line)]
    assert np.diff(spans.ptr).tolist() == [tokens for _, tokens in runs]
    assert spans.kind.tolist() == [kind for kind, _ in runs]
    assert len(set(spans.item[spans.kind == 1].tolist())) == 3  # the one in two parts is one


def _runs(line: int) -> list[tuple[int, int]]:
    return {
        0: [(0, 300), (1, 169), (0, 500)],
        1: [(0, 900)],
        2: [(1, 60), (0, 64), (1, 109)],
        3: [(1, 169), (0, 700)],
    }[line]


def test_permutations_are_exported(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "permutation.npz"
    options = ["--mask", "multimodal", "--policies", "striped", "--export", str(path)]
    code, _ = run(capsys, "context", *words, *options)
    assert code == 0
    first = path.read_bytes()
    with np.load(path) as data:
        assert (str(data["policy"]), str(data["mask"]), int(data["cp"])) == ("striped", "multimodal", 4)
        for number in range(int(data["microbatches"])):
            order, inverse = data[f"{number}/permutation"], data[f"{number}/inverse"]
            np.testing.assert_array_equal(order[inverse], np.arange(len(order)))
            assert data[f"{number}/counts"].sum() == len(order) == data[f"{number}/cu_seqlens"][-1]
            assert data[f"{number}/tile_ptr"][-1] == len(data[f"{number}/tile_key"])
            assert data[f"{number}/position_ids"].max() < len(order)
    assert run(capsys, "context", *words, *options)[0] == 0
    assert path.read_bytes() == first


def test_groups_are_exported(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every token's rank is in the group that its run says; tokens see nobody outside their group."""
    path = tmp_path / "permutation.npz"
    code, found = run(capsys, "context", *words, "--mask", "document", "--policies", "hybrid", "--export", str(path))
    assert code == 0
    (row,) = found["policies"]
    assert sum(row["widths"].values()) == pytest.approx(1.0)
    with np.load(path) as data:
        for number in range(int(data["microbatches"])):
            own = {name: data[f"{number}/{name}"] for name in ("permutation", "counts", "position_ids")}
            runs, ranks, first = (data[f"{number}/group_{name}"] for name in ("ptr", "ranks", "first"))
            assert not (4 % ranks).any() and not (first % ranks).any()
            of_token = np.empty(len(own["permutation"]), np.int64)
            of_token[own["permutation"]] = np.repeat(np.arange(4), own["counts"])
            group = np.repeat(np.arange(len(ranks)), np.diff(runs))
            assert ((of_token >= first[group]) & (of_token < (first + ranks)[group])).all()
            document = np.cumsum(own["position_ids"] == 0)
            assert (np.diff(document)[np.diff(group) != 0] == 1).all()  # groups change between documents alone


@pytest.mark.slow
def test_simulate_says_what_is_lost(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--set", "parallel.cp_balance=contiguous", "--set", "training.attention_mask=document"]
    big = ["llama-3-8b", "--cluster", "h100:1x8", "--parallel", "tp1-cp8"]
    sizes = ["--set", "training.seq_len=65536", "--set", "training.global_batch=1"]
    code, report = run(capsys, "simulate", *big, *sizes, *settings)
    assert code in (0, 3)
    (note,) = [note for note in report["warnings"] if "imbalance" in note]
    assert note.startswith("this batch loses ")
    lost, won = (float(words.split(" %")[0].split(" ")[-1]) for words in note.split("; policy lpt wins back up to"))
    _, dealt = run(capsys, "simulate", *big, *sizes, *settings[2:], "--set", "parallel.cp_balance=lpt")
    really = 100 * (1 - dealt["iteration_time_s"] / report["iteration_time_s"])
    assert won <= lost
    assert 0.6 * won <= really <= 1.1 * won  # told by tiles alone


@pytest.mark.parametrize(
    ("options", "where"),
    [
        (["--cp", "1"], "parallel.cp"),
        (["--cp", "3"], "--cp"),
        (["--policies", "lptt"], "--policies"),
        (["--mask", "multimodl"], "training.attention_mask"),
        (["--set", "parallel.cp_kind=all_to_all"], "parallel.cp_kind"),
    ],
)
def test_bad_input(words: list[str], options: list[str], where: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = run(capsys, "context", *words, *options)
    assert code == 2
    assert found["error"]["where"].endswith(where)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"text_tokens": 5, "layout": [["text", 4]]}, "do not sum"),
        ({"images": 1, "layout": [["text", 4], ["vision", 0, 5]]}, "do not sum to the length"),
        ({"images": 1, "layout": [["vision", 1]]}, "no such vision item"),
        ({"layout": "text"}, "not a layout"),
        ({"layout": [["video", 3]]}, "kind of run"),
    ],
)
def test_bad_layouts(line: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "metadata.jsonl"
    path.write_text(json.dumps(line) + "\n")
    with pytest.raises(semu.ConfigError, match=message) as caught:
        semu.workload.file_batch(path)
    assert caught.value.where is not None
    assert str(caught.value.where).startswith(f"{path}:1")


def test_a_file_of_bits_is_a_mask(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The document mask as bits costs what it costs as a word."""
    from semu.masks import bits_of

    spans = Spans.of_text([4096])
    path = tmp_path / "mask.npy"
    np.save(path, bits_of(MaskKind.CAUSAL, spans))
    big = ["llama-3.2-1b", "--cluster", "h100:1x4", "--parallel", "cp4", "--set", "training.seq_len=4096"]
    dealt = ["--set", "parallel.cp_balance=lpt"]
    found = [
        run(capsys, "simulate", *big, *dealt, "--set", f"training.attention_mask={own}")[1]
        for own in ("document", path)
    ]
    times = [report["iteration_time_s"] for report in found]
    assert times[0] == times[1]


@pytest.mark.parametrize("cp", [1, 2])
def test_simulate_says_that_tokens_see_nothing(cp: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows without a bit, in each of two sequences; as many as ``semu context`` counts."""
    from semu.masks import bits_of

    bits = bits_of(MaskKind.CAUSAL, Spans.of_text([1024]))
    whole, holed = tmp_path / "whole.npy", tmp_path / "holed.npy"
    np.save(whole, bits)
    bits[[3, 700, 701]] = 0
    np.save(holed, bits)
    words = ["llama-3.2-1b", "--cluster", "h100:1x2", "--parallel", f"cp{cp}-dp{2 // cp}"]
    words += ["--set", "training.seq_len=1024", "--set", "training.global_batch=2"]
    for path, said in ((whole, []), (holed, ["6 tokens see nothing"])):
        mask = ["--set", f"training.attention_mask={path}"]
        notes = [note for note in run(capsys, "simulate", *words, *mask)[1]["warnings"] if "see nothing" in note]
        assert [note.partition(":")[0] for note in notes] == said
        if cp > 1:
            counted = run(capsys, "context", *words, *mask)[1]["batch"]["tokens_that_see_nothing"]
            assert counted == (6 if said else 0)


def test_masks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = run(capsys, "list", "masks")
    assert code == 0
    assert [row["name"] for row in found["masks"]] == [kind.value for kind in MaskKind]
    assert [row["name"] for row in found["policies"]] == [policy.value for policy in semu.masks.Balance]
