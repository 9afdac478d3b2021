"""Communicators: what a program holds of its job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from types import TracebackType
from typing import Any

from ringway import _native
from ringway._errors import InvalidArgument, InvalidUsage
from ringway._native import Buffer, Work
from ringway._numbers import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BARRIER,
    BROADCAST,
    BYTE,
    GATHER,
    OPS,
    REDUCE,
    REDUCE_SCATTER,
    SCATTER,
)

_NAMES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
    "barrier",
)
_REDUCES = frozenset((ALL_REDUCE, REDUCE_SCATTER, REDUCE))
_REDUCIBLE = (
    "int8, uint8, int32, uint32, int64, uint64, float16, float32, float64, bfloat16, float8_e4m3fn, float8_e5m2"
)

# Seconds; ten years.
_LONGEST = 10 * 365 * 24 * 3600

Counts = Sequence[int] | tuple[Sequence[int], Sequence[int]]


def _variables(
    settings: Mapping[str, object] | None, timeout: float | None = None
) -> dict[str, str] | None:
    """Settings as the environment would hold them."""
    found = {name: str(int(v) if isinstance(v, bool) else v) for name, v in (settings or {}).items()}
    if timeout is not None:
        if not 0 < timeout <= _LONGEST:
            raise _wrong(f"a timeout of {timeout} seconds cannot be", f"give a number above 0 and up to {_LONGEST}")
        found["RINGWAY_TIMEOUT_MS"] = str(max(1, round(timeout * 1000)))
    return found or None


def _wrong(message: str, advice: str, rank: int | None = None) -> InvalidArgument:
    return InvalidArgument(f"{message}; {advice}", rank=rank, advice=advice)


def unique_id(*, settings: Mapping[str, object] | None = None) -> bytes:
    """An id by which the ranks of a communicator find each other.

    One rank makes it and hands it to the others, by any means; this process then serves their meeting.

    >>> len(ringway.unique_id())
    128
    """
    return _native.unique_id(_variables(settings))


def init(
    rank: int | None = None,
    size: int | None = None,
    id: bytes | None = None,
    *,
    gpu: int | str | None = None,
    timeout: float | None = None,
    settings: Mapping[str, object] | None = None,
) -> Communicator:
    """Joins a job, and returns this rank's communicator once all ranks are there.

    Without arguments it is the job this process was started in: by ``ringway run``, torchrun, mpirun or srun. With an
    ``id`` of :func:`unique_id` it is whichever ranks are given the same; then ``rank`` and ``size`` say which this is, and
    of how many.

    Args:
        gpu: the number of the GPU whose memory calls will be made on, or ``"current"``; all ranks say so or none does.
        timeout: seconds after which a call gives up.
        settings: variables laid over the environment's, such as ``{"RINGWAY_TRANSPORT": "tcp"}``.

    >>> with ringway.init(0, 1, ringway.unique_id()) as comm:
    ...     comm
    <ringway.Communicator rank 0 of 1>
    """
    variables = _variables(settings, timeout)
    if not (gpu is None or gpu == "current" or (hasattr(gpu, "__index__") and index(gpu) >= 0)):
        raise _wrong(f"gpu={gpu!r} cannot be", 'give the number of a GPU, or "current"')
    if id is None:
        if rank is not None or size is not None:
            raise _wrong(
                "rank and size were given, but no id",
                "give the bytes of ringway.unique_id() on one rank to all of them",
            )
        native = _native.Communicator.from_env(variables)
    else:
        if rank is None or size is None:
            raise _wrong("an id was given, but not which rank of how many this is", "give rank and size")
        if not 0 <= rank < size:
            raise _wrong(f"rank {rank} of {size} cannot be", "ranks are 0 to one less than their number")
        native = _native.Communicator.from_unique_id(id, rank, size, variables)
    comm = Communicator(native)
    if gpu is not None:
        comm.attach_gpu(None if gpu == "current" else int(gpu))
    return comm


class StreamWork:
    """A call on GPU memory: the stream it was put on does it. Waiting on the host is the stream's own affair."""

    def __init__(self, native: _native.Communicator) -> None:
        self._native = native

    def wait(self, timeout: float | None = None) -> bool:
        """Raises the communicator's error, if it has failed. Does not wait: later work on the stream does."""
        self._native.check()
        return True


class Communicator:
    """One rank's handle of a group of ranks. Made by :func:`init`; ends with its ``with`` block, or by :meth:`close`.

    All ranks make the same collective calls in the same order. A call returns when its result is there; with
    ``async_=True`` it returns at once, and :meth:`Work.wait` waits for it. While a call waits, other threads of Python run.

    Buffers are whatever has the buffer protocol (bytearray, array.array, memoryview, NumPy), DLPack (PyTorch, CuPy, JAX)
    or an array interface. They must be contiguous; outputs must be writable. Calls on GPU memory are put on ``stream`` (the
    address of a CUDA stream; the default stream if it is not given), after :meth:`attach_gpu`.

    Where ``out`` is not given a call is *in place*, by NCCL's convention: the input of ``all_gather`` stands at its place in
    the buffer, the result of ``reduce_scatter`` too, likewise at the root of ``gather`` and ``scatter``.
    """

    def __init__(self, native: _native.Communicator) -> None:
        self._native = native

    # What it is.

    @property
    def native(self) -> _native.Communicator:
        """The native handle: calls on addresses."""
        return self._native

    @property
    def rank(self) -> int:
        """This rank, from 0."""
        return self._native.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._native.size

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._native.closed

    @property
    def hosts(self) -> list[int]:
        """Which ranks share memory: those with the same number."""
        return self._native.hosts

    def __repr__(self) -> str:
        closed = " closed" if self.closed else ""
        return f"<ringway.Communicator rank {self.rank} of {self.size}{closed}>"

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # The others may wait for calls that this rank will not make.
        if kind is not None and not issubclass(kind, (SystemExit, GeneratorExit)):
            self.abort(f"{kind.__name__}: {error}")
        self.close()

    # Collectives.

    def all_reduce(
        self,
        buffer: Any,
        out: Any = None,
        op: str = "sum",
        *,
        scalar: float = 1.0,
        level: str | None = None,
        timeout: float | None = None,
        async_: bool = False,
        stream: int | None = None,
    ) -> Any:
        """Every rank gets the reduction of all buffers: in ``out``, or in place.

        ``op`` is sum, prod, max, min, avg, or mulsum: a sum in which each rank's values count ``scalar`` times. ``level`` is
        how far equal inputs give equal bits: ``"run"`` or ``"shape"``.

        >>> from array import array
        >>> def work(comm):
        ...     return list(comm.all_reduce(array("i", [comm.rank, 5]), op="max"))
        >>> ringway.testing.world(2, work)
        [[1, 5], [1, 5]]
        """
        words = {"op": op, "scalar": scalar, "level": level}
        return self._collective(ALL_REDUCE, buffer, out, timeout, async_, stream, **words)

    def all_gather(
        self,
        buffer: Any,
        out: Any = None,
        *,
        counts: Sequence[int] | None = None,
        timeout: float | None = None,
        async_: bool = False,
        stream: int | None = None,
    ) -> Any:
        """Every rank gets all buffers, one after another in the order of ranks.

        With ``counts`` rank i gives ``counts[i]`` elements.

        >>> def work(comm):
        ...     out = bytearray(3)
        ...     comm.all_gather(bytes([comm.rank] * (comm.rank + 1)), out, counts=[1, 2])
        ...     return list(out)
        >>> ringway.testing.world(2, work)
        [[0, 1, 1], [0, 1, 1]]
        """
        return self._collective(ALL_GATHER, buffer, out, timeout, async_, stream, counts=counts)

    def reduce_scatter(
        self,
        buffer: Any,
        out: Any = None,
        op: str = "sum",
        *,
        counts: Sequence[int] | None = None,
        scalar: float = 1.0,
        level: str | None = None,
        timeout: float | None = None,
        async_: bool = False,
        stream: int | None = None,
    ) -> Any:
        """Rank i gets block i of the reduction of all buffers.

        >>> def work(comm):
        ...     out = bytearray(1)
        ...     comm.reduce_scatter(bytes([1, 2]), out)
        ...     return list(out)
        >>> ringway.testing.world(2, work)
        [[2], [4]]
        """
        words: dict[str, Any] = {"op": op, "scalar": scalar, "level": level, "counts": counts}
        return self._collective(REDUCE_SCATTER, buffer, out, timeout, async_, stream, **words)

    def broadcast(
        self,
        buffer: Any,
        out: Any = None,
        root: int = 0,
        *,
        timeout: float | None = None,
        async_: bool = False,
        stream: int | None = None,
    ) -> Any:
        """Every rank gets the root's buffer.

        >>> ringway.testing.world(2, lambda comm: comm.broadcast(bytearray([comm.rank]), root=1))
        [bytearray(b'\\x01'), bytearray(b'\\x01')]
        """
        return self._collective(BROADCAST, buffer, out, timeout, async_, stream, root=root)

    def reduce(
        self,
        buffer: Any,
        out: Any = None,
        op: str = "sum",
        root: int = 0,
        *,
        scalar: float = 1.0,
        level: str | None = None,
        timeout: float | None = None,
        async_: bool = False,
        stream: int | None = None,
    ) -> Any:
        """The root gets the reduction of all buffers. The buffers of the others stay as they are.

        >>> ringway.testing.world(2, lambda comm: list(comm.reduce(bytearray([1]))))
        [[2], [1]]
        """
        words: dict[str, Any] = {"op": op, "scalar": scalar, "level": level, "root": root}
        return self._collective(REDUCE, buffer, out, timeout, async_, stream, **words)

    def gather(
        self,
        buffer: Any,
        out: Any = None,
        root: int = 0,
        *,
        counts: Sequence[int] | None = None,
        timeout: float | None = None,
        async_: bool = False,
        stream: int | None = None,
    ) -> Any:
        """The root gets all buffers, one after another, in ``out``; the others give no ``out``.

        >>> def work(comm):
        ...     out = bytearray(2) if comm.rank == 0 else None
        ...     comm.gather(bytes([comm.rank + 7]), out)
        ...     return out
        >>> ringway.testing.world(2, work)
        [bytearray(b'\\x07\\x08'), None]
        """
        words: dict[str, Any] = {"root": root, "counts": counts}
        return self._collective(GATHER, buffer, out, timeout, async_, stream, **words)

    def scatter(
        self,
        buffer: Any,
        out: Any = None,
        root: int = 0,
        *,
        counts: Sequence[int] | None = None,
        timeout: float | None = None,
        async_: bool = False,
        stream: int | None = None,
    ) -> Any:
        """Rank i gets block i of the root's buffer, in ``out``; the others give None for the buffer.

        >>> def work(comm):
        ...     return comm.scatter(b"ab" if comm.rank == 0 else None, bytearray(1))
        >>> ringway.testing.world(2, work)
        [bytearray(b'a'), bytearray(b'b')]
        """
        words: dict[str, Any] = {"root": root, "counts": counts}
        return self._collective(SCATTER, buffer, out, timeout, async_, stream, **words)

    def all_to_all(
        self,
        buffer: Any,
        out: Any = None,
        *,
        counts: tuple[Sequence[int], Sequence[int]] | None = None,
        timeout: float | None = None,
        async_: bool = False,
        stream: int | None = None,
    ) -> Any:
        """Rank i gets block i of every rank's buffer, in the order of ranks.

        With ``counts``, a pair of lists, this rank sends ``counts[0][i]`` elements to rank i and receives ``counts[1][i]``.

        >>> def work(comm):
        ...     return comm.all_to_all(b"ab" if comm.rank == 0 else b"cd", bytearray(2))
        >>> ringway.testing.world(2, work)
        [bytearray(b'ac'), bytearray(b'bd')]
        """
        return self._collective(ALL_TO_ALL, buffer, out, timeout, async_, stream, counts=counts)

    def barrier(self, *, timeout: float | None = None, async_: bool = False) -> Work | None:
        """Nobody leaves before everybody has entered.

        >>> ringway.testing.world(2, lambda comm: comm.barrier())
        [None, None]
        """
        return self._native.call(BARRIER, BYTE, 0, 0, 0, 0, timeout=timeout, background=async_)

    # Messages.

    def send(
        self,
        buffer: Any,
        to: int,
        *,
        timeout: float | None = None,
        async_: bool = False,
        stream: int | None = None,
    ) -> Any:
        """Sends a buffer to a rank, which receives one of the same size. Returns when the buffer may be changed.

        >>> def work(comm):
        ...     if comm.rank == 0:
        ...         comm.send(b"hello", to=1)
        ...     else:
        ...         return comm.recv(bytearray(5), source=0)
        >>> ringway.testing.world(2, work)
        [None, bytearray(b'hello')]
        """
        group = Group(self, timeout, async_, stream)
        group.send(buffer, to)
        work = group.run()
        return work if async_ else None

    def recv(
        self,
        buffer: Any,
        source: int,
        *,
        timeout: float | None = None,
        async_: bool = False,
        stream: int | None = None,
    ) -> Any:
        """Receives exactly as much as the buffer holds from a rank."""
        group = Group(self, timeout, async_, stream)
        group.recv(buffer, source)
        work = group.run()
        return work if async_ else buffer

    def send_recv(
        self,
        send: Any,
        to: int,
        recv: Any,
        source: int,
        *,
        timeout: float | None = None,
        async_: bool = False,
        stream: int | None = None,
    ) -> Any:
        """Sends to one rank and receives from another (or the same, or itself) at once.

        >>> def work(comm):
        ...     other = 1 - comm.rank
        ...     return comm.send_recv(bytes([comm.rank]), other, bytearray(1), other)
        >>> ringway.testing.world(2, work)
        [bytearray(b'\\x01'), bytearray(b'\\x00')]
        """
        group = Group(self, timeout, async_, stream)
        group.send(send, to)
        group.recv(recv, source)
        work = group.run()
        return work if async_ else recv

    def group(
        self, *, timeout: float | None = None, async_: bool = False, stream: int | None = None
    ) -> Group:
        """Messages that run at once when the ``with`` block ends, so that they may cross.

        >>> def work(comm):
        ...     ring, size = bytearray(1), comm.size
        ...     with comm.group() as group:
        ...         group.send(bytes([comm.rank]), (comm.rank + 1) % size)
        ...         group.recv(ring, (comm.rank - 1) % size)
        ...     return ring[0]
        >>> ringway.testing.world(3, work)
        [2, 0, 1]
        """
        return Group(self, timeout, async_, stream)

    # GPUs.

    def attach_gpu(self, ordinal: int | None = None) -> None:
        """Lets calls be made on GPU memory; ``ordinal`` is this rank's GPU, or None for the current one. All ranks call it."""
        self._native.attach_gpu(ordinal)

    @property
    def gpu_path(self) -> str | None:
        """How ranks reach each other's GPU memory, in words."""
        return self._native.gpu_path

    @property
    def gpu_refusal(self) -> str | None:
        """Why calls on GPU memory are not possible, after :meth:`attach_gpu`."""
        return self._native.gpu_refusal

    # Other communicators.

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Ranks with the same color form a new communicator, ordered by key, then rank. All ranks call it.

        >>> def work(comm):
        ...     with comm.split(comm.rank % 2) as half:
        ...         return half.rank, half.size
        >>> ringway.testing.world(4, work)
        [(0, 2), (0, 2), (1, 2), (1, 2)]
        """
        if color is not None and not 0 <= color < 1 << 32:
            raise self._wrong(f"color {color} cannot be", "count colors from 0, or give None")
        native = self._native.split(color, key)
        return None if native is None else Communicator(native)

    def dup(self) -> Communicator:
        """A second communicator of the same ranks, for another thread or library. All ranks call it."""
        return Communicator(self._native.dup())

    def shrink(self, excluded: Sequence[int]) -> Communicator:
        """A communicator of those who are left without the ``excluded``, who do not call it. This one may have failed.

        >>> def work(comm):
        ...     if comm.rank != 1:
        ...         with comm.shrink([1]) as rest:
        ...             return rest.rank, rest.size
        >>> ringway.testing.world(3, work)
        [(0, 2), None, (1, 2)]
        """
        return Communicator(self._native.shrink(list(excluded)))

    def replace(self, excluded: Sequence[int], id: bytes | None = None) -> Communicator:
        """A communicator of the same size with new processes in the seats of the ``excluded``.

        Those who are left call it, one of them with an id of :func:`unique_id`; the new processes call :func:`init` with
        the same id, the number of a seat and the size. This communicator may have failed.
        """
        return Communicator(self._native.replace(list(excluded), id))

    def grow(self, size: int, id: bytes | None = None) -> Communicator:
        """A communicator of these ranks, with the same numbers, and of new ones up to ``size``.

        All ranks call it, one of them with an id of :func:`unique_id`; the new ones call :func:`init` with the same id.
        """
        return Communicator(self._native.grow(id, size))

    # Its end.

    def abort(self, reason: str) -> None:
        """Gives the communicator up, from any thread: calls under way end, here and on the other ranks, with this reason."""
        self._native.abort(reason)

    def check(self) -> None:
        """Raises the error that all ranks agreed on, if the communicator has failed."""
        self._native.check()

    def close(self) -> None:
        """Waits for what is under way, says goodbye and gives everything back. Later calls raise; closing again is nothing."""
        self._native.close()

    # What it did.

    def links(self) -> list[dict[str, Any]]:
        """The links made so far: peer, transport, detail, and the reason why it is no better one."""
        return self._native.links()

    def carrier(self, peer: int) -> str:
        """What carries bytes to a rank: SHM, NET/IB, NET/Socket or NET/Socket/TLS."""
        return self._native.carrier(peer)

    def identities(self) -> list[dict[str, Any]]:
        """Rank, host and process of every rank."""
        return self._native.identities()

    def write_trace(self, path: Any) -> None:
        """Writes what this rank did last to a file that ``ringway trace`` reads."""
        self._native.write_trace(path)

    # How calls are made.

    def _collective(
        self,
        which: int,
        buffer: Any,
        out: Any,
        timeout: float | None,
        async_: bool,
        stream: int | None,
        *,
        op: str = "sum",
        scalar: float = 1.0,
        level: str | None = None,
        root: int = 0,
        counts: Any = None,
    ) -> Any:
        source = None if buffer is None else Buffer(buffer, stream)
        target = None if out is None else Buffer(out, stream)
        whole = target or source
        if whole is None:
            raise self._wrong(f"{_NAMES[which]} was given no buffer", "give it one")
        if source is not None and target is not None:
            self._alike(which, source, target)
        data_type, unit = self._type(which, source or whole)
        number = OPS.get(op)
        if number is None:
            raise self._wrong(f"reduction {op!r} is not known", f"choose one of {', '.join(OPS)}")
        if scalar != 1.0 and op != "mulsum":
            raise self._wrong(f"a reduction by {op} has no scalar", 'give op="mulsum", or no scalar')
        count, counts = self._count(which, source, target, root, counts)
        wanted = self._wanted(which, count, counts, root)
        if source is None or target is None:
            most = max(wanted)
            self._fits(which, "buffer", whole, most)
            addresses = (0, whole.address)
            written = whole if wanted[1] else None
        else:
            if wanted[0]:
                self._fits(which, "input", source, wanted[0])
            if wanted[1]:
                self._fits(which, "output", target, wanted[1])
            # A rank that gives nothing has no input, and one that gets nothing no output.
            addresses = (source.address if wanted[0] else 0, target.address if wanted[1] else 0)
            written = target if wanted[1] else None
            if not wanted[1]:
                addresses = (source.address, 0)
        if written is not None and written.readonly:
            raise self._wrong(
                f"the output of {_NAMES[which]} is read-only", "give a buffer that can be written"
            )
        if unit != 1:
            count *= unit
            counts = _scaled(counts, unit)
        if whole.on_gpu:
            self._on_stream(_NAMES[which], timeout, level)
            part = ("call", which, data_type, number, count, *addresses, root, counts, scalar)
            self._native.enqueue([stream or 0], [part])
            result = buffer if out is None else out
            return StreamWork(self._native) if async_ else result
        words = (which, data_type, number, count, *addresses, root, counts, scalar, timeout, level)
        work = self._native.call(*words, background=async_, keep=(source, target))
        if work is not None:
            return work
        return buffer if out is None else out

    def _alike(self, which: int, source: Buffer, target: Buffer) -> None:
        if source.type_name != target.type_name:
            raise self._wrong(
                f"{_NAMES[which]} from {source.type_name} to {target.type_name} cannot be",
                "give both ends the same element type",
            )
        if source.on_gpu != target.on_gpu:
            raise self._wrong(
                f"{_NAMES[which]} between host and GPU memory cannot be", "put both ends in one place"
            )

    def _type(self, which: int, buffer: Buffer) -> tuple[int, int]:
        """The type a call is made with, and how many of it an element is."""
        if buffer.data_type is not None:
            return buffer.data_type, 1
        if which in _REDUCES:
            raise self._wrong(
                f"{_NAMES[which]} of {buffer.type_name} cannot be: reductions know {_REDUCIBLE}",
                "convert it to one of these",
            )
        # Where values only move, they are bytes.
        return BYTE, buffer.itemsize

    def _count(
        self, which: int, source: Buffer | None, target: Buffer | None, root: int, counts: Any
    ) -> tuple[int, Any]:
        """Elements as the native call counts them."""
        size, name = self.size, _NAMES[which]
        if not 0 <= root < size:
            raise self._wrong(f"root {root} of {name} does not exist", f"ranks are 0 to {size - 1}")
        if counts is not None:
            pair = which == ALL_TO_ALL
            try:
                lists = [[index(n) for n in one] for one in (counts if pair else [counts])]
            except TypeError:
                lists = []
            if len(lists) != (2 if pair else 1) or any(len(one) != size for one in lists):
                wanted = "a pair of lists of" if pair else "a list of"
                raise self._wrong(
                    f"counts of {name} do not fit its {size} ranks", f"give {wanted} {size} whole numbers"
                )
            if any(one < 0 for single in lists for one in single):
                raise self._wrong(f"counts of {name} are negative", "count from 0")
            return 0, (lists[0], lists[1]) if pair else lists[0]
        in_place = source is None or target is None
        whole = source or target
        assert whole is not None
        blocks = (
            which == ALL_TO_ALL
            or (in_place and which in (ALL_GATHER, REDUCE_SCATTER))
            or (in_place and which in (GATHER, SCATTER) and self.rank == root)
        )
        if blocks:
            if whole.count % size:
                raise self._wrong(
                    f"the {whole.count} elements of {name} cannot be dealt evenly to {size} ranks",
                    "give a multiple, or counts",
                )
            return whole.count // size, None
        if which in (REDUCE_SCATTER, SCATTER) and target is not None:
            return target.count, None
        return whole.count, None

    def _wanted(self, which: int, count: int, counts: Any, root: int) -> tuple[int, int]:
        """Elements of this rank's input and output."""
        rank, size = self.rank, self.size
        if which == ALL_TO_ALL:
            return (sum(counts[0]), sum(counts[1])) if counts else (count * size, count * size)
        block = counts[rank] if counts else count
        total = sum(counts) if counts else count * size
        at_root = rank == root
        return {
            ALL_REDUCE: (count, count),
            ALL_GATHER: (block, total),
            REDUCE_SCATTER: (total, block),
            BROADCAST: (count if at_root else 0, count),
            REDUCE: (count, count if at_root else 0),
            GATHER: (block, total if at_root else 0),
            SCATTER: (total if at_root else 0, block),
        }[which]

    def _fits(self, which: int, what: str, buffer: Buffer, wanted: int) -> None:
        if buffer.count != wanted:
            raise self._wrong(
                f"the {what} of {_NAMES[which]} has {buffer.count} elements of {buffer.type_name}, but needs {wanted}",
                f"give one of {wanted} elements",
            )

    def _wrong(self, message: str, advice: str) -> InvalidArgument:
        return _wrong(message, advice, self.rank)

    def _on_stream(self, what: str, timeout: float | None, level: str | None = None) -> None:
        """Refuses what calls on GPU memory do not take."""
        if timeout is not None or level is not None:
            advice = "give them to ringway.init"
            raise InvalidUsage(
                f"{what} on GPU memory takes the communicator's timeout and level; {advice}", rank=self.rank, advice=advice
            )


def _scaled(counts: Any, unit: int) -> Any:
    if counts is None:
        return None
    if isinstance(counts, tuple):
        return tuple([one * unit for one in single] for single in counts)
    return [one * unit for one in counts]


class Group:
    """Messages that run at once. See :meth:`Communicator.group`.

    Attributes:
        work: after the block, with ``async_=True``: what to wait for.
    """

    def __init__(
        self,
        comm: Communicator,
        timeout: float | None = None,
        async_: bool = False,
        stream: int | None = None,
    ) -> None:
        self._comm = comm
        self._timeout = timeout
        self._async = async_
        self._stream = stream
        self._parts: list[tuple[bool, int, Buffer]] = []
        self.work: Work | StreamWork | None = None

    def send(self, buffer: Any, to: int) -> None:
        """Adds a message to a rank."""
        self._add(True, buffer, to)

    def recv(self, buffer: Any, source: int) -> None:
        """Adds a message from a rank, of exactly the buffer's size."""
        self._add(False, buffer, source)

    def _add(self, sends: bool, buffer: Any, peer: int) -> None:
        found, size = Buffer(buffer, self._stream), self._comm.size
        if not 0 <= peer < size:
            raise self._comm._wrong(f"rank {peer} does not exist", f"ranks are 0 to {size - 1}")
        if found.readonly and not sends:
            raise self._comm._wrong(
                "the buffer of a recv is read-only", "give a buffer that can be written"
            )
        if self._parts and self._parts[0][2].on_gpu != found.on_gpu:
            raise self._comm._wrong(
                "a group on host and GPU memory cannot be", "make two groups of it"
            )
        self._parts.append((sends, peer, found))

    def run(self) -> Work | StreamWork | None:
        """Runs all messages; at the end of a ``with`` block that is done already."""
        native, parts = self._comm.native, self._parts
        self._parts = []
        if parts and parts[0][2].on_gpu:
            self._comm._on_stream("a message", self._timeout)
            words = [("send" if s else "recv", peer, b.address, b.nbytes) for s, peer, b in parts]
            native.enqueue([self._stream or 0], words)
            self.work = StreamWork(native) if self._async else None
            return self.work
        messages = [(sends, peer, one.address, one.nbytes) for sends, peer, one in parts]
        if self._async:
            self.work = native.start_messages(messages, self._timeout, keep=parts)
        else:
            native.messages(messages, self._timeout)
        return self.work

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.run()
