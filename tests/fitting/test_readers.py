"""Reading CSV tables, output of nccl-tests and traces; what is wrong with them is said."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from fitting.fixtures import GEMM_HEADER, NCCL_TEXT, nccl_json, trace, write

from semu.errors import ConfigError
from semu.fitting.door import admit
from semu.fitting.readers import read_measurements
from semu.fitting.samples import by_section
from semu.hardware.known_devices import KNOWN_DEVICES, is_device, profile_name, profile_names
from semu.hardware.profile import list_profiles, load_profile


def test_every_profile_has_a_device() -> None:
    assert sorted(KNOWN_DEVICES) == list_profiles()
    for name, known in KNOWN_DEVICES.items():
        for alias in (*known.aliases, name):
            assert is_device(alias, name)
            assert name in profile_names(alias.upper())
    assert profile_name("H100-SXM") == "h100"
    assert profile_name("a100-sxm") == "a100-80g"
    assert profile_name("h800") == "h800"
    assert not is_device("H100-NVL", "h100")
    with pytest.raises(ConfigError, match="did you mean") as error:
        profile_name("H100-SMX")
    assert error.value.nearest == "H100-SXM"


def test_products(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "gemm.csv",
        GEMM_HEADER
        + "H100-SXM,bf16,4096,8192,1024,1,120.5,,,1,mine,\n"
        + "H100-SXM,fp8_block,4096,8192,1024,1,80,,,1,mine,blocks + activation quant kernel\n"
        + "B200-SXM,bf16,4096,8192,1024,1,60,,,1,mine,\n"
        + "H100-SXM,bf16,512,8192,1024,8,200,,,1,mine,grouped ng=8;bwd_grad_w;out=fp32;acc=True\n"
        + "H100-SXM,bf16,4096,8192,1024,1,90,,,1,mamf,best shape: an upper bound\n"
        + "H100-SXM,int8,4096,8192,1024,1,90,,,1,mine,\n",
    )
    found = read_measurements([path], "h100")
    assert found.others == {"B200-SXM": 1}
    assert [(item.section, item.where) for item in found.samples] == [
        ("efficiency.matmul", "gemm.csv:2"),
        ("efficiency.matmul.fp8_block", "gemm.csv:3"),
        ("efficiency.grouped_matmul", "gemm.csv:5"),
    ]
    assert found.samples[0].time_s == pytest.approx(120.5e-6)
    assert found.samples[0].shape == (4096, 8192, 1024, 1, 2, 2, 0, 0)
    assert found.samples[1].shape == (4096, 8192, 1024, 1, 1, 2, 1, 0)
    assert found.samples[2].shape == (512, 8192, 1024, 8, 2, 4, 0, 1)
    assert [item.where for item in found.refusals] == ["gemm.csv:6", "gemm.csv:7"]
    assert found.files[0].name == "gemm.csv" and len(found.files[0].sha256) == 64


@pytest.mark.parametrize("time", ["-3", "0", "nan", "inf", "fast"])
def test_times_are_positive(tmp_path: Path, time: str) -> None:
    text = GEMM_HEADER + "H100-SXM,bf16,64,64,64,1,3,,,1,mine,\n" + f"H100-SXM,bf16,64,64,64,1,{time},,,1,mine,\n"
    with pytest.raises(ConfigError, match="not positive numbers") as error:
        read_measurements([write(tmp_path, "gemm.csv", text)], "h100")
    assert error.value.where == "gemm.csv:3"
    assert time in str(error.value.got)


def test_units(tmp_path: Path) -> None:
    milliseconds = GEMM_HEADER.replace("time_us,", "time_ms,", 1) + "H100-SXM,bf16,64,64,64,1,3,,,1,mine,\n"
    found = read_measurements([write(tmp_path, "a.csv", milliseconds)], "h100")
    assert found.samples[0].time_s == pytest.approx(3e-3)
    both = GEMM_HEADER.replace("n_src", "time_ms") + "H100-SXM,bf16,64,64,64,1,3,,,1,mine,\n"
    with pytest.raises(ConfigError, match="several units"):
        read_measurements([write(tmp_path, "b.csv", both)], "h100")
    attention = (
        "device,dtype,pass,batch,heads,kv_heads,seq_q,seq_kv,head_dim,head_dim_v,causal,window,time_us,tflops,source,note\n"
        "H100-SXM,bf16,fwd,1,4,1,256,256,64,64,1,0,{time},2.1198,mine,vllm/0.24 fa3\n"
    )
    found = read_measurements([write(tmp_path, "c.csv", attention.format(time=15.829))], "h100")
    assert (found.samples[0].section, found.samples[0].source) == (
        "efficiency.attention_forward.head_dim_64",
        "mine/vllm",
    )
    with pytest.raises(ConfigError, match="mixed units") as error:  # the time in milliseconds
        read_measurements([write(tmp_path, "d.csv", attention.format(time=0.015829))], "h100")
    assert error.value.where == "d.csv:2"


def test_other_tables(tmp_path: Path) -> None:
    memory = write(
        tmp_path,
        "memory_ops.csv",
        "device,op,pass,dtype,shape,bytes,time_us,gbps,source,note\n"
        "H100-SXM,rmsnorm,fwd,fp16,8192x4096,134217728,100,1342.2,mine,\n"
        "H100-SXM,rms_norm,bwd,bf16,8192x4096,134217728,200,671.1,cudnn,pytorch\n"
        "H100-SXM,swiglu,fwd,bf16,8192x4096,,200,,liger,\n"
        "H100-SXM,memcpy_d2h,,,large,1000000000,19231,52,mine,pinned\n",
    )
    collectives = write(
        tmp_path,
        "collectives.csv",
        "device,topology,collective,ranks,ranks_per_node,bytes,time_us,time_us_min,algbw_gbps,busbw_gbps,source,note\n"
        "H100-SXM,nvswitch,alltoall,4,4,1048576,20,,52.43,39.3,mine,\n"
        "H100-SXM,8x400G,all_gather,64,8,1073741824,3000,,357.9,352.3,mine,\n"
        'A40,pairs,send_recv,2,2,1048576,300,,3.495,3.495,mine,"PCIe pair, not NVLink"\n',
    )
    found = read_measurements([memory, collectives], "h100")
    assert [(item.section, item.shape, item.source) for item in found.samples] == [
        ("efficiency.norm", (134217728, 4096), "mine/rmsnorm"),
        ("efficiency.norm", (134217728, 4096), "cudnn/pytorch/bwd"),
        ("link.pcie.p2p", (2, 1, 1e9, 0), "mine"),
        ("link.nvlink.all_to_all", (4, 1, 1048576, 0), "mine"),
        ("link.nic.all_gather", (64, 8, 1073741824, 0), "mine"),
    ]
    assert [item.reason for item in found.refusals] == ["its bytes are not known"]
    assert read_measurements([collectives], "a40").samples[0].section == "link.pcie.p2p"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "not a table of measurements"),
        ("", "the file is empty"),
        (GEMM_HEADER.replace("time_us,", "", 1), "no column of times"),
        (GEMM_HEADER + "H100-SXM,bf16,-4,64,64,1,3,,,1,mine,\n", "cannot be read"),
        (GEMM_HEADER + "H100-SXM,bf16,4.5,64,64,1,3,,,1,mine,\n", "cannot be read"),
        (GEMM_HEADER + "H100-SXM,bf16\n", "cannot be read|not positive"),
    ],
)
def test_broken_tables(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_measurements([write(tmp_path, "x.csv", text)], "h100")


def test_tables_that_lie_beside_the_others(tmp_path: Path) -> None:
    experts = "device,topology,op,mode,ep,tokens,hidden,topk,latency_us,bw_gbps,bw_kind,sms,source\n"
    found = read_measurements(
        [write(tmp_path, "moe_all2all.csv", experts + "H800-SXM,a,b,c,8,1,1,1,,1,NVLink,2,x\n")], "h800"
    )
    assert found.samples == ()
    assert "no section describes them" in found.refusals[0].reason


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the file"):
        read_measurements([str(tmp_path / "none.csv")], "h100")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x01" * 20)
    with pytest.raises(ConfigError, match="not a text file"):
        read_measurements([str(tmp_path / "binary.csv")], "h100")


def test_nccl_text(tmp_path: Path) -> None:
    text = NCCL_TEXT.format(test="all_reduce", host="node-1", time="20.97")
    found = read_measurements([write(tmp_path, "log.txt", text)], "h100")
    assert [(item.section, item.shape) for item in found.samples] == [
        ("link.nvlink.all_reduce", (4, 1, 1024, 0)),
        ("link.nvlink.all_reduce", (4, 1, 65536, 0)),
        ("link.nvlink.all_reduce", (4, 1, 1048576, 0)),
    ]
    assert found.samples[2].time_s == pytest.approx(20.97e-6)
    assert found.samples[2].where == "log.txt:16"
    two = NCCL_TEXT.format(test="reduce_scatter", host="node-2", time="20.97")
    assert read_measurements([write(tmp_path, "b.txt", two)], "h100").samples[0].section == "link.nic.reduce_scatter"
    spread = NCCL_TEXT.format(test="alltoall", host="node-2", time="20.97")
    found = read_measurements([write(tmp_path, "f.txt", spread)], "h100")
    assert found.samples == () and "two ports" in found.refusals[0].reason
    unnamed = text.replace("# Collective test starting: all_reduce_perf\n", "")
    (sample, *_) = read_measurements([write(tmp_path, "sendrecv_perf.log", unnamed)], "h100").samples
    assert (sample.section, sample.shape) == ("link.nvlink.p2p", (2, 1, 1024, 0))
    with pytest.raises(ConfigError, match="which collective"):
        read_measurements([write(tmp_path, "c.txt", unnamed)], "h100")
    with pytest.raises(ConfigError, match="not positive"):
        read_measurements([write(tmp_path, "d.txt", text.replace("20.97", "-20.97"))], "h100")
    with pytest.raises(ConfigError, match="no rows of times"):
        read_measurements([write(tmp_path, "e.txt", text[: text.index("       1024")])], "h100")


def test_nccl_json(tmp_path: Path) -> None:
    found = read_measurements([write(tmp_path, "out.json", nccl_json())], "h100")
    assert [(item.section, item.shape, item.time_s) for item in found.samples] == [
        ("link.nvlink.all_gather", (8, 1, 1 << 20, 0), pytest.approx(30e-6)),
        ("link.nvlink.all_gather", (8, 1, 1 << 26, 0), pytest.approx(220e-6)),
    ]
    document = json.loads(nccl_json())
    del document["results"][0]["size"]
    with pytest.raises(ConfigError, match="cannot be read"):
        read_measurements([write(tmp_path, "a.json", json.dumps(document))], "h100")
    with pytest.raises(ConfigError, match="not JSON"):
        read_measurements([write(tmp_path, "b.json", nccl_json()[:-5])], "h100")


def test_traces(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps(trace()).encode()))
    found = read_measurements([path], "h100")
    by_name = {item.section: item for item in found.samples}
    product = by_name["efficiency.matmul"]
    assert product.shape == (4096, 8192, 2048, 1, 2, 2, 0, 0)
    assert product.time_s == pytest.approx(240e-6)  # both of its kernels
    assert by_name["efficiency.attention_forward"].shape == (2, 16, 4, 4096, 4096, 128, 128, 1, 0, 0)
    assert by_name["efficiency.norm"].shape == (2 * 8192 * 4096 * 2, 4096)
    assert len(found.samples) == 3
    assert "1 kernels of aten::cumsum" in found.refusals[0].reason


def test_a_trace_without_shapes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a trace without shapes") as error:
        read_measurements([write(tmp_path, "t.json", json.dumps(trace(with_shapes=False)))], "h100")
    assert "record_shapes=True" in str(error.value.expected)
    empty = {"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 0, "dur": 1}]}
    with pytest.raises(ConfigError, match="no GPU kernels"):
        read_measurements([write(tmp_path, "u.json", json.dumps(empty))], "h100")


def test_rates_above_the_peak(tmp_path: Path) -> None:
    """4096^3 takes 139 us at the peak."""
    rows = [f"H100-SXM,bf16,4096,4096,4096,1,{time},,,1,mine,\n" for time in (200, 100, 205, 139)]
    samples = by_section(read_measurements([write(tmp_path, "g.csv", GEMM_HEADER + "".join(rows))], "h100").samples)
    kept, refusals = admit(samples["efficiency.matmul"], load_profile("h100"))
    assert len(kept) == 3
    assert [item.where for item in refusals] == ["g.csv:3"]
    assert "1374 TFLOP/s, above the peak of 989.4" in refusals[0].reason
    text = GEMM_HEADER + "".join(rows).replace(",205,", ",0.205,")
    samples = by_section(read_measurements([write(tmp_path, "h.csv", text.replace(",200,", ",0.2,"))], "h100").samples)
    with pytest.raises(ConfigError, match=r"3 of 4 rows of efficiency\.matmul are above the peak") as error:
        admit(samples["efficiency.matmul"], load_profile("h100"))
    assert error.value.where == "h.csv:2"
    kept, refusals = admit(samples["efficiency.matmul"], load_profile("h100"), is_strict=False)
    assert (len(kept), len(refusals)) == (1, 3)


def test_rows_that_say_they_are_not_to_be_fitted(tmp_path: Path) -> None:
    gemm = GEMM_HEADER + "H100-SXM,bf16,512,512,512,1,9,,,1,mine,layout=TN | dry run\n"
    memory = "device,op,pass,dtype,shape,bytes,time_us,gbps,source,note\n"
    memory += "H100-SXM,add,fwd,bf16,8192x4096,134217728,100,,mine,torch | load=sustained;l2=hot\n"
    memory += "H100-SXM,add,fwd,bf16,8192x4096,134217728,100,,mine,torch | load=sustained\n"
    found = read_measurements([write(tmp_path, "g.csv", gemm), write(tmp_path, "m.csv", memory)], "h100")
    assert [(item.where, item.section) for item in found.samples] == [("m.csv:3", "efficiency.add")]
    assert [(item.where, item.reason.split(",")[0].split(":")[0]) for item in found.refusals] == [
        ("g.csv:2", "a dry run"),
        ("m.csv:2", "from a hot cache"),
    ]
    steps = "device,scope,dtype,layers,optimizer,forward_us,optimizer_us,step_us\nH100-SXM,layer,bf16,1,fused,1,1,3\n"
    found = read_measurements([write(tmp_path, "model_steps.csv", steps)], "h100")
    assert found.samples == () and "whole steps" in found.refusals[0].reason


def test_files_of_one_name_and_files_given_twice(tmp_path: Path) -> None:
    paths = []
    for folder, time in (("one", 9), ("two", 8)):
        (tmp_path / folder).mkdir()
        row = f"H100-SXM,bf16,512,512,512,1,{time},,,1,mine,\n"
        paths.append(write(tmp_path / folder, "gemm.csv", GEMM_HEADER + row))
    paths.append(write(tmp_path, "more.csv", GEMM_HEADER + "H100-SXM,bf16,512,512,512,1,7,,,1,mine,\n"))
    found = read_measurements(paths, "h100")
    assert [file.name for file in found.files] == ["one/gemm.csv", "two/gemm.csv", "more.csv"]
    assert [item.where for item in found.samples] == ["one/gemm.csv:2", "two/gemm.csv:2", "more.csv:2"]
    with pytest.raises(ConfigError, match="twice"):
        read_measurements([paths[0], paths[0]], "h100")


def test_the_software_that_a_file_or_its_neighbour_names(tmp_path: Path) -> None:
    record = {"torch": "2.13.0", "cuda": "13.0", "driver": "580.82", "nccl": None}
    record["runs"] = [{"date": "2026-01-03T10:00:00+00:00"}, {"date": "2026-01-02T10:00:00+00:00"}]  # type: ignore[assignment]
    write(tmp_path, "machine.json", json.dumps(record))
    gemm = write(tmp_path, "gemm.csv", GEMM_HEADER + "H100-SXM,bf16,512,512,512,1,9,,,1,mine,\n")
    log = NCCL_TEXT.format(test="all_reduce", host="node-1", time="20.97")
    nccl = write(tmp_path, "a.txt", "# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807\n" + log)
    listed = write(tmp_path, "b.json", json.dumps({"nccl_version": 22807, **json.loads(nccl_json())}))
    traced = {**trace(), "cuda_runtime_version": 13000, "deviceProperties": [{"name": "NVIDIA H100 80GB HBM3"}]}
    found = read_measurements([gemm, nccl, listed, write(tmp_path, "t.json", json.dumps(traced))], "h100")
    assert [file.software for file in found.files] == [
        "torch 2.13.0, CUDA 13.0, driver 580.82, 2026-01-02 to 2026-01-03",
        "nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807",
        "NCCL 22807",
        "CUDA runtime 13000",
    ]
    for text in ("[1]", "not JSON", "{}"):
        write(tmp_path, "machine.json", text)
        assert read_measurements([gemm], "h100").files[0].software is None


def test_devices_that_nccl_tests_and_traces_name(tmp_path: Path) -> None:
    log = NCCL_TEXT.format(test="all_reduce", host="node-1", time="20.97")
    text = write(tmp_path, "log.txt", log)
    traced = {**trace(), "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]}
    path = write(tmp_path, "t.json", json.dumps(traced))
    assert len(read_measurements([text, path], "h100").samples) == 6
    other = read_measurements([text, path], "a100-80g")
    assert other.samples == () and other.others == {"NVIDIA H100 80GB HBM3": 6}
    assert len(read_measurements([text, path], "a-profile-of-ones-own").samples) == 6
    unnamed = write(tmp_path, "u.txt", log.replace("NVIDIA H100 80GB HBM3", ""))
    assert len(read_measurements([unnamed], "a100-80g").samples) == 3


def test_nccl_text_of_several_outputs(tmp_path: Path) -> None:
    first, second, third = (
        NCCL_TEXT.format(test=test, host="node-1", time="20.97") for test in ("all_gather", "reduce_scatter", "gather")
    )
    found = read_measurements([write(tmp_path, "all.log", f"mpirun ...\n{first}{third}{second}")], "h100")
    assert [item.section for item in found.samples] == ["link.nvlink.all_gather"] * 3 + [
        "link.nvlink.reduce_scatter"
    ] * 3
    assert found.samples[3].where == f"all.log:{1 + 2 * len(first.splitlines()) + 14}"
    assert [item.reason for item in found.refusals] == ["no section describes gather_perf"]
    unnamed = second.replace("# Collective test starting: reduce_scatter_perf\n", "")
    with pytest.raises(ConfigError, match="which collective") as error:  # the file's name is the first one's at most
        read_measurements([write(tmp_path, "all_gather.log", first + unnamed)], "h100")
    assert error.value.where == f"all_gather.log:{len(first.splitlines()) + 1}"


def test_nccl_text_that_is_cut_off_tagged_or_wrong(tmp_path: Path) -> None:
    text = NCCL_TEXT.format(test="all_reduce", host="node-1", time="20.97")
    tagged = "".join(f"[1,0]<stdout>: {line}\n" for line in text.splitlines())
    assert len(read_measurements([write(tmp_path, "a.txt", tagged)], "h100").samples) == 3
    cut = read_measurements([write(tmp_path, "b.txt", text[: text.index("20.97") + 2])], "h100")
    assert len(cut.samples) == 2 and [item.reason for item in cut.refusals] == ["cut off"]
    wrong = text.replace("7.33      0", "7.33     12")
    found = read_measurements([write(tmp_path, "c.txt", wrong)], "h100")
    assert len(found.samples) == 2 and found.refusals[0].where == "c.txt:15"


def test_attention_in_a_trace_by_the_innermost_operator(tmp_path: Path) -> None:
    """torch records the kernels under the operator that launches them, whose tensors have tokens before heads."""
    q, k = [2, 4096, 16, 128], [2, 4096, 4, 128]
    concrete = [""] * 8 + ["True", "False", "", "", ""]
    forward = ("aten::_flash_attention_forward", [q, k, k, *[[]] * 10], concrete)
    backward = ("aten::_flash_attention_backward", [q, q, k, k, q, *[[]] * 12], [*[""] * 11, "True", *[""] * 5])
    window = ("aten::_flash_attention_forward", [q, k, k, *[[]] * 10], [*concrete[:11], "128", "0"])
    events = []
    for identity, (name, dims, values) in enumerate((forward, backward, window), 1):
        types = ["c10::BFloat16"] * len(dims)
        arguments = {"External id": identity, "Input Dims": dims, "Input type": types, "Concrete Inputs": values}
        events.append({"ph": "X", "cat": "cpu_op", "name": name, "ts": 1, "dur": 2, "args": arguments})
        kernel = "flash_fwd_kernel" if "forward" in name else "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel"
        arguments = {"External id": identity}
        events.append({"ph": "X", "cat": "kernel", "name": kernel, "ts": 5, "dur": 300.0, "args": arguments})
    found = read_measurements([write(tmp_path, "t.json", json.dumps({"traceEvents": events}))], "h100")
    shape = (2, 16, 4, 4096, 4096, 128, 128, 1, 0, 0)
    assert [(item.section, item.shape) for item in found.samples] == [
        ("efficiency.attention_forward", shape),
        ("efficiency.attention_backward", shape),
    ]
    assert len(found.refusals) == 1
