"""Calls on GPU memory: put on streams, as torch's nccl backend does.

A call that torch waits for goes to the current stream. One that it does not wait for goes to a stream of
the group's own, behind what the current one has to do; waiting for it makes the current stream wait.
"""

from __future__ import annotations

import torch

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

    def run(self, parts, tensors, results, opts, after) -> Work:
        calls = [("call", *part) for part in parts]
        return self._enqueue(calls, tensors, results, getattr(opts, "asyncOp", True), after)

    def message(self, sends: bool, peer: int, tensor) -> Work:
        part = ("send" if sends else "recv", peer, tensor.data_ptr(), tensor.numel() * tensor.element_size())
        if self._batch is not None:
            self._batch.append((part, tensor))
            return None
        return self._enqueue([part], [tensor], [tensor], True, None)

    def begin_batch(self) -> None:
        self._batch = []

    def end_batch(self):
        batch, self._batch = self._batch or [], None
        if not batch:
            return None
        tensors = [tensor for _, tensor in batch]
        return self._enqueue([part for part, _ in batch], tensors, tensors, True, None)

    def _enqueue(self, parts, tensors, results, asynchronous, after) -> Work:
        for tensor in tensors:
            if tensor.device != self._device:
                raise ValueError(f"a tensor is on {tensor.device}; this rank of the group uses {self._device}")
        current = torch.cuda.current_stream(self._device)
        stream = current
        if asynchronous:
            if self._stream is None:
                self._stream = torch.cuda.Stream(self._device)
            stream = self._stream
            stream.wait_stream(current)
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
        torch.cuda.current_stream(self._device).synchronize()
        if self._stream is not None:
            self._stream.synchronize()

    def close(self) -> None:
        self._stream = None


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
