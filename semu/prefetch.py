"""``Prefetcher``: the next items of an iterator, fetched while the current one is in use."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_POLL_S = 0.05
"""How soon threads see that no more items are wanted [s]."""


class Prefetcher(Generic[T]):
    """Items of an iterator, fetched ahead of their use by a thread.

    A double buffer (PipeWeaver §7.1): one item in use, one ready, and the source, such as the metadata of a data
    loader, is asked for no other before the first of them is taken. What it raises comes at its place among the items.
    """

    def __init__(self, source: Iterable[T]) -> None:
        self._source = source
        self._items: queue.Queue[tuple[str, Any]] = queue.Queue(maxsize=1)
        self._closed = threading.Event()
        self._end: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="semu-prefetch", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if self._end is not None:
            raise self._end
        kind, value = self._get()
        if kind == "item":
            item: T = value
            return item
        self._end = StopIteration()
        raise value

    def close(self) -> None:
        """Fetch no more; items that wait are dropped."""
        self._closed.set()

    def _run(self) -> None:
        try:
            for item in self._source:
                if not self._put("item", item):
                    return
        except BaseException as error:
            self._put("error", error)
            return
        self._put("end", StopIteration())

    def _get(self) -> tuple[str, Any]:
        while not self._closed.is_set():
            try:
                return self._items.get(timeout=_POLL_S)
            except queue.Empty:
                continue
        return "end", StopIteration()

    def _put(self, kind: str, value: object) -> bool:
        """Whether more items are wanted."""
        while not self._closed.is_set():
            try:
                self._items.put((kind, value), timeout=_POLL_S)
            except queue.Full:
                continue
            return True
        return False
