"""What torch gets back from calls: something to wait for, with a future."""

from __future__ import annotations

import contextlib
import threading
from datetime import timedelta

import torch
import torch.distributed as dist

import ringway
from ringway import _native

# What torch passes where nobody gave a limit.
_NO_TIMEOUT = timedelta(0)


def advised(error):
    """What a user of torch can do about an error, with it."""
    if isinstance(error, ringway.Timeout) and not getattr(error, "is_advised", False):
        said = f"{error}. If they are only slow, raise the timeout of init_process_group or new_group"
        error.args = (said, *error.args[1:])
        error.is_advised = True
    return error


class Work(dist.Work):
    """A call under way, or over.

    ``finish`` is called, with the call's error or None, in whatever thread the call ended in.
    """

    def __init__(self, results, after=None, source=-1):
        super().__init__()
        self._results = results
        self._after = after
        self._source = source
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._error = None
        self._ended = None
        self._future = None
        self._range = None

    def in_range(self, range_) -> None:
        """The call is in a range of the profiler, which ends with it.

        Whoever waits waits for that too: the end of a range in a profile that was closed in the meantime crashes torch.
        """
        ended = range_._call_end_callbacks_on_future(self.get_future())
        with self._lock:
            self._range = ended

    def _leave_range(self) -> None:
        with self._lock:
            ended = self._range
        if ended is not None:
            # It ends first of all that hangs on the future, with the call's own error.
            with contextlib.suppress(Exception):
                ended.wait()

    def finish(self, error) -> None:
        if error is None and self._after is not None:
            try:
                # This thread has none of the caller's modes: it may write to tensors of all kinds.
                with torch.inference_mode():
                    self._after()
            except Exception as caught:  # noqa: BLE001 - whoever waits gets it
                error = caught
        with self._lock:
            self._error = error and advised(error)
            self._after = None
            self._over.set()
            ended = self._ended
        if ended is None:
            return
        # What hangs on the future may wait for other calls: another thread runs those from now on.
        if _native.hand_over():
            ended.set_result(None)
        else:
            threading.Thread(target=ended.set_result, args=(None,), name="ringway-future", daemon=True).start()

    def wait(self, timeout=_NO_TIMEOUT) -> bool:
        if not self._over.is_set():
            limit = timeout.total_seconds() if timeout else None
            if not self._over.wait(limit if limit and limit > 0 else None):
                raise ringway.Timeout(f"the call is not over after {limit:g} s of waiting for it; it goes on")
        self._leave_range()
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._over.is_set() and (self._range is None or self._range.done())

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self):
        return self._error

    def result(self):
        return self._results

    def source_rank(self) -> int:
        return self._source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future:
        with self._lock:
            if self._future is not None:
                return self._future
            # An exception that is set on a future is a value to C++, and DDP would take it for tensors: one that is raised in a
            # callback is an error.
            ended = self._ended = torch.futures.Future()
            future = self._future = ended.then(lambda _: self._outcome())
            if not self._over.is_set():
                return future
        ended.set_result(None)
        return future

    def _outcome(self):
        if self._error is not None:
            raise self._error
        return self._results


class Done(Work):
    """A call that was over when it returned."""

    def __init__(self, results):
        super().__init__(results)
        self._over.set()

    def in_range(self, range_) -> None:
        range_.__exit__(None, None, None)


class Several(Work):
    """Calls that are over when the last of them is."""

    def __init__(self, works):
        super().__init__([tensor for work in works for tensor in work.result()])
        self._works = works
        self._left = len(works)
        if not works:
            self._over.set()
        for work in works:
            work.get_future().add_done_callback(self._one_is_over)

    def _one_is_over(self, _future) -> None:
        with self._lock:
            self._left -= 1
            if self._left:
                return
        errors = [work.exception() for work in self._works if work.exception() is not None]
        self.finish(errors[0] if errors else None)
