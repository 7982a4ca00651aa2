"""Buffers live as long as the plan says: taken at ``irecv``, given up at ``wait_isend`` and by the stage that reads."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is the executor extra")

import torch
from executor.plan_kit import make_plan, modular_shape
from executor.small_models import SmallModel

from semu.errors import ExecutorError
from semu.executor import FakeWorld, ModuleStages, Operation, PipelineModel, Runner, run_threads, split_model
from semu.plan.plan import ExecutionPlan
from semu.schedule.registry import ALL_SCHEDULES

ITEMS = {"vit": [[5, 2, 3]], "llm": [[1, 1, 1]]}
MODEL = SmallModel("vlm", ITEMS, {"vit": 2, "llm": 2})


def vlm_plan() -> ExecutionPlan:
    shape = modular_shape(2, {"vit": (1, (3, 2, 1)), "llm": (1, (1, 1, 1))}, MODEL.sources)
    return make_plan(shape, ALL_SCHEDULES["greedy"](shape), [1] * 4, ITEMS, MODEL.sources)


class Watching(Runner):
    """Sees whether what was sent is gone once the send has been waited for."""

    freed = 0

    def _wait_send(self, step: Any) -> None:
        sent = [weakref.ref(one) for end in step.ends for one in self._flying[end.message][1]]
        assert sent and all(one() is not None for one in sent)
        super()._wait_send(step)
        assert all(one() is None for one in sent)
        self.freed += len(sent)


def test_what_was_sent_is_freed_at_the_wait() -> None:
    plan = vlm_plan()

    def work(mine: Any) -> tuple[int, int]:
        runner = Watching(split_model(plan, MODEL.modules(0), mine.rank), mine, timeout_s=180)
        runner.run(plan)
        return runner.freed, len(runner._runs) + len(runner._forwards) + len(runner._backwards)

    found = run_threads(FakeWorld(2), work)
    assert sum(freed for freed, _ in found) == len(plan.messages)
    assert [left for _, left in found] == [0, 0]


def test_shapes_that_the_user_tells_wrongly_are_refused_by_the_sender() -> None:
    plan = vlm_plan()

    def work(mine: Any) -> None:
        part = split_model(plan, MODEL.modules(0), mine.rank, shapes=lambda *_: (((1, 6), torch.float64),))
        Runner(part, mine, timeout_s=180).run(plan)

    with pytest.raises(ExecutorError, match=r"not what shapes\(\) tells"):
        run_threads(FakeWorld(2), work)


def test_nobody_knows_the_shapes() -> None:
    plan = vlm_plan()

    def work(mine: Any) -> None:
        own = split_model(plan, MODEL.modules(0), mine.rank)
        Runner(PipelineModel(own.modules, own.chunks), mine, timeout_s=180).run(plan)

    with pytest.raises(ExecutorError, match="nobody knows what shapes"):
        run_threads(FakeWorld(2), work)


def test_a_model_that_joins_its_modules_otherwise() -> None:
    plan = vlm_plan()
    with pytest.raises(ExecutorError, match="neither reads the other"):
        modules = {name: ModuleStages(layers=own.layers) for name, own in MODEL.modules(0).items()}
        run_threads(FakeWorld(2), lambda mine: Runner(split_model(plan, modules, mine.rank), mine).prepare(plan))


def test_threads_meet_messages_in_order() -> None:
    """A receive that is launched for another message than the one that was sent next is an error at both ends."""

    def work(mine: Any) -> None:
        (handle,) = mine.launch([Operation(mine.rank == 0, 1 - mine.rank, 3 + mine.rank, (torch.zeros(1),))])
        handle.wait(180.0)

    with pytest.raises(ConnectionError, match="message 3 was sent where message 4 is received"):
        run_threads(FakeWorld(2), work)


@pytest.mark.parametrize("is_eager", [False, True])
def test_a_send_waits_for_its_receive_only_under_rendezvous(is_eager: bool) -> None:
    world = FakeWorld(2, is_eager=is_eager)
    given = torch.ones(2)
    (send,) = world.communicator(0).launch([Operation(True, 1, 0, (given,))])
    if is_eager:
        send.wait(0.0)
        given.zero_()
    else:
        with pytest.raises(TimeoutError):
            send.wait(0.01)
    taken = torch.zeros(2)
    (receive,) = world.communicator(1).launch([Operation(False, 0, 0, (taken,))])
    receive.wait(1.0)
    assert taken.tolist() == [1.0, 1.0]
    if not is_eager:
        send.wait(1.0)
