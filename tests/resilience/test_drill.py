"""Nodes die while unequal pipelines train; the end equals that of the model in one piece that nothing interrupts."""

from __future__ import annotations

import functools
import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from resilience.drill_kit import an_arranger

from semu.cli.command import main
from semu.errors import ConfigError, ExecutorError
from semu.resilience.templates.drilled import Arranger

torch = pytest.importorskip("torch", reason="the executor needs torch")
from semu.executor.drill import DrillReport, Failure, run_drill  # noqa: E402
from semu.executor.drill import state as drill_state  # noqa: E402
from semu.executor.drill.orders import Moment  # noqa: E402
from semu.executor.fake_communicator import FakeCommunicator  # noqa: E402

STAGE, COMMIT, COPY, HANG = Moment


@functools.cache
def arranger_of(nodes: int) -> Arranger:
    return an_arranger(nodes)


def drill(nodes: int, *failures: Failure, backend: str = "fake", **options: Any) -> DrillReport:
    arranger = arranger_of(nodes)
    options = {"iterations": 4, "timeout_s": 120.0, "width": 8, **options}
    return run_drill(arranger, arranger.first(), failures=failures, backend=backend, **options)


def check(report: DrillReport, nodes: list[int]) -> None:
    """All iterations are done, and no number differs; so many nodes after each reconfiguration."""
    assert report.stopped is None and len(report.losses) == report.iterations
    assert report.layers == 8 and report.state_error < 1e-10 and report.loss_error < 1e-13
    assert [one.nodes for one in report.recoveries] == nodes
    assert report.losses[-1] < report.losses[0]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("node", [0, 1, 2, 3, 4])
def test_any_node_of_unequal_pipelines_dies_in_the_middle_of_an_iteration(node: int) -> None:
    report = drill(5, Failure(2, node))
    check(report, [4])
    (one,) = report.recoveries
    assert one.gone == (node,) and one.steps == 2 and one.redone
    assert 0 <= one.first_notice_s <= one.notice_s < one.again_s
    # pipelines of [1, 2, 3] and [3, 3] layers become two of [3, 3], with the least copied layers
    state = 24 * _numbers_of_a_layer(8)  # float64: parameters and two moments
    layers = {0: 1, 1: 2, 2: 4, 3: 3, 4: 4}[node]  # by hand; what runs before and behind them is smaller than a layer
    assert layers * state <= one.copied_bytes < (layers + 1) * state


def _numbers_of_a_layer(width: int) -> int:
    from semu.executor.demo.model import Layer

    return sum(parameter.numel() for parameter in Layer(width).parameters())


def test_two_failures_in_sequence() -> None:
    report = drill(7, Failure(1, 2), Failure(3, 5))
    check(report, [6, 5])
    assert [one.steps for one in report.recoveries] == [1, 3]


def test_two_nodes_die_at_once() -> None:
    check(drill(7, Failure(1, 0, COMMIT), Failure(1, 5, COMMIT)), [5])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("node", [0, 4])
def test_a_node_dies_when_all_have_their_gradients(node: int) -> None:
    """The others step, those too that have noticed before they have: no iteration is lost, none is done twice."""
    report = drill(5, Failure(2, node, COMMIT))
    check(report, [4])
    assert report.recoveries[0].steps == 3


@pytest.mark.sampled(3)
@pytest.mark.parametrize("node", [3, 4, 6])
def test_a_node_dies_while_layers_are_copied(node: int) -> None:
    report = drill(7, Failure(1, 0), Failure(1, node, COPY))
    check(report, [6, 5])
    assert [one.steps for one in report.recoveries] == [1, 1]


def test_a_node_comes_back() -> None:
    report = drill(5, Failure(1, 1), joins=[(2, 1)])
    check(report, [4, 5])
    assert report.recoveries[1].joined == (1,) and not report.recoveries[1].redone
    assert report.recoveries[1].steps >= 3 and report.recoveries[1].copied_bytes > 0


def test_too_few_nodes_are_left(tmp_path: Path) -> None:
    """Below (f + 1) n0: the reason, and the whole state, which is that of the step that was reached."""
    report = drill(4, Failure(2, 3), out=tmp_path)
    assert report.stopped is not None and report.stopped.steps == 2
    assert "at least (faults + 1) x 2 = 4" in report.stopped.reason
    assert report.stopped.nodes == (0, 1, 2) and len(report.stopped.files) == 3
    assert report.losses == drill(4, iterations=2).losses and report.state_error < 1e-10
    layers: set[Any] = set()
    for file in report.stopped.files:
        saved = torch.load(file, weights_only=True)
        assert saved["steps"] == 2
        layers |= saved["layers"].keys()
    assert layers == {("llm", layer) for layer in range(-1, 7)}


def test_all_copies_of_layers_are_lost() -> None:
    report = drill(5, Failure(1, 2, COMMIT), Failure(1, 4, COMMIT))
    assert report.stopped is not None and "no node holds layers 3, 4, 5 of llm" in report.stopped.reason
    assert len(report.losses) == 2


def test_all_copies_of_layers_are_lost_in_the_last_iteration(tmp_path: Path) -> None:
    """All is done, and yet the model is not there any more: the reason is that, and what is left is written."""
    report = drill(5, Failure(3, 2, COMMIT), Failure(3, 4, COMMIT), out=tmp_path)
    assert report.stopped is not None and "no node holds layers 3, 4, 5 of llm" in report.stopped.reason
    assert report.stopped.steps == len(report.losses) == 4 and len(report.stopped.files) == 3
    assert report.state_error < 1e-10


def test_an_uninterrupted_drill() -> None:
    check(drill(5), [])


def test_state_of_the_optimizer_that_is_not_copied_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: parameters alone are not enough."""
    launch = FakeCommunicator.launch

    def _without(self: FakeCommunicator, operations: Any) -> Any:
        for one in operations:
            if one.is_send and one.tag >= drill_state.FIRST_TAG:
                one.tensors = tuple(
                    t if t.dim() and k % 4 == 0 else torch.zeros_like(t) for k, t in enumerate(one.tensors)
                )
        return launch(self, operations)

    monkeypatch.setattr(FakeCommunicator, "launch", _without)
    with pytest.raises(ExecutorError, match="not that of the model in one piece"):
        drill(5, Failure(2, 1))


@pytest.mark.parametrize(
    ("failures", "joins", "words"),
    [
        ([Failure(9, 1)], [], "no such iteration"),
        ([Failure(1, 9)], [], "no such node"),
        ([Failure(1, 1), Failure(2, 1)], [], "fails twice"),
        ([Failure(0, 1), Failure(2, 1)], [(0, 1)], "fails twice"),
        ([], [(1, 1)], "that is there joins"),
        ([Failure(1, 1, HANG)], [], "hangs cannot be ended"),
    ],
)
def test_bad_failures(failures: list[Failure], joins: list[tuple[int, int]], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        drill(5, *failures, joins=joins)


RUN = """
[model.transformer]
layers = 4
hidden = 64
ffn = 256
heads = 4
vocab = 256
[cluster]
device = "h100"
nodes = 3
gpus_per_node = 1
[parallel]
pp = 3
zero = 0
[training]
global_batch = 4
seq_len = 64
"""


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run.toml"
    run.write_text(RUN)
    words = ["drill", str(run), "--backend", "fake", "--iterations", "3"]
    assert main([*words, "--kill", "1:2", "--out", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["recoveries"][0]["nodes"] == 2 and len(document["losses"]) == 3
    assert document["state_error"] < 1e-10
    assert json.loads((tmp_path / "drill.json").read_text())["losses"] == document["losses"]
    assert main([*words, "--kill", "0:0,1:1"]) == 6
    assert "stopped behind step 1" in capsys.readouterr().err
    for flag, wrong in (("--kill", "1"), ("--kill", "1:0:soon"), ("--kill", "7:0"), ("--join", "1:0")):
        assert main([*words, flag, wrong]) == 2
        assert flag in capsys.readouterr().err


def test_more_nodes_are_gone_than_was_foreseen() -> None:
    arranger = an_arranger(5, fewest=5)
    first = arranger.first()
    held = {node: frozenset(key for keys in arranger._keys for key in keys) for node in range(4)}
    assert len(arranger(held).nodes) == 4 and len(first.nodes) == 5


@pytest.mark.multiprocess
@pytest.mark.parametrize("moment", [STAGE, COMMIT, HANG])
def test_processes(moment: Moment) -> None:
    """SIGKILL (or SIGSTOP) of a process; no process is left behind."""
    report = drill(5, Failure(1, 1, moment), backend="gloo", iterations=3, timeout_s=20.0 if moment is HANG else 60.0)
    check(report, [4])
    if moment is not HANG:  # connections are cut: nobody waits for the timeout
        assert report.recoveries[0].notice_s < 30.0
    assert not multiprocessing.active_children()


@pytest.mark.multiprocess
def test_a_process_comes_back_and_too_few_are_left(tmp_path: Path) -> None:
    report = drill(5, Failure(0, 1), Failure(2, 2), Failure(3, 3), joins=[(0, 1)], backend="gloo", out=tmp_path)
    assert report.stopped is not None and report.stopped.steps == 3 and len(report.stopped.files) == 3
    assert [one.nodes for one in report.recoveries] == [4, 5, 4]
    assert not multiprocessing.active_children()
