"""Ranks as threads of one process: for examples, tests and first tries."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ringway._communicator import Communicator, init, unique_id
from ringway._errors import RemoteError

T = TypeVar("T")


def world(
    size: int,
    work: Callable[[Communicator], T],
    *,
    settings: Mapping[str, object] | None = None,
) -> list[T]:
    """Runs ``work`` on ``size`` ranks, each in a thread of its own, and returns what they return, by rank.

    An error of a rank is raised once all have ended. A rank that fails gives its communicator up, so that the others do not
    wait for it; their errors say no more than that, so its own goes first.

    >>> from ringway.testing import world
    >>> world(2, lambda comm: (comm.rank, comm.size))
    [(0, 2), (1, 2)]
    """
    id = unique_id(settings=settings)
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def one(rank: int) -> None:
        try:
            with init(rank, size, id, settings=settings) as comm:
                results[rank] = work(comm)
        except BaseException as error:  # noqa: BLE001  (raised again below)
            errors.append(error)

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise min(errors, key=lambda error: isinstance(error, RemoteError))
    return results
