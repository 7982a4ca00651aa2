"""``AssignedSampler``: a data loader's sampler that hands out the samples of a replica, microbatch after microbatch."""

from __future__ import annotations

from collections.abc import Iterator

from torch.utils.data import Sampler

from semu.checks import check_count
from semu.prefetch import Prefetcher
from semu.searcher.assignment.assigner import Assigner, SampleSource
from semu.searcher.assignment.assignment import Assignment


class AssignedSampler(Sampler[list[int]]):
    """Positions in a data set (lines of its metadata file), a list for every microbatch of one replica: the
    ``batch_sampler`` of a ``torch.utils.data.DataLoader``.

    Every replica makes the same assignment from the same metadata, so that none sends it to another. The next iteration
    is assigned while one trains. The loss of a microbatch is multiplied by ``loss_weight``.

    Args:
        assigner: of the job. source: of its samples. replica: data-parallel replica.
    Raises:
        ConfigError: no such replica.
    """

    def __init__(self, assigner: Assigner, source: SampleSource, replica: int) -> None:
        self.assigner, self.source = assigner, source
        self.replica = check_count(replica, "replica", least=0, most=assigner.job.parallel.replicas - 1)
        self._iteration = self._microbatch = 0
        self._current: Assignment | None = None

    def __len__(self) -> int:
        """Microbatches of an epoch, as many as the job has for every iteration; fewer where a method merges some."""
        return self.source.num_iterations * self.assigner.job.num_microbatches

    def __iter__(self) -> Iterator[list[int]]:
        """From where it stands to the end of the file; the next time from the beginning."""
        first = self._iteration
        ahead = Prefetcher(self._assigned(first))
        try:
            for number, (begin, found) in enumerate(ahead, start=first):
                self._iteration, self._current = number, found
                while self._microbatch < found.num_microbatches:
                    mine = found.members(self.replica, self._microbatch)
                    self._microbatch += 1
                    yield (begin + mine).tolist()
                self._iteration, self._microbatch = number + 1, 0
        finally:
            ahead.close()
        self._iteration = self._microbatch = 0

    def _assigned(self, first: int) -> Iterator[tuple[int, Assignment]]:
        """The position of an iteration's first sample, and its assignment."""
        for number in range(first, self.source.num_iterations):
            samples, ids, bounds = self.source.iteration(number)
            yield self.source.first_sample(number), self.assigner(samples, ids, bounds=bounds)

    @property
    def assignment(self) -> Assignment | None:
        """Of the iteration that was last handed out; None: none was."""
        return self._current

    @property
    def loss_weight(self) -> float:
        """What the mean loss of the microbatch that was last handed out is multiplied by; 1 before the first."""
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
