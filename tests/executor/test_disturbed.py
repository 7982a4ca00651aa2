"""Messages that come late, twice or never, ranks that are slow: the same numbers or an error, never other ones."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is the executor extra")

from executor.proof import compare, run_rank  # noqa: E402
from executor.test_faults import LONG_S, MODEL, plan_of_three  # noqa: E402
from executor.workers import die_at  # noqa: E402

from semu.errors import ExecutorError  # noqa: E402
from semu.executor import FakeWorld, run_threads  # noqa: E402
from semu.executor.communicator import Operation  # noqa: E402
from semu.executor.fake_communicator import FakeCommunicator  # noqa: E402
from semu.executor.processes import RankFailure, launch  # noqa: E402
from semu.plan.action import ActionKind  # noqa: E402


class Sent:
    """A message that nobody will get."""

    def wait(self, timeout_s: float) -> None:
        """As if it had been sent."""


class Disturbed(FakeCommunicator):
    """One of its messages, by number, is dropped or sent twice; or all come late."""

    def __init__(self, world: FakeWorld, rank: int, replica: int, how: str, number: int) -> None:
        super().__init__(world, rank, replica)
        self.how, self.number, self.sent = how, number, 0
        self.draw = random.Random(f"{rank} {number}")

    def launch(self, operations: Sequence[Operation]) -> list[Any]:
        """As it is, or not."""
        found: list[Any] = []
        for operation in operations:
            if self.how == "late":
                time.sleep(self.draw.random() * 0.01)
            is_it = operation.is_send and self.rank == 1 and self.sent == self.number
            self.sent += operation.is_send
            if is_it and self.how == "never":
                found.append(Sent())
                continue
            copy = Operation(True, operation.peer, operation.tag, operation.tensors)
            found += super().launch([operation])
            if is_it and self.how == "twice":
                super().launch([copy])
        return found


class DisturbedWorld(FakeWorld):
    """A world whose messages suffer."""

    def __init__(self, size: int, how: str, number: int = 0, *, is_eager: bool = False) -> None:
        super().__init__(size, is_eager=is_eager)
        self.how, self.message = how, number

    def communicator(self, rank: int, replica: int = 0) -> FakeCommunicator:
        """A rank's end."""
        return Disturbed(self, rank, replica, self.how, self.message)


@pytest.mark.parametrize("is_eager", [False, True])
def test_messages_that_come_late_change_nothing(*, is_eager: bool) -> None:
    plan = plan_of_three()
    world = DisturbedWorld(3, "late", is_eager=is_eager)
    compare(plan, MODEL, run_threads(world, lambda mine: run_rank(plan, MODEL, mine)))


@pytest.mark.parametrize("number", [0, 3, 7])
@pytest.mark.parametrize("how", ["never", "twice"])
def test_a_message_that_comes_never_or_twice_is_an_error_or_nothing(how: str, number: int) -> None:
    """The last message that comes twice is seen by nobody."""
    plan = plan_of_three()
    world = DisturbedWorld(3, how, number, is_eager=True)
    try:
        ranks = run_threads(world, lambda mine: run_rank(plan, MODEL, mine, timeout_s=2.0))
    except ExecutorError as error:
        assert error.exit_code == 6 and error.where is not None
    else:
        assert how == "twice"
        compare(plan, MODEL, ranks)


class Slow(torch.nn.Module):
    """A stage that takes its time."""

    def __init__(self, chunk: torch.nn.Module, seconds: float) -> None:
        super().__init__()
        self.chunk, self.seconds = chunk, seconds

    def forward(self, *values: Any) -> Any:
        """Wait, then as the stage."""
        time.sleep(self.seconds)
        return self.chunk(*values)


@pytest.mark.parametrize(("seconds", "timeout_s"), [(0.001, LONG_S), (1.5, 0.3)])
def test_a_rank_that_is_slow(seconds: float, timeout_s: float) -> None:
    """Slower than the others by a millisecond: nothing changes; by more than they wait: they say so."""
    from semu.executor import Runner, split_model

    plan = plan_of_three()

    def work(mine: Any) -> float:
        part = split_model(plan, MODEL.modules(0), mine.rank)
        if mine.rank == 1:
            part.chunks = {number: Slow(chunk, seconds) for number, chunk in part.chunks.items()}
        return Runner(part, mine, timeout_s=timeout_s).run(plan).loss()

    if timeout_s > seconds:
        true = run_threads(FakeWorld(3), lambda mine: run_rank(plan, MODEL, mine)["loss"])
        assert run_threads(FakeWorld(3), work) == true
    else:
        with pytest.raises(ExecutorError, match="no answer from another rank"):
            run_threads(FakeWorld(3), work)


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("kind", [ActionKind.BACKWARD_STAGE, ActionKind.WAIT_IRECV])
def test_a_process_is_killed_at_an_action(kind: ActionKind) -> None:
    with pytest.raises(RankFailure) as caught:
        launch(die_at, 3, (plan_of_three(), MODEL, kind), timeout_s=LONG_S)
    assert str(caught.value) == "world rank 1: the rank's process has died; got by SIGKILL"
    assert all(caught.value.errors[rank].message == "another rank has failed" for rank in (0, 2))
    assert multiprocessing.active_children() == []
