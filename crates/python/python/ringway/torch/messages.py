"""Point-to-point messages between processes, with tags.

A call of a communicator waits until it is over, so messages that cross would wait for each other. Each
ordered pair of ranks therefore has a communicator of its own, made when the first message goes that way,
and a thread at each end. A header goes before each message: its tag and size. A message goes to the first
receive that asks for its tag, whatever others wait for; one that nobody asks for yet is kept.
"""

from __future__ import annotations

import collections
import ctypes
import struct
import threading
import time

import torch

import ringway
from ringway import _native

_HEADER = struct.Struct("<qq")
# Messages go through buffers; less of them than a communicator of many ranks has. Both ends are there when they meet.
_SETTINGS = {"RINGWAY_MAX_BYTES": "4M", "RINGWAY_INIT_TIMEOUT": "60s"}


class Mailbox:
    """All the ways of one rank, in and out. `check` raises when the group has failed."""

    def __init__(self, store, rank: int, settings, check):
        # A client of a store that waits for a key keeps its other threads waiting, too: this one is for messages alone.
        self._store = store.clone() if hasattr(store, "clone") else store
        self._rank = rank
        self._settings = {**settings, **_SETTINGS}
        self._check = check
        self._ways = {}
        self._lock = threading.Lock()
        self._ended = None

    def way(self, source: int, target: int) -> "Way":
        with self._lock:
            if self._ended is not None:
                raise ringway.InvalidUsage(self._ended)
            way = self._ways.get((source, target))
            if way is None:
                way = Way(self._store, source, target, self._rank == source, self._settings, self._check)
                self._ways[source, target] = way
            return way

    def abort(self, reason: str) -> None:
        with self._lock:
            self._ended = f"the process group was aborted: {reason}"
            ways = list(self._ways.values())
        for way in ways:
            way.abort(reason)

    def close(self) -> None:
        with self._lock:
            self._ended = "this process group was shut down"
            ways = list(self._ways.values())
            self._ways.clear()
        for way in ways:
            way.close()


class Way:
    """Messages from one rank to another, seen from one end."""

    def __init__(self, store, source: int, target: int, sends: bool, settings, check):
        self._store = store
        self._source, self._target = source, target
        self._sends = sends
        self._settings = settings
        self._check = check
        self._comm = None
        self._kept = collections.defaultdict(collections.deque)
        self._header = ctypes.create_string_buffer(_HEADER.size)
        # Guards all below. The thread is only there when there were messages.
        self._changed = threading.Condition()
        self._jobs = collections.deque()
        self._busy = False
        self._closing = False
        self._aborted = None
        self._broken = None
        self._thread = None

    def start(self, tensor: torch.Tensor, tag: int, timeout: float, done) -> None:
        """Sends or receives in the background; `done(error or None)` is called then."""
        with self._changed:
            if self._thread is None:
                name = f"ringway-{self._source}-to-{self._target}"
                self._thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._thread.start()
            self._jobs.append((tensor, tag, timeout, done))
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                while not self._jobs and not self._closing:
                    self._changed.wait()
                if not self._jobs:
                    return
                self._busy = True
                if self._broken is not None:
                    ended, error = self._jobs.popleft(), self._broken
            if self._broken is None:
                ended, error = self._next()
            if ended is not None:
                ended[3](error)
            del ended, error

    def _next(self):
        """Gets on with the first message: the job that is over by that, if one is, and its error."""
        job = self._jobs[0]
        try:
            comm = self._connected(job[2])
            if self._sends:
                self._send(comm, job)
                return self._take(job), None
            job = self._receive(comm)
            return (None if job is None else self._take(job)), None
        except ringway.InvalidUsage as error:
            # Of a message that does not fit its receive, which is first in line by now; the next may.
            if self._comm is None:
                self._broken = error
            return self._take(self._jobs[0]), error
        except BaseException as error:  # noqa: BLE001 - whoever waits gets it
            self._broken = self._named(error)
            return self._take(job), self._broken

    def _take(self, job):
        with self._changed:
            self._jobs.remove(job)
        return job

    def _named(self, error):
        """The error with the numbers of the group: of the pair's own communicator they are 0 and 1."""
        if not isinstance(error, ringway.Error) or self._comm is None:
            return error
        number = {0: self._source, 1: self._target}
        for culprit in error.culprits:
            culprit["rank"] = number.get(culprit["rank"], culprit["rank"])
        error.peer = number.get(error.peer, error.peer)
        error.rank = number.get(error.rank, error.rank)
        said = f"in messages from rank {self._source} (here rank 0) to rank {self._target} (here rank 1): {error}"
        error.args = (said, *error.args[1:])
        return error

    def _connected(self, timeout: float):
        """The pair's communicator. Both ends say in the store that they are there; so neither waits where it cannot be told to stop."""
        if self._comm is None:
            key = f"way/{self._source}/{self._target}"
            if self._sends:
                self._await(f"{key}/wanted", timeout)
                self._store.set(f"{key}/id", _native.unique_id(self._settings))
            else:
                self._store.set(f"{key}/wanted", b"1")
                self._await(f"{key}/id", timeout)
            unique_id = bytes(self._store.get(f"{key}/id"))
            comm = _native.Communicator.from_unique_id(unique_id, 0 if self._sends else 1, 2, self._settings)
            with self._changed:
                self._comm = comm
                aborted = self._aborted
            if aborted is not None:
                comm.abort(aborted)
        return self._comm

    def _await(self, key: str, timeout: float) -> None:
        end, pause = time.monotonic() + timeout, 0.0005
        while not self._store.check([key]):
            if self._aborted is not None:
                raise ringway.InvalidUsage(f"the process group was aborted: {self._aborted}")
            self._check()
            if time.monotonic() > end:
                other = self._target if self._sends else self._source
                does = "receives nothing" if self._sends else "sends nothing"
                raise ringway.Timeout(
                    f"rank {other} {does} in messages from rank {self._source} to rank {self._target} for {timeout:g} s; "
                    "is it still running, and does it get there?"
                )
            time.sleep(pause)
            pause = min(pause * 2, 0.02)

    def _send(self, comm, job) -> None:
        tensor, tag, timeout, _ = job
        size = tensor.numel() * tensor.element_size()
        _HEADER.pack_into(self._header, 0, tag, size)
        comm.messages([(True, 1, ctypes.addressof(self._header), _HEADER.size)], timeout)
        if size:
            comm.messages([(True, 1, tensor.data_ptr(), size)], timeout)

    def _receive(self, comm):
        """Receives one message, or finds one that was kept: the job that has it now, if one wants it."""
        with self._changed:
            jobs = list(self._jobs)
        for job in jobs:
            if self._kept[job[1]]:
                self._unpack(job, self._kept[job[1]].popleft())
                return job
        timeout = jobs[0][2]
        comm.messages([(False, 0, ctypes.addressof(self._header), _HEADER.size)], timeout)
        tag, size = _HEADER.unpack_from(self._header, 0)
        with self._changed:
            job = next((job for job in self._jobs if job[1] == tag), None)
        if job is not None and size == job[0].numel() * job[0].element_size():
            if size:
                comm.messages([(False, 0, job[0].data_ptr(), size)], timeout)
            return job
        held = torch.empty(size, dtype=torch.uint8)
        if size:
            comm.messages([(False, 0, held.data_ptr(), size)], timeout)
        self._kept[tag].append(held)
        return None

    def _unpack(self, job, held) -> None:
        tensor, tag, _, _ = job
        wanted = tensor.numel() * tensor.element_size()
        if held.numel() != wanted:
            with self._changed:
                self._jobs.remove(job)
                # The first in line is the one that gets an error.
                self._jobs.appendleft(job)
            raise ringway.InvalidUsage(
                f"rank {self._source} sent {held.numel()} bytes with tag {tag} to rank {self._target}, "
                f"which receives {wanted}; the tensors must have the same size"
            )
        with torch.inference_mode():
            tensor.view(-1).view(torch.uint8).copy_(held)

    def abort(self, reason: str) -> None:
        with self._changed:
            self._aborted = reason
            comm = self._comm
        if comm is not None:
            comm.abort(reason)

    def close(self) -> None:
        with self._changed:
            self._closing = True
            busy = self._busy or bool(self._jobs)
            self._changed.notify()
        if busy:
            self.abort("the process group was shut down")
        if self._thread is not None:
            self._thread.join()
        if self._comm is not None:
            self._comm.close()
