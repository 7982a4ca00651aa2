"""Ranks that die, raise or fall silent: the others end in time, say where they were, and nothing stays behind."""

from __future__ import annotations

import multiprocessing
import re
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is the executor extra")

import torch.distributed as dist
from executor.plan_kit import make_plan, modular_shape
from executor.proof import run_fake
from executor.small_models import SmallModel
from executor.workers import Faulty, end_apart, fail, prove, without

from semu.errors import ExecutorError
from semu.executor import FakeWorld, Runner, run_threads, split_model
from semu.executor.delivery import publish_plans, received_plans
from semu.executor.processes import RankFailure, launch
from semu.plan.plan import ExecutionPlan
from semu.schedule.registry import ALL_SCHEDULES

LONG_S = 180.0
"""For what comes at once on a quiet machine."""
MODEL = SmallModel("lm", {"lm": [[1, 1, 1, 1]]}, {"lm": 3})


def plan_of_three() -> ExecutionPlan:
    shape = modular_shape(3, {"lm": (1, (1, 1, 1, 1))}, MODEL.sources)
    return make_plan(shape, ALL_SCHEDULES["1f1b"](shape), [1] * 3, MODEL.items, MODEL.sources)


def threads_fail(plan: ExecutionPlan, how: str, timeout_s: float = LONG_S) -> dict[int, ExecutorError]:
    """Errors of all ranks. ``timeout_s``: of rank 1, which goes wrong; the others wait longer, so that it is the first
    to give up, whatever else the machine does."""
    world, errors = FakeWorld(3), {}

    def work(mine: Any) -> None:
        part = split_model(plan, MODEL.modules(0), mine.rank)
        if mine.rank == 1:
            part.chunks = {number: Faulty(chunk, how) for number, chunk in part.chunks.items()}
        runner = Runner(part, mine, timeout_s=timeout_s if mine.rank == 1 else LONG_S)
        program = runner.prepare(plan)
        mine.gather(None, LONG_S)
        try:
            runner.run(program)
        except ExecutorError as error:
            errors[mine.rank] = error

    run_threads(world, work)
    return errors


def test_a_stage_that_raises() -> None:
    begin = monotonic()
    errors = threads_fail(plan_of_three(), "raises")
    assert monotonic() - begin < LONG_S  # nobody waited for the timeout
    assert set(errors) == {0, 1, 2}
    assert errors[1].message == "the stage raised ValueError: two is too many"
    assert errors[1].where is not None and "rank 1: action" in errors[1].where
    assert "forward_stage 1F1 (lm, microbatch 1)" in errors[1].where
    for rank in (0, 2):
        assert errors[rank].exit_code == 6
        assert errors[rank].message == "another rank has failed"
        # where it was then: rank 0 may still be sending, or wait already
        assert re.match(rf"rank {rank}: action \d+, (wait_)?i(send|recv) of message \d+", str(errors[rank].where))
        assert "two is too many" in str(errors[rank].got)


@pytest.mark.parametrize("how", ["times out", "loses its connection"])
def test_a_stage_that_fails_as_a_network_does_is_not_another_rank(how: str) -> None:
    """Such as a loader that reads from afar."""
    errors = threads_fail(plan_of_three(), how)
    assert errors[1].message.startswith("the stage raised ") and errors[1].message.endswith(f"Error: it {how}")
    assert "forward_stage 1F1" in str(errors[1].where)


def test_a_receive_that_never_comes() -> None:
    plan = plan_of_three()
    lost = next(
        number
        for number, (source, target) in enumerate(
            zip(plan.messages.source_rank, plan.messages.target_rank, strict=True)
        )
        if (source, target) == (0, 1) and plan.messages.tag[number] == 3
    )
    begin = monotonic()
    errors = threads_fail(without(plan, 0, lost), "", timeout_s=1.0)
    assert monotonic() - begin < LONG_S
    assert errors[1].message == "no answer from another rank"
    assert f"wait_irecv of message {lost} from rank 0, of 0F3 (lm, microbatch 3)" in str(errors[1].where)
    assert errors[1].expected == "it within 1 s"
    assert errors[0].message == errors[2].message == "another rank has failed"


def test_a_plan_for_another_world() -> None:
    plan = plan_of_three()
    with pytest.raises(ExecutorError, match=r"a plan for another world.*expected 2 pipeline ranks.*got 3"):
        run_threads(FakeWorld(2), lambda mine: Runner(split_model(plan, MODEL.modules(0), mine.rank), mine).run(plan))


def test_a_plan_for_another_model() -> None:
    plan = plan_of_three()
    other = replace(plan, model_hash="0" * 64)

    def work(mine: Any) -> None:
        part = split_model(plan, MODEL.modules(0), mine.rank)
        Runner(part, mine).run(other)

    with pytest.raises(ExecutorError, match=r"a plan for another model|another rank has failed") as caught:
        run_threads(FakeWorld(3), work)
    assert caught.value.exit_code == 6


def test_a_model_of_another_size() -> None:
    plan = plan_of_three()
    with pytest.raises(ExecutorError, match=r"another number of layers.*expected 3 layers; got 2"):
        split_model(plan, replace(MODEL, layers={"lm": 2}).modules(0), 0)
    with pytest.raises(ExecutorError, match="lacks a module"):
        split_model(plan, {"text": MODEL.modules(0)["lm"]}, 0)


def test_messages_that_fit_no_module() -> None:
    plan = plan_of_three()
    target = plan.messages.target.copy()
    target[0] = 0
    wrong = replace(plan, messages=replace(plan.messages, target=target))
    with pytest.raises(ExecutorError, match="neither reads the other"):
        run_fake(wrong, MODEL)
    actions = [replace(own, kind=own.kind[:-2], target=own.target[:-2], batch=own.batch[:-2]) for own in plan.actions]
    with pytest.raises(ExecutorError, match="the plan ends too early"):
        run_fake(replace(plan, actions=tuple(actions)), MODEL, timeout_s=LONG_S)


class Store:
    """A store and connections to it."""

    def __init__(self) -> None:
        self.master = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def connect(self) -> Any:
        return dist.TCPStore("127.0.0.1", self.master.port, is_master=False)


def test_plans_arrive_one_by_one_and_none_is_lost() -> None:
    plan = plan_of_three()
    plans = [replace(plan, name=f"plan {number}") for number in range(5)]
    store = Store()
    made: list[int] = []

    def planner() -> Any:
        for number, one in enumerate(plans):
            made.append(number)
            yield one

    thread = threading.Thread(target=publish_plans, args=(store.connect(), planner(), 2), daemon=True)
    thread.start()
    readers = [received_plans(store.connect(), 2, timeout_s=LONG_S) for _ in range(2)]
    for number in range(5):
        assert [next(reader).name for reader in readers] == [f"plan {number}"] * 2
        assert len(made) <= number + 5  # two in the store, one in each reader's hands and one in its queue
    assert [list(reader) for reader in readers] == [[], []]
    thread.join(LONG_S)
    assert not thread.is_alive()


def test_a_planner_is_two_plans_ahead_and_drops_those_that_were_taken() -> None:
    class Slow:
        """What is waited for comes; keys in the order in which they are asked for and dropped."""

        def __init__(self) -> None:
            self.values: dict[str, bytes] = {}
            self.waited: list[tuple[str, int]] = []

        def set(self, key: str, value: bytes) -> None:
            self.values[key] = value

        def wait(self, keys: list[str], _: object) -> None:
            self.waited += [(key, len(self.values)) for key in keys]

        def delete_key(self, key: str) -> None:
            self.values.pop(key, None)

    store = Slow()
    assert publish_plans(store, [plan_of_three()] * 4, 1, name="p") == 4
    assert store.waited == [("p/0/taken", 2), ("p/1/taken", 2)]
    assert sorted(store.values) == ["p/2", "p/3", "p/4"] and store.values["p/4"] == b"e"


def test_a_planner_that_fails_tells_all_ranks() -> None:
    store = Store()

    def planner() -> Any:
        yield plan_of_three()
        raise ValueError("no memory for this batch")

    def publish() -> None:
        with pytest.raises(ValueError, match="no memory"):
            publish_plans(store.connect(), planner(), 1)

    thread = threading.Thread(target=publish)
    thread.start()
    plans = received_plans(store.connect(), 1, timeout_s=LONG_S)
    next(plans)
    with pytest.raises(ExecutorError, match=r"planner has failed.*no memory for this batch"):
        next(plans)
    thread.join(LONG_S)


def test_a_plan_of_a_later_version_and_one_that_never_comes() -> None:
    store = Store()
    text = plan_of_three().to_json().replace("semu plan 1", "semu plan 99")
    store.master.set("semu/plans/0", b"p" + text.encode())
    with pytest.raises(ExecutorError, match="later version") as caught:
        next(received_plans(store.connect(), 1, timeout_s=LONG_S))
    assert caught.value.exit_code == 6
    with pytest.raises(ExecutorError, match=r"no plan came; expected one within 0\.2 s"):
        next(received_plans(store.connect(), 1, timeout_s=0.2, name="nothing"))


def test_a_reader_of_plans_that_breaks_is_waited_for_by_nobody() -> None:
    class Broken:
        def wait(self, *_: object) -> None:
            raise OSError("no route")

    with pytest.raises(ExecutorError, match=r"plan 0 of semu/plans: OSError: no route"):
        next(received_plans(Broken(), 1))


def test_the_rank_that_failed_by_itself_is_the_one_named() -> None:
    own = ExecutorError("the stage raised ValueError: no", where="rank 2")
    silent = ExecutorError("no answer from another rank", where="rank 1")
    after = ExecutorError("another rank has failed", where="rank 0")
    assert RankFailure({0: after, 1: silent, 2: own}, {}).message == own.message
    assert RankFailure({0: after, 1: silent}, {}).message == silent.message


@pytest.mark.multiprocess
@pytest.mark.slow
def test_a_process_that_fails_when_another_one_is_done() -> None:
    with pytest.raises(RankFailure) as caught:
        launch(end_apart, 2, timeout_s=LONG_S)
    assert str(caught.value) == "world rank 1: ValueError: at the very end"
    assert caught.value.errors[0].message == "another rank has failed"
    assert multiprocessing.active_children() == []


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.parametrize("how", ["dies", "raises"])
def test_processes_end_with_the_one_that_fails(how: str) -> None:
    with pytest.raises(RankFailure) as caught:
        launch(fail, 3, (plan_of_three(), MODEL, how), timeout_s=LONG_S)
    failure = caught.value
    assert failure.exit_code == 6 and failure.kind == "ExecutorError"
    assert set(failure.errors) == {0, 1, 2}
    for rank in (0, 2):
        assert failure.exit_codes[rank] == 6
        assert failure.errors[rank].message == "another rank has failed"
        where = str(failure.errors[rank].where)
        assert f"rank {rank}: action" in where and "(lm, microbatch" in where
    if how == "dies":
        assert str(failure) == "world rank 1: the rank's process has died; got by SIGKILL"
    else:
        assert "rank 1: action" in str(failure) and "two is too many" in str(failure)
        assert failure.exit_codes[1] == 6
    assert multiprocessing.active_children() == []


@pytest.mark.multiprocess
@pytest.mark.slow
def test_a_process_that_waits_for_what_is_never_sent() -> None:
    plan = plan_of_three()
    lost = int((plan.messages.source_rank == 0).argmax())
    with pytest.raises(RankFailure) as caught:
        launch(prove, 3, (without(plan, 0, lost), MODEL, None, 5.0), timeout_s=LONG_S)
    # whoever waited first gave up first, and is the one that is told of
    assert caught.value.message == "no answer from another rank"
    assert caught.value.expected == "it within 5 s"
    assert f"message {lost} from rank 0" in str(caught.value.errors[1].where)
    assert all(code == 6 for code in caught.value.exit_codes.values())
    assert multiprocessing.active_children() == []


@pytest.mark.multiprocess
@pytest.mark.slow
def test_processes_do_not_outlive_the_one_that_started_them(tmp_path: Path) -> None:
    script = (
        "import sys; sys.path[:0] = sys.argv[2:]\n"
        "from executor.workers import linger\n"
        "from semu.executor.processes import launch\n"
        "if __name__ == '__main__':\n    launch(linger, 2, (sys.argv[1],))\n"
    )
    (tmp_path / "start.py").write_text(script)
    (tmp_path / "pids").mkdir()
    tests = Path(__file__).resolve().parents[1]
    words = [sys.executable, str(tmp_path / "start.py"), str(tmp_path / "pids"), str(tests), str(tests.parent)]
    with subprocess.Popen(words) as parent:
        begin = monotonic()
        while len(pids := [file.read_text() for file in (tmp_path / "pids").iterdir()]) < 2 or not all(pids):
            assert monotonic() - begin < LONG_S and parent.poll() is None
            sleep(0.1)
        parent.kill()
    begin = monotonic()
    while any(map(runs, pids)):
        assert monotonic() - begin < LONG_S
        sleep(0.1)


def runs(pid: str) -> bool:
    """Whether a process has not ended; one that nobody has asked for its exit code has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
