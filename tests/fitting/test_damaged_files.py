"""Files that are cut off, mistyped or of another kind: a message that names the place, never a traceback."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fitting.fixtures import GEMM_HEADER, NCCL_TEXT, nccl_json, trace, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semu.errors import ConfigError
from semu.fitting.readers import read_measurements
from semu.fitting.samples import by_section

GEMM = GEMM_HEADER + "".join(f"H100-SXM,bf16,{m},4096,1024,1,{m / 20},,,1,mine,layout=TN\n" for m in (512, 1024, 4096))
ATTENTION = (
    "device,dtype,pass,batch,heads,kv_heads,seq_q,seq_kv,head_dim,head_dim_v,causal,window,time_us,tflops,source,note\n"
    "H100-SXM,bf16,fwd,1,4,1,256,256,64,64,1,0,15.829,2.1198,mine,vllm/0.24 fa3\n"
)
MEMORY = (
    "device,op,pass,dtype,shape,bytes,time_us,gbps,source,note\n"
    "H100-SXM,rms_norm,fwd,bf16,8192x4096,134217728,100,1342.2,mine,torch\n"
    "H100-SXM,adam,,fp32,8x1048576,234881024,100,2348.8,mine,torch fused\n"
)
COLLECTIVES = (
    "device,topology,collective,ranks,ranks_per_node,bytes,time_us,time_us_min,algbw_gbps,busbw_gbps,source,note\n"
    "H100-SXM,nvswitch,alltoall,4,4,1048576,20,,52.43,39.3,mine,\n"
)
FRACTIONS = (
    "table,meaning,column,bytes,fraction_of_peak_busbw\n"
    "nic,ring,2Node-16GPU(NIC),16777216,0.5\nnic,ring,16Node-128GPU(NIC),33554432,0.8\n"
)
NCCL = NCCL_TEXT.format(test="all_reduce", host="node-1", time="20.97")
WHOLE = {
    "gemm.csv": GEMM,
    "attention.csv": ATTENTION,
    "memory_ops.csv": MEMORY,
    "collectives.csv": COLLECTIVES,
    "fractions.csv": FRACTIONS,
    "nccl.txt": NCCL,
    "nccl.json": nccl_json(),
    "trace.json": json.dumps(trace()),
}
JUNK = ["nan", "inf", "-1", "0", "", "é", "\0", "1e400", "1e308", "1e-320", "9" * 400, "null", "[]", "{}", '"', "true"]
JUNK += ["\r", "\n", ",", ";", "\u202e", "\ufeff", "0x10"]


def test_the_whole_files_are_read(tmp_path: Path) -> None:
    for name, text in WHOLE.items():
        assert read_measurements([write(tmp_path, name, text)], "h100").samples, name


@pytest.mark.slow
@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(WHOLE)), st.lists(st.tuples(st.integers(0), st.integers(0, 12), st.sampled_from(JUNK))))
def test_damage_is_named_or_harmless(tmp_path: Path, name: str, damage: list[tuple[int, int, str]]) -> None:
    text = WHOLE[name]
    for at, length, junk in damage[:4]:
        begin = at % (len(text) + 1)
        text = text[:begin] + junk + text[begin + length :]
    _is_named_or_harmless(write(tmp_path, name, text))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(WHOLE)), st.floats(0, 1), st.booleans(), st.binary(max_size=3))
def test_files_that_end_too_early(tmp_path: Path, name: str, share: float, packed: bool, tail: bytes) -> None:
    content = WHOLE[name].encode()
    content = gzip.compress(content) if packed else content
    (tmp_path / name).write_bytes(content[: int(share * len(content))] + tail)
    _is_named_or_harmless(str(tmp_path / name))


VALUES = st.sampled_from([None, True, -1, 0, 1e308, float("nan"), float("inf"), "x", [], {}, [1], [[-1, 2]], 10**400])


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.booleans(), st.lists(st.tuples(st.integers(0), VALUES), min_size=1, max_size=3))
def test_json_with_other_values(tmp_path: Path, is_trace: bool, changes: list[tuple[int, object]]) -> None:
    document = trace() if is_trace else json.loads(nccl_json())
    for at, value in changes:
        setters = list(_places(document))
        setters[at % len(setters)](copy.deepcopy(value))
    _is_named_or_harmless(write(tmp_path, "any.json", json.dumps(document)))


def _places(document: object) -> list[Callable[[object], None]]:
    """A setter for every value in a document."""
    found: list[Callable[[object], None]] = []
    whole = document if isinstance(document, dict | list) else ()
    for key, value in list(whole.items() if isinstance(whole, dict) else enumerate(whole)):
        found.append(lambda new, own=document, at=key: own.__setitem__(at, new))  # type: ignore[misc]
        found += _places(value)
    return found


def _is_named_or_harmless(path: str) -> None:
    try:
        found = read_measurements([path], "h100")
    except ConfigError as error:
        assert error.where and error.message
        return
    for samples in by_section(found.samples).values():
        assert (samples.time_s > 0).all() and (samples.shape >= 0).all() and (samples.shape <= 1e15).all()


@pytest.mark.parametrize(
    ("name", "old", "new", "message", "where"),
    [
        ("gemm.csv", "bf16,512,", "bf16,inf,", "cannot be read", "gemm.csv:2"),
        ("gemm.csv", "bf16,512,", "bf16,1e300,", "cannot be read", "gemm.csv:2"),
        ("gemm.csv", "layout=TN\n", "layout=TN,more\n", "cannot be read", "gemm.csv:2"),
        ("gemm.csv", ",,,1,mine", ",,,1,mine\n", "cannot be read", "gemm.csv:2"),
        ("gemm.csv", "dtype,m,n", "dtype,m,m", "two columns of one name", "gemm.csv:1"),
        ("gemm.csv", "25.6", "1e-320", "not positive", "gemm.csv:2"),
        ("gemm.csv", "mine", "x" * 200_000, "field larger than", "gemm.csv:2"),
        ("attention.csv", "2.1198", "fast", "not a rate", "attention.csv:2"),
        ("memory_ops.csv", "134217728", "-134217728", "cannot be read", "memory_ops.csv:2"),
        ("collectives.csv", "alltoall,4,", "alltoall,inf,", "cannot be read", "collectives.csv:2"),
        ("fractions.csv", "16777216,0.5", "16777216,0", "cannot be read", "fractions.csv:2"),
        ("fractions.csv", "16777216,0.5", "16777216,50", "cannot be read", "fractions.csv:2"),
        ("fractions.csv", "33554432,0.8", "33554432", "cannot be read", "fractions.csv:3"),
        ("nccl.txt", "13.41", "13,41", "cannot be read", "nccl.txt:15"),
        ("nccl.txt", "13.41", "13410", "mixed units", "nccl.txt:15"),
        ("nccl.txt", "#  Rank  0", "#  Rank  X", "x", ""),
        ("nccl.json", '"time": 30.0', '"time": 0.03', "mixed units", "nccl.json results[0]"),
        ("nccl.json", '"size": 1048576', f'"size": {10**400}', "cannot be read", "nccl.json results[0]"),
        (
            "trace.json",
            '"dur": 310.0',
            '"dur": -310.0',
            "1 kernels whose times are not positive",
            "trace.json ts 2000.0",
        ),
        ("trace.json", '"dur": 310.0', '"dur": "310"', "not positive numbers", "trace.json ts 2000.0"),
    ],
)
def test_what_is_wrong_and_where(tmp_path: Path, name: str, old: str, new: str, message: str, where: str) -> None:
    text = WHOLE[name].replace(old, new, 1)
    assert text != WHOLE[name]
    path = write(tmp_path, name, text)
    if not where:  # one rank less is another measurement, not an error
        assert read_measurements([path], "h100").samples[0].shape[0] == 3
        return
    with pytest.raises(ConfigError, match=message) as error:
        read_measurements([path], "h100")
    assert error.value.where == where


@pytest.mark.parametrize("text", ['{"traceEvents": ' + "[" * 100_000 + '"ph"', '{"busbw": ' + "[" * 100_000])
def test_json_of_too_many_levels(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="too many levels"):
        read_measurements([write(tmp_path, "deep.json", text)], "h100")


def test_any_line_ends_and_a_byte_order_mark(tmp_path: Path) -> None:
    expected = [item.shape for item in read_measurements([write(tmp_path, "gemm.csv", GEMM)], "h100").samples]
    for number, end in enumerate(("\r\n", "\r")):
        path = tmp_path / f"{number}.csv"
        path.write_bytes(b"\xef\xbb\xbf" + GEMM.replace("\n", end).encode())
        assert [item.shape for item in read_measurements([path], "h100").samples] == expected
