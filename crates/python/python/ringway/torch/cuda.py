"""Calls on GPU memory: put on streams, as torch's nccl backend does.

A call that torch waits for goes to the current stream. One that it does not wait for goes to a stream of
the group's own, behind what the current one has to do; waiting for it makes the current stream wait.

Messages that are not in a batch go to the stream when somebody waits for one of them, or with the next call: a send
that stood in the stream before the receive would wait for the other rank, whose receive may stand behind its own send.
"""

from __future__ import annotations

import contextlib
import time

import torch

import ringway
from ringway._numbers import ALL_TO_ALL, BYTE

from .work import Work


class Gpu:
    """The GPU of one rank of a group."""

    def __init__(self, comm, device: torch.device):
        index = torch.cuda.current_device() if device.index is None else device.index
        with torch.cuda.device(index):
            torch.cuda.init()
            comm.attach_gpu(index)
        self._comm = comm
        self._device = torch.device("cuda", index)
        self._stream = None
        # Messages of a batch, until it ends: they go to the stream together, or they would wait for each other.
        self._batch = None
        # Messages outside of batches that nobody has waited for yet.
        self._unsent = []

    def run(self, parts, tensors, results, opts, after) -> Work:
        self.flush()
        calls = []
        for part in parts:
            calls += _messages(part, tensors[0].element_size()) if part[0] == ALL_TO_ALL and part[7] is not None else [("call", *part)]
        return self._enqueue(calls, tensors, results, getattr(opts, "asyncOp", True), after)

    def message(self, sends: bool, peer: int, tensor) -> Work:
        part = ("send" if sends else "recv", peer, tensor.data_ptr(), tensor.numel() * tensor.element_size())
        if self._batch is not None:
            self._batch.append((part, tensor))
            return None
        self._check_device(tensor)
        # It comes behind what this stream has to do now, not behind what it gets before somebody waits.
        ready = torch.cuda.Event()
        ready.record(torch.cuda.current_stream(self._device))
        message = Message(self, part, tensor, ready)
        self._unsent.append(message)
        return message

    def flush(self) -> None:
        """Messages that wait for company go now."""
        if not self._unsent:
            return
        unsent, self._unsent = self._unsent, []
        tensors = [one.tensor for one in unsent]
        try:
            work = self._enqueue([one.part for one in unsent], tensors, tensors, True, None, [one.ready for one in unsent])
        except Exception as error:
            for one in unsent:
                one.error = error
            raise
        for one in unsent:
            one.work = work

    def begin_batch(self) -> None:
        self.flush()
        self._batch = []

    def end_batch(self):
        batch, self._batch = self._batch or [], None
        if not batch:
            return None
        tensors = [tensor for _, tensor in batch]
        return self._enqueue([part for part, _ in batch], tensors, tensors, True, None)

    def _check_device(self, tensor) -> None:
        if tensor.device != self._device:
            raise ValueError(f"a tensor is on {tensor.device}; this rank of the group uses {self._device}")

    def _enqueue(self, parts, tensors, results, asynchronous, after, behind=None) -> Work:
        """Puts parts on a stream: behind these events, or else behind all that the current stream has to do."""
        for tensor in tensors:
            self._check_device(tensor)
        current = torch.cuda.current_stream(self._device)
        stream = current
        if asynchronous:
            if self._stream is None:
                self._stream = torch.cuda.Stream(self._device)
            stream = self._stream
            if behind is None:
                stream.wait_stream(current)
            for event in behind or ():
                stream.wait_event(event)
        with torch.cuda.device(self._device), torch.cuda.stream(stream):
            self._comm.enqueue([stream.cuda_stream], parts)
            if after is not None:
                with torch.no_grad():
                    after()
            event = torch.cuda.Event()
            event.record(stream)
        if asynchronous:
            # Their memory is not given to others before this stream is past them, also if nobody waits for the work.
            for tensor in [*tensors, *_flattened(results)]:
                tensor.record_stream(stream)
        return CudaWork(self._comm, results, event, stream, self._device)

    def synchronize(self) -> None:
        self.flush()
        torch.cuda.current_stream(self._device).synchronize()
        if self._stream is not None:
            self._stream.synchronize()

    def close(self) -> None:
        # Where the communicator failed, whoever waits is told; nobody waits here.
        with contextlib.suppress(ringway.Error):
            self.flush()
        self._stream = None


def _messages(part, element_size: int):
    """An all_to_all of unequal blocks, as messages: only its two ends know where a block stands."""
    _, kind, _, _, source, target, _, (send, receive), _ = part
    width = 1 if kind == BYTE else element_size
    found = []
    for word, at, counts in (("send", source, send), ("recv", target, receive)):
        for peer, count in enumerate(counts):
            if count:
                found.append((word, peer, at, count * width))
            at += count * width
    return found


def _flattened(results):
    for one in results:
        if isinstance(one, torch.Tensor):
            yield one
        else:
            yield from _flattened(one)


class CudaWork(Work):
    """Calls on a stream: over, for the host, when the stream has come past them."""

    def __init__(self, comm, results, event, stream, device):
        super().__init__(results)
        self._comm = comm
        self._event = event
        self._stream = stream
        self._device = device

    def wait(self, timeout=None) -> bool:
        """The current stream waits; with a limit the host waits too, as with torch's nccl backend."""
        self._comm.check()
        if timeout:
            end = time.monotonic() + timeout.total_seconds()
            while not self._event.query():
                if time.monotonic() > end:
                    raise ringway.Timeout(f"the call is not over after {timeout.total_seconds():g} s of waiting for it; it goes on")
                time.sleep(0.0002)
                self._comm.check()
        torch.cuda.current_stream(self._device).wait_event(self._event)
        return True

    def is_completed(self) -> bool:
        return self._event.query()

    def is_success(self) -> bool:
        return self._event.query() and self.exception() is None

    def exception(self):
        try:
            self._comm.check()
        except Exception as error:  # noqa: BLE001 - that is what is asked for
            return error
        return None

    def get_future(self) -> torch.futures.Future:
        if self._future is None:
            self._future = torch.futures.Future(devices=[self._device])
            with torch.cuda.stream(self._stream):
                self._future.set_result(self._results)
        return self._future


class Message(Work):
    """A message that goes to the stream with others, when somebody asks for one of them."""

    def __init__(self, gpu, part, tensor, ready):
        super().__init__([tensor], source=part[1] if part[0] == "recv" else -1)
        self._gpu = gpu
        self.part = part
        self.tensor = tensor
        self.ready = ready
        self.work = None
        self.error = None

    def _on_stream(self) -> CudaWork:
        self._gpu.flush()
        if self.error is not None:
            raise self.error
        return self.work

    def wait(self, timeout=None) -> bool:
        return self._on_stream().wait(timeout)

    def is_completed(self) -> bool:
        return self._on_stream().is_completed()

    def is_success(self) -> bool:
        return self._on_stream().is_success()

    def exception(self):
        return self.error or self._on_stream().exception()

    def get_future(self) -> torch.futures.Future:
        return self._on_stream().get_future()
