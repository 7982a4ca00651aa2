"""``AssignedSampler``: a data loader's sampler that hands out the samples of a replica, microbatch after microbatch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch.utils.data import Sampler

from semu.checks import check_count
from semu.prefetch import Prefetcher
from semu.searcher.assignment.assigner import Assigner, SampleSource
from semu.searcher.assignment.assignment import Assignment
from semu.searcher.assignment.problem import I64
from semu.searcher.assignment.reordering import assigned_iterations


class MicrobatchSamples(list[int]):
    """Positions of the samples of a microbatch.

    They carry what belongs to them, so that a loader that reads ahead, with or without processes, cannot mistake it.

    Attributes:
        microbatch: its number in the iteration. loss_weight: what the mean loss of what the backbone reads in it is
            multiplied by.
        num_deferred: the last samples, so many, that the encoders run here and the backbone reads in the next
            microbatch, where they come first.
    """

    def __init__(self, positions: Iterable[int], microbatch: int, loss_weight: float, num_deferred: int) -> None:
        super().__init__(positions)
        self.microbatch, self.loss_weight, self.num_deferred = microbatch, loss_weight, num_deferred


class AssignedSampler(Sampler[list[int]]):
    """Positions in a data set (lines of its metadata file), a list for every microbatch of one replica
    (``MicrobatchSamples``): the ``batch_sampler`` of a ``torch.utils.data.DataLoader``.

    Every replica makes the same assignment from the same metadata, so that none sends it to another. The next iteration
    is assigned while one trains. The loss of a microbatch is multiplied by its ``loss_weight``.

    Args:
        assigner: of the job. source: of its samples. replica: data-parallel replica.
        window: iterations among which samples may be exchanged (``semu.searcher.assignment.reordering``); 1: none.
    Raises:
        ConfigError: no such replica, no such window.
    """

    def __init__(self, assigner: Assigner, source: SampleSource, replica: int, window: int = 1) -> None:
        self.assigner, self.source = assigner, source
        self.window = check_count(window, "assignment.window")
        self.replica = check_count(replica, "replica", least=0, most=assigner.job.parallel.replicas - 1)
        self._iteration = self._microbatch = 0
        self._current: Assignment | None = None

    def __len__(self) -> int:
        """Microbatches of an epoch, as many as the job has for every iteration; fewer where a method merges some."""
        return self.source.num_iterations * self.assigner.job.num_microbatches

    def __iter__(self) -> Iterator[list[int]]:
        """From where it stands to the end of the file; the next time from the beginning."""
        first = self._iteration
        ahead = Prefetcher(assigned_iterations(self.assigner, self.source, self.window, first))
        try:
            for number, (positions, found) in enumerate(ahead, start=first):
                self._iteration, self._current = number, found
                while self._microbatch < found.num_microbatches:
                    self._microbatch += 1
                    yield self._handed(found, positions, self._microbatch - 1)
                self._iteration, self._microbatch = number + 1, 0
        finally:
            ahead.close()
        self._iteration = self._microbatch = 0

    def _handed(self, found: Assignment, positions: I64, microbatch: int) -> MicrobatchSamples:
        mine = found.members(self.replica, microbatch)
        weight = float(found.loss_weights[self.replica, microbatch])
        return MicrobatchSamples(positions[mine].tolist(), microbatch, weight, int(found.dealt.is_deferred[mine].sum()))

    @property
    def assignment(self) -> Assignment | None:
        """Of the iteration that was last handed out; None: none was."""
        return self._current

    @property
    def loss_weight(self) -> float:
        """Of the microbatch that was last handed out; 1 before the first. A loader that reads ahead has it of a later
        one than it trains: there, take that of ``MicrobatchSamples``."""
        if self._current is None:
            return 1.0
        microbatch = self._microbatch - 1 if self._microbatch else self._current.num_microbatches - 1
        return float(self._current.loss_weights[self.replica, microbatch])

    def state_dict(self) -> dict[str, int]:
        """Where it stands: iteration, and microbatches of it that were handed out."""
        return {"iteration": self._iteration, "microbatch": self._microbatch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from where another stood.

        Raises:
            ConfigError: an iteration that the file does not have.
        """
        most = self.source.num_iterations
        self._iteration = check_count(state.get("iteration"), "state.iteration", least=0, most=most)
        self._microbatch = check_count(state.get("microbatch"), "state.microbatch", least=0)
