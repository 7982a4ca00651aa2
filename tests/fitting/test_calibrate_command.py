"""``semu calibrate`` from files to a profile, and its scores."""

from __future__ import annotations

import hashlib
import json
import tomllib
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from fitting.fixtures import GEMM_HEADER, NCCL_TEXT, write

from semu.cli import main
from semu.fitting.forms import peaks_of, predict
from semu.fitting.models import defaults_of
from semu.fitting.write import replace_blocks
from semu.hardware.cluster import Cluster
from semu.hardware.kinds import DType, OpKind, Port, Provenance
from semu.hardware.profile import PROFILE_DIR, load_profile
from semu.hardware.software import Software
from semu.job import Training, TrainingJob
from semu.nn import Model
from semu.parallel.config import Parallel
from semu.simulation import simulate
from semu_models.text.gpt import GPT, GPTConfig

KNOWN = {
    **defaults_of("efficiency.matmul"),
    "flop": 0.75,
    "mem": 0.8,
    "t0_s": 4e-6,
    "p": 3.0,
    "tiles_at_once": 132.0,
    "tile_k0": 60.0,
    "tile_rest": 0.2,
    "power": 0.1,
}


def gemm_text(
    device: str = "H100-SXM", factor: float = 1.0, sizes: tuple[int, ...] = (256, 512, 1024, 4096, 8192)
) -> str:
    """Products whose times are known, at two sites."""
    peaks, lines = peaks_of(load_profile("h100"), "efficiency.matmul"), []
    for source, own in (("here", factor), ("there", factor * 1.2)):
        for m in (*sizes, 32):
            for n in sizes:
                for k in sizes:
                    shape = np.array([[m, n, k, 1, 2, 2, 0, 0]], dtype=float).T
                    time_us = own * 1e6 * predict("efficiency.matmul", KNOWN, shape, peaks)[0]
                    lines.append(f"{device},bf16,{m},{n},{k},1,{time_us:.6g},,,1,{source},\n")
    return GEMM_HEADER + "".join(lines)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["calibrate", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_from_files_to_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("scipy")
    gemm = write(tmp_path, "gemm.csv", gemm_text() + "B200-SXM,bf16,4096,4096,4096,1,99,,,1,here,\n")
    nccl = write(tmp_path, "ring.txt", NCCL_TEXT.format(test="all_gather", host="node-1", time="20.97"))
    output = str(tmp_path / "mine.toml")
    words = [gemm, nccl, "--device", "H100-SXM", "-o", output, "--date", "2026-01-02"]
    code, out, err = run(capsys, *words, "--picture", str(tmp_path / "pictures"))
    assert code == 0 and "wrote" in err
    assert "efficiency.matmul" in out and "B200-SXM 1" in out
    (few,) = [line for line in out.splitlines() if "too few sizes or ranks for" in line]
    assert few.strip().startswith("3 rows, too few sizes or ranks for t0_s, hop_s")
    assert "not measured, stays transferred" in out
    assert (tmp_path / "pictures" / "efficiency.matmul.png").stat().st_size > 10_000
    profile = load_profile(output)
    product = profile.efficiencies[OpKind.MATMUL]
    assert product.provenance is Provenance.FITTED
    assert product.flop * (1.2**-0.5) == pytest.approx(0.75 / 1.2, rel=0.02)  # the base lies between the sites
    assert profile.efficiencies[OpKind.ROPE].provenance is Provenance.FITTED  # as in the base: the same device
    ours, theirs = (item.software[Software.MEGATRON].matmul for item in (profile, load_profile("h100")))
    assert ours == replace(theirs, source=f"from h100: {theirs.source}")
    table = tomllib.loads(Path(output).read_text())
    assert table["calibration"]["held_out"] == "crc32(shape) % 3 == 0"
    assert table["calibration"]["date"] == "2026-01-02"
    assert table["calibration"]["files"][0] == {
        "name": "gemm.csv",
        "sha256": hashlib.sha256(Path(gemm).read_bytes()).hexdigest(),
        "rows": 300,
    }
    sites = table["site"]
    ratio = sites["there"]["efficiency.matmul"]["time"] / sites["here"]["efficiency.matmul"]["time"]
    assert ratio == pytest.approx(1.2, rel=0.02)
    # the same again gives the same bytes
    first = Path(output).read_bytes()
    assert run(capsys, *words)[0] == 0
    assert Path(output).read_bytes() == first
    # scores: shapes that no fit has seen
    blind = write(tmp_path, "blind.csv", gemm_text(sizes=(384, 768, 3072)) + "A40,bf16,512,512,512,1,50,,,1,here,\n")
    code, out, err = run(capsys, "--score", blind, "--profile", output, "--json")
    assert code == 0 and "A40: 1 rows of another device, not scored" in err
    document = json.loads(out)
    assert list(document) == ["kinds"]
    by_kind = {item["kind"]: item for item in document["kinds"]}
    assert sorted(by_kind) == ["gemm", "gemm_small"]
    assert list(by_kind["gemm"]) == ["kind", "n", "mape", "p95", "time_weighted", "mape_without_site_factor"]
    assert by_kind["gemm"]["n"] == 2 * 27 and by_kind["gemm_small"]["n"] == 2 * 9
    assert by_kind["gemm"]["mape"] < 3.0
    assert 7.0 < by_kind["gemm"]["mape_without_site_factor"] < 13.0
    held = run(capsys, "--score", gemm, "--profile", output, "--held-out", "--json")[1]
    assert 0 < json.loads(held)["kinds"][0]["n"] < 250


def test_json_and_update(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("scipy")
    gemm = write(tmp_path, "gemm.csv", gemm_text())
    old = '# hand-made\nname = "h100"\nbase = "h100"\nmemory_bytes = 1e9\n'
    old += "\n[efficiency.matmul]\nflop = 0.1\n\n[efficiency.rope]\nmem = 0.5\n"
    profile = write(tmp_path, "own.toml", old)
    code, out, _ = run(capsys, gemm, "--device", profile, "--update", profile, "--json", "--without", "there")
    assert code == 0
    document = json.loads(out)
    assert [item["section"] for item in document["sections"]] == ["efficiency.matmul"]
    assert list(document["sections"][0]["rows"]) == ["here"]
    text = Path(profile).read_text()
    assert text.startswith('# hand-made\nname = "h100"\nbase = "h100"\nmemory_bytes = 1e9\n')
    loaded = load_profile(profile)
    assert loaded.efficiencies[OpKind.MATMUL].flop == pytest.approx(0.75, rel=0.02)
    assert loaded.efficiencies[OpKind.ROPE].mem == 0.5
    assert loaded.peak_flop_per_s(DType.BF16) == load_profile("h100").peak_flop_per_s(DType.BF16)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["FILE"], "no device"),
        (["FILE", "--device", "H100-SMX"], "did you mean 'H100-SXM'"),
        (["FILE", "--device", "A40"], "do not name the device a40"),
        (["FILE", "--device", "h100", "-o", "nowhere/at/all.toml"], "no such folder"),
        (["FILE", "--device", "h100", "--date", "yesterday"], "not a date"),
        (["FILE", "--device", "h100", "--profile", "h100"], "--profile without --score"),
        (["FILE", "--score"], "no profile to score"),
        (["FILE", "--score", "--profile", "a40"], "no row of a40 to score"),
        (["FILE", "--score", "--profile", "h100", "--device", "h100"], "--score and --device together"),
        (["FILE", "--device", "h100", "--update", "none.toml"], "no such profile file"),
    ],
)
def test_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    file = write(tmp_path, "gemm.csv", gemm_text(sizes=(256, 1024, 4096)))
    code, out, _ = run(capsys, *(file if word == "FILE" else word for word in words), "--json")
    assert code == 2
    assert message in json.loads(out)["error"]["message"]


@pytest.mark.parametrize(
    ("words", "where", "message"),
    [
        (["FILE", "--device", "h100", "-o", "FOLDER"], "-o FOLDER", "a folder is there"),
        (["FILE", "--device", "h100", "-o", "FOLDER/mine"], "-o FOLDER/mine", "not a profile's name"),
        (["FILE", "--device", "h100", "--picture", "FILE"], "--picture FILE", "a file, not a folder"),
        (["FILE", "--device", "OWN", "-o", "OWN"], "-o OWN", "the profile would be its own base"),
        (["FILE", "--device", "h100", "-o", "SHIPPED"], "-o SHIPPED", "the profile would be its own base"),
        (["FILE", "--device", "H100-SXM", "-o", "SHIPPED"], "-o SHIPPED", "the profile would be its own base"),
        (["FILE", "--device", "ABOVE", "-o", "OWN"], "-o OWN", "the profile would be its own base"),
        (["FILE", "--device", "h100", "--update", "FILE"], "", ""),
        (["FILE", "--device", "h100", "--nodes", "0"], "--nodes", "out of range"),
        (["FILE", "--device", "h100", "--without", "her"], "--without", "did you mean 'here'"),
        (["FILE", "--device", "h100", "--beside", "her"], "--beside", "did you mean 'here'"),
        (["FILE", "FILE", "--device", "h100"], "gemm.csv", "the same measurements twice"),
    ],
)
def test_places_and_names_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], where: str, message: str
) -> None:
    places = {
        "FOLDER": str(tmp_path),
        "FILE": write(tmp_path, "gemm.csv", gemm_text(sizes=(256, 1024, 4096))),
        "OWN": write(tmp_path, "own.toml", 'name = "h100"\nbase = "h100"\n'),
        "ABOVE": write(tmp_path, "above.toml", 'name = "h100"\nbase = "own.toml"\n'),
        "SHIPPED": str(PROFILE_DIR / "h100.toml"),
    }
    before = {path: Path(path).read_bytes() for path in places.values() if Path(path).is_file()}

    def real(text: str) -> str:
        for name, place in places.items():
            text = text.replace(name, place)
        return text

    code, out, _ = run(capsys, *map(real, words), "--json")
    assert code == 2
    error = json.loads(out)["error"]
    assert message in error["message"]
    if where:
        assert error["where"] == real(where)
    assert {path: Path(path).read_bytes() for path in before} == before


def test_times_in_two_units(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("scipy")
    lines = gemm_text().splitlines(keepends=True)
    for number in (30, 60, 61):  # nanoseconds; the header is line 0
        cells = lines[number].split(",")
        cells[6] = f"{1e3 * float(cells[6]):.6g}"
        lines[number] = ",".join(cells)
    code, out, _ = run(capsys, write(tmp_path, "gemm.csv", "".join(lines)), "--device", "h100", "--json")
    error = json.loads(out)["error"]
    assert code == 2 and "3 of 250 rows of efficiency.matmul are far slower than the others" in error["message"]
    assert error["where"] == "gemm.csv:31" and "gemm.csv:31, gemm.csv:61, gemm.csv:62" in error["got"]
    code, out, _ = run(capsys, write(tmp_path, "ns.csv", gemm_text(factor=1e3)), "--device", "h100", "--json")
    assert code == 2 and "another unit or device" in json.loads(out)["error"]["message"]


OWN = """name = "mine"
memory_bytes = 84e9
mem_bytes_per_s = 3.35e12
nvlink_bytes_per_s = 450e9
nic_bytes_per_s = 50e9
[flop_per_s]
bf16 = 989.4e12
"""


def test_a_device_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Five numbers and measurements make a profile, which keeps its name and can be scored and fitted again."""
    pytest.importorskip("scipy")
    own, gemm = write(tmp_path, "own.toml", OWN), write(tmp_path, "gemm.csv", gemm_text(device="mine"))
    output = str(tmp_path / "fitted.toml")
    code, out, _ = run(capsys, gemm, "--device", own, "-o", output)
    assert code == 0 and "not measured, stays default" in out
    profile = load_profile(output)
    assert profile.name == "mine" and profile.efficiencies[OpKind.MATMUL].provenance is Provenance.FITTED
    code, out, _ = run(capsys, "--score", gemm, "--profile", output, "--json")
    score = {item["kind"]: item for item in json.loads(out)["kinds"]}["gemm"]
    assert code == 0 and score["mape"] < 6.0
    again = str(tmp_path / "again.toml")
    assert run(capsys, gemm, "--device", output, "-o", again)[0] == 0
    assert load_profile(again).name == "mine"


def test_optimizer_and_cross_entropy_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A fused Adam makes the base at 2.5 of 3.35 TB/s, a foreach one gets a factor; the logits reach 2 TB/s."""
    pytest.importorskip("scipy")
    text = "device,op,pass,dtype,shape,bytes,time_us,gbps,source,note\n"
    for count in (1 << 24, 1 << 26, 1 << 28):
        for note, rate in (("torch fused", 2.5e12), ("torch foreach", 1.25e12)):
            text += f"H100-SXM,adam,,fp32,64x{count // 64},{28 * count},{28e6 * count / rate:.6g},,mine,{note}\n"
    for rows in (2048, 4096, 8192):
        for way in ("fwd", "bwd"):
            moved = 8 * rows * 32000
            text += f"H100-SXM,cross_entropy,{way},fp32,{rows}x32000,{moved},{1e6 * moved / 2e12:.6g},,mine,torch\n"
    output = str(tmp_path / "mine.toml")
    code, out, _ = run(capsys, write(tmp_path, "memory_ops.csv", text), "--device", "h100", "-o", output, "--json")
    assert code == 0
    sections = {item["section"]: item for item in json.loads(out)["sections"]}
    assert sorted(sections) == ["efficiency.cross_entropy", "efficiency.optimizer"]
    profile = load_profile(output)
    optimizer, loss = profile.efficiencies[OpKind.OPTIMIZER], profile.efficiencies[OpKind.CROSS_ENTROPY]
    assert optimizer.mem == pytest.approx(2.5 / 3.35, rel=0.01)
    assert loss.mem == pytest.approx(2 / 3.35, rel=0.02)
    assert optimizer.provenance in (Provenance.FITTED, Provenance.MEASURED)
    assert 1.4 < sections["efficiency.optimizer"]["sites"]["mine/foreach"]["time"] < 2.0


def test_provenance_of_each_section(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files with hashes and software, and which of them each section is from."""
    pytest.importorskip("scipy")
    write(tmp_path, "machine.json", '{"torch": "2.13.0", "runs": [{"date": "2026-01-02T00:00:00"}]}')
    gemm = write(tmp_path, "gemm.csv", gemm_text(sizes=(256, 1024, 4096)))
    nccl = write(tmp_path, "log.txt", NCCL_TEXT.format(test="all_gather", host="node-1", time="20.97"))
    output = tmp_path / "mine.toml"
    assert run(capsys, gemm, nccl, "--device", "h100", "-o", str(output), "--date", "2026-01-03")[0] == 0
    table = tomllib.loads(output.read_text())["calibration"]
    assert [file.get("software") for file in table["files"]] == ["torch 2.13.0, 2026-01-02", None]
    assert {name: item["files"] for name, item in table["sections"].items()} == {
        "efficiency.matmul": ["gemm.csv"],
        "link.nvlink.all_gather": ["log.txt"],
    }


def test_the_rule_of_the_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, "gemm.csv", gemm_text(sizes=(256, 1024, 4096)))
    text = 'name = "h100"\nbase = "h100"\n\n[calibration]\nheld_out = "{}"\n'
    same = write(tmp_path, "same.toml", text.format("crc32(shape) % 3 == 0"))
    other = write(tmp_path, "other.toml", text.format("crc32(shape) % 5 == 0"))
    assert run(capsys, "--score", file, "--profile", same, "--held-out")[0] == 0
    assert run(capsys, "--score", file, "--profile", other)[0] == 0
    code, out, _ = run(capsys, "--score", file, "--profile", other, "--held-out", "--json")
    assert code == 2 and json.loads(out)["error"]["where"] == f"{other} calibration.held_out"


def test_why_nothing_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = "H100-SXM,bf16,512,512,512,1,9,,,1,mine,layout=TN | dry run\n"
    code, out, _ = run(capsys, write(tmp_path, "gemm.csv", GEMM_HEADER + row), "--device", "h100", "--json")
    error = json.loads(out)["error"]
    assert code == 2 and error["got"] == "1 rows left out: a dry run, whose figures mean nothing"


def test_a_kind_of_one_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = GEMM_HEADER + "H100-SXM,bf16,4096,4096,4096,1,230,,,1,here,\n"
    code, out, _ = run(capsys, write(tmp_path, "gemm.csv", one), "--device", "h100", "--json")
    assert code == 2
    error = json.loads(out)["error"]
    assert error["message"] == "nothing can be fitted" and "1 rows, too few to fit" in error["got"]


def test_without_scipy(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "scipy", None)
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    file = write(tmp_path, "gemm.csv", gemm_text(sizes=(256, 1024, 4096)))
    code, out, _ = run(capsys, file, "--device", "h100", "--json")
    assert code == 2
    assert json.loads(out)["error"]["expected"] == "pip install '.[fit]' in a checkout of semu, or pip install scipy"
    assert run(capsys, "--score", file, "--profile", "h100")[0] == 0


def test_blocks_keep_their_place() -> None:
    text = "# head\na = 1\n\n[host]\nx = 1\n\n[efficiency.matmul]\nflop = 1\n\n[link.nic.p2p]\nnet = 1\n"
    blocks = {
        "efficiency.matmul.fp8": "[efficiency.matmul.fp8]\nflop = 0.5",
        "link.nic.p2p": "[link.nic.p2p]\nnet = 0.5",
    }
    found = replace_blocks(text, blocks)
    assert tomllib.loads(found) == {
        "a": 1,
        "host": {"x": 1},
        "efficiency": {"matmul": {"flop": 1, "fp8": {"flop": 0.5}}},
        "link": {"nic": {"p2p": {"net": 0.5}}},
    }
    assert [line for line in found.splitlines() if line.startswith("[")] == [
        "[host]",
        "[efficiency.matmul]",
        "[efficiency.matmul.fp8]",
        "[link.nic.p2p]",
    ]
    assert replace_blocks(found, blocks) == found
    assert "[efficiency.matmul]" not in replace_blocks(found, {}, drop=("efficiency.",))


TARGETS = {
    "h100": {
        "gemm": (7.0, 9.0),
        "attention_forward": (7.0, 15.0),
        "gemm_fp8_block": (7.0, 7.0),
        "all_gather": (9.0, 9.0),
    },
    "a100-80g": {
        "gemm": (7.0, 9.0),
        "attention_forward": (7.0, 7.0),
        "all_reduce": (9.0, 13.0),
        "all_to_all": (9.0, 9.0),
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(TARGETS))
def test_shipped_profiles_reach_their_errors(data_dir: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    files = [
        data_dir / "microbench" / file for file in ("gemm.csv", "attention.csv", "memory_ops.csv", "collectives.csv")
    ]
    if not all(file.is_file() for file in files):
        pytest.skip("no microbenchmarks in the measured data")
    code, out, _ = run(capsys, "--score", *map(str, files), "--profile", name, "--held-out", "--json")
    assert code == 0
    kinds = {item["kind"]: item for item in json.loads(out)["kinds"]}
    for kind, (with_factor, without) in TARGETS[name].items():
        assert kinds[kind]["mape"] <= with_factor, kind
        assert kinds[kind]["mape_without_site_factor"] <= without, kind
    assert kinds["gemm"]["time_weighted"] <= 5.0
    memory = [kinds[kind] for kind in ("activation", "add", "embedding", "norm", "rope")]
    assert sum(item["n"] * item["mape"] for item in memory) / sum(item["n"] for item in memory) <= 8.0
    wires = [kinds[kind] for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")]
    assert sum(item["n"] * item["mape"] for item in wires) / sum(item["n"] for item in wires) <= 9.0


def test_pcie_has_its_own_section() -> None:
    assert load_profile("a40").links[Port.PCIE].of(OpKind.P2P).provenance is Provenance.FITTED
    assert load_profile("h100").links[Port.PCIE].of(OpKind.P2P).provenance is Provenance.MEASURED


@pytest.mark.parametrize("software", ["kernels", "megatron", "torch"])
def test_runs_call_the_attention_that_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], software: str
) -> None:
    pytest.importorskip("scipy")
    header = "device,dtype,pass,batch,heads,kv_heads,seq_q,seq_kv,head_dim,head_dim_v,causal,time_us,source,note\n"
    shipped, lines, measured = load_profile("h100"), [], {}
    kinds = {"fwd": OpKind.ATTENTION_FORWARD, "bwd": OpKind.ATTENTION_BACKWARD}
    for way, kind in kinds.items():
        section, curve = f"efficiency.{kind.value}", shipped.efficiencies[kind]
        numbers = {name: getattr(curve, name, value) for name, value in defaults_of(section).items()}
        numbers |= {"flop": 0.6 * curve.flop}
        for heads, tokens in product((8, 16, 32), (256, 512, 1024, 2048, 4096, 8192, 16384)):
            shape = np.array([[1, heads, heads, tokens, tokens, 128, 128, 1, 0, 0]], dtype=float).T
            time_s = predict(section, numbers, shape, peaks_of(shipped, section))[0]
            measured[way, heads, tokens] = time_s
            sizes = f"1,{heads},{heads},{tokens},{tokens},128,128,1"
            lines.append(f"H100-SXM,bf16,{way},{sizes},{1e6 * time_s:.6g},here,\n")
    table, output = write(tmp_path, "attention.csv", header + "".join(lines)), str(tmp_path / "mine.toml")
    code, _, err = run(capsys, table, "--device", "h100", "-o", output)
    assert code == 0, err
    model = Model.from_module(GPT(GPTConfig(1, 16 * 128, heads=16, vocab=256, positions=4096)), name="llm")
    training = Training(1, 1, 4096, software=software, launch=False)
    rank = simulate(TrainingJob(model, Cluster(output, 1, 1), Parallel(), training)).timeline.ranks[0]
    stages = [rank.expand(number) for number in range(len(rank.stages))]
    for way, kind in kinds.items():
        times = [
            end - start
            for stage in stages
            for of, start, end in zip(stage.table.kinds, stage.start_s, stage.end_s, strict=True)
            if of is kind
        ]
        assert times == [pytest.approx(measured[way, 16, 4096], rel=0.02)]
