"""The process group: c10d's calls, as calls of a communicator.

Each method turns its tensors into *parts*, the arguments of one call of the library each, and hands them to
:meth:`ProcessGroupRingway._run`. A call on the processor's memory runs at once in the caller's thread, or
behind the others in the background where torch asks for that; one on a GPU's goes to a stream (`cuda.py`).
Lists of tensors go through one flat tensor.
"""

from __future__ import annotations

import collections
import time
from datetime import timedelta

import torch
import torch.distributed as dist

# Some options are there alone.
import torch._C._distributed_c10d as c10d

import ringway
from ringway import _native
from ringway._numbers import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, BARRIER, BROADCAST, BYTE, GATHER, REDUCE, REDUCE_SCATTER, SCATTER

from . import cuda, types
from .messages import Mailbox
from .work import Done, Several, Work, advised

_UNSET = timedelta(milliseconds=-1)
_is_profiling = torch.autograd._profiler_enabled
_DONE = Done([])
# Calls on one number whose works are kept: more than a step of training makes between two of DDP's.
_SMALL_KEPT = 256


class ProcessGroupRingway(dist.ProcessGroup):
    """A process group of torch.distributed whose calls are ringway's."""

    def __init__(self, store, rank, size, *, timeout=timedelta(minutes=30), global_ranks=(), settings=None, communicator=None, later=False):
        super().__init__(rank, size)
        self._store = store
        self._rank, self._size = rank, size
        self._timeout = timeout.total_seconds()
        self._global_ranks = list(global_ranks) or list(range(size))
        self._settings = dict(settings or {})
        self._name = self._description = ""
        self._register()
        # Where reconfigured groups meet, too.
        self._first_store = store
        self._handle = None
        self._comm = self._call = self._mailbox = self._gpu = None
        self._coalesced = None
        self._last = _DONE
        self._small = collections.deque(maxlen=_SMALL_KEPT)
        self._sequence = 0
        if not later:
            self._adopt(communicator or self._join(store, rank, size))

    def _adopt(self, communicator) -> None:
        """From now on calls go by this communicator."""
        self._comm = communicator
        self._call = communicator.call
        self._rank, self._size = communicator.rank, communicator.size
        self._mailbox = Mailbox(self._store, self._rank, self._settings, communicator.check)
        self._gpu = None
        self._coalesced = None
        self._last = _DONE
        # Parts of keys in the store: equal on all ranks that go on together.
        self._splits = self._monitored = 0

    def _register(self) -> None:
        """Newer torch looks for a backend behind each group, to hang its own recorder on: it gets one that is never called."""
        try:
            backend = self._backend = _Silent(self._rank, self._size)
        except TypeError:
            return
        for device in ("cpu", "cuda"):
            self._register_backend(torch.device(device), dist.ProcessGroup.BackendType.CUSTOM, backend)
        self._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)

    def _join(self, store, rank, size):
        settings = {**self._settings, **_timeouts(self._timeout)}
        if rank == 0:
            store.set("ringway", _native.unique_id(settings))
        else:
            store.wait(["ringway"], timedelta(seconds=self._timeout))
        return _native.Communicator.from_unique_id(bytes(store.get("ringway")), rank, size, settings)

    # What torch asks of groups.

    def getBackendName(self) -> str:
        return "ringway"

    name = getBackendName

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    getRank, getSize = rank, size

    # Torch keeps these with a group's backends, of which this group has none that do anything.

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    @property
    def communicator(self):
        """The communicator under it, for what torch has no words for."""
        return self._comm

    @property
    def _device_types(self):
        devices = [torch.device("cpu")]
        return devices + [torch.device("cuda")] if torch.cuda.is_available() else devices

    def _get_backend(self, device):
        return self

    def _has_hooks(self) -> bool:
        return False

    @property
    def supports_splitting(self) -> bool:
        return True

    @property
    def supports_coalescing(self) -> bool:
        return True

    @property
    def options(self):
        options = dist.Backend.Options("ringway", timedelta(seconds=self._timeout))
        options.global_ranks_in_group = self._global_ranks
        return options

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self) -> None:
        """Groups begin at 0 on all ranks: nothing to agree on."""

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def _wait_for_pending_works(self) -> None:
        # They end in the order in which they were made.
        self._last.wait()

    def eager_connect_single_device(self, device) -> None:
        """Torch calls it on all ranks where the device of each is known from the start."""
        if device is not None and device.type == "cuda":
            self._on_gpu(device)

    def perform_nocolor_split(self, device) -> None:
        """New groups meet by the store: those who are not in them have nothing to do."""

    def abort(self) -> None:
        if self._comm is None:
            return
        reason = "torch.distributed aborted the process group"
        self._coalesced = None
        self._mailbox.abort(reason)
        self._comm.abort(reason)

    def shutdown(self) -> None:
        if self._comm is None:
            return
        self._mailbox.close()
        if self._gpu is not None:
            self._gpu.close()
        self._comm.close()

    # How calls are made.

    def _limit(self, opts) -> float:
        timeout = opts.timeout
        return self._timeout if not timeout or timeout == _UNSET else timeout.total_seconds()

    def _run(self, parts, tensors, results, opts, after=None, wait=False):
        """Makes calls, one after another: `after` is called when they are over, before anybody is told.

        `tensors` are all that the parts point at: they are kept until then.
        """
        if _is_profiling():
            return self._profiled(_NAMES[parts[0][0]] if parts else "nothing", lambda: self._make(parts, tensors, results, opts, after, wait))
        return self._make(parts, tensors, results, opts, after, wait)

    def _profiled(self, call, run):
        """A range in the profile that begins now and ends with the call."""
        range_ = torch.autograd.profiler.record_function(f"ringway:{call}")
        range_.__enter__()
        try:
            work = run()
        except BaseException:
            range_.__exit__(None, None, None)
            raise
        if work is None:
            # A message of a batch: the batch is the call.
            range_.__exit__(None, None, None)
        else:
            work.in_range(range_)
        return work

    def _make(self, parts, tensors, results, opts, after, wait):
        if self._comm is None:
            raise ringway.InvalidUsage("this process group has not met yet: it was made with enable_reconfigure, so call reconfigure first")
        self._sequence += 1
        if self._gpu is not None:
            self._gpu.flush()
        if tensors and tensors[0].is_cuda:
            return self._kept(self._on_gpu(tensors[0].device).run(parts, tensors, results, opts, after), tensors)
        limit = self._timeout if opts is None else self._limit(opts)
        if wait or not getattr(opts, "asyncOp", True):
            try:
                for part in parts:
                    self._call(*part, timeout=limit)
            except ringway.Timeout as error:
                raise advised(error) from None
            if after is not None:
                with torch.inference_mode():
                    after()
            return _DONE
        work = Work(results, after)
        last = len(parts) - 1
        for index, part in enumerate(parts):
            done = work.finish if index == last else None
            self._call(*part, timeout=limit, background=True, keep=tensors, done=done)
        if last < 0:
            work.finish(None)
        self._last = work
        return self._kept(work, tensors)

    def _kept(self, work, tensors):
        """DDP's join keeps the work of a call on one number in C++ alone, for which a work whose Python object is gone never ends."""
        if len(tensors) == 1 and tensors[0].numel() == 1:
            self._small.append(work)
        return self._coalesce(work)

    def _on_gpu(self, device):
        if self._gpu is None:
            self._gpu = cuda.Gpu(self._comm, device)
        return self._gpu

    # Collectives. As c10d's they have short forms, which DDP uses too: a tensor for a list of one, a root or a reduction for
    # options.

    def allreduce(self, tensors, opts=None):
        if type(opts) is not c10d.AllreduceOptions:
            opts = _options(c10d.AllreduceOptions, opts, "reduceOp")
        if isinstance(tensors, torch.Tensor):
            tensors = [tensors]
        if len(tensors) != 1:
            return self.allreduce_coalesced(tensors, opts)
        tensor = tensors[0]
        kind, number, factor = types.NUMBERS.get(tensor.dtype), types.PLAIN.get(hash(opts.reduceOp)), 1.0
        if kind is None or number is None or tensor.layout is not torch.strided:
            if tensor.is_sparse:
                return self._all_reduce_sparse(tensor, opts)
            if tensor.is_complex():
                return self.allreduce([torch.view_as_real(tensor)], opts)
            op = opts.reduceOp.op
            if op in types.BITWISE and tensor.dtype is not torch.bool:
                return self._all_reduce_bitwise(tensor, types.BITWISE[op], opts)
            kind, number, factor = types.reduction("all_reduce", tensor.dtype, opts.reduceOp)
        types.dense("all_reduce", tensor)
        part = (ALL_REDUCE, kind, number, tensor.numel(), 0, tensor.data_ptr(), 0, None, factor)
        return self._run([part], tensors, tensors, opts)

    def allreduce_coalesced(self, tensors, opts=None):
        opts = opts or c10d.AllreduceCoalescedOptions()
        parts, keep = [], []
        for tensor in tensors:
            flat = torch.view_as_real(tensor) if tensor.is_complex() else tensor
            kind, number, factor = types.reduction("all_reduce", flat.dtype, opts.reduceOp)
            types.dense("all_reduce", flat)
            parts.append((ALL_REDUCE, kind, number, flat.numel(), 0, flat.data_ptr(), 0, None, factor))
            keep.append(flat)
        return self._run(parts, keep, list(tensors), opts)

    def _all_reduce_bitwise(self, tensor, combine, opts):
        """There is no such reduction in plans: everybody gets all values and combines them, in rank order."""
        types.dense("all_reduce", tensor)
        kind, each = types.moved(tensor.dtype)
        flat = torch.empty(self._size * tensor.numel(), dtype=tensor.dtype, device=tensor.device)
        own = tensor.detach().contiguous()

        def combined():
            blocks = flat.view(self._size, *tensor.shape)
            result = blocks[0]
            for other in blocks[1:]:
                result = combine(result, other)
            tensor.copy_(result)

        part = _part(ALL_GATHER, kind, 0, own.numel() * each, own.data_ptr(), flat.data_ptr())
        return self._run([part], [own, flat], [tensor], opts, combined)

    def _all_reduce_sparse(self, tensor, opts):
        """Everybody gets everybody's indices and values, and adds them up."""
        if opts.reduceOp.op != dist.ReduceOp.RedOpType.SUM:
            raise ValueError(f"all_reduce of sparse tensors has SUM only, not {types.name_of(opts.reduceOp.op)}")
        if tensor.is_cuda:
            raise ValueError("all_reduce of sparse tensors is for processors; move it there first: tensor.cpu()")
        tensor_ = tensor.coalesce()
        indices, values = tensor_.indices().contiguous(), tensor_.values().contiguous()
        limit = self._limit(opts)
        counts = torch.zeros(self._size, dtype=torch.int64)
        mine = torch.tensor([indices.shape[1]], dtype=torch.int64)
        self._call(*_part(ALL_GATHER, types.NUMBERS[torch.int64], 0, 1, mine.data_ptr(), counts.data_ptr()), timeout=limit)
        counts = counts.tolist()
        whole = sum(counts)
        # Columns of indices are not contiguous across ranks: they travel as rows.
        rows = indices.t().contiguous()
        all_rows = torch.empty((whole, indices.shape[0]), dtype=torch.int64)
        all_values = torch.empty((whole, *values.shape[1:]), dtype=values.dtype)
        kind, each = types.moved(values.dtype)
        each *= values[0].numel() if values.shape[0] else all_values[:1].numel() if whole else 1
        dims = indices.shape[0]
        parts = [
            _part(ALL_GATHER, types.NUMBERS[torch.int64], 0, 0, rows.data_ptr(), all_rows.data_ptr(), counts=[n * dims for n in counts]),
            _part(ALL_GATHER, kind, 0, 0, values.data_ptr(), all_values.data_ptr(), counts=[n * each for n in counts]),
        ]

        def added_up():
            total = torch.sparse_coo_tensor(all_rows.t(), all_values, tensor.shape).coalesce()
            tensor.copy_(total)

        return self._run(parts, [rows, values, all_rows, all_values], [tensor], opts, added_up)

    def broadcast(self, tensors, opts=None):
        opts = _options(c10d.BroadcastOptions, opts, "rootRank")
        tensor = types.one("broadcast", tensors)
        types.dense("broadcast", tensor)
        kind, each = types.moved(tensor.dtype)
        part = _part(BROADCAST, kind, 0, tensor.numel() * each, 0, tensor.data_ptr(), opts.rootRank)
        return self._run([part], [tensor], [tensor], opts)

    def reduce(self, tensors, opts=None, op=None):
        opts = _options(c10d.ReduceOptions, opts, "rootRank")
        if op is not None:
            opts.reduceOp = op
        tensor = types.one("reduce", tensors)
        if tensor.is_complex():
            types.check_complex("reduce", opts.reduceOp)
            return self.reduce([torch.view_as_real(tensor)], opts)
        kind, number, factor = types.reduction("reduce", tensor.dtype, opts.reduceOp)
        types.dense("reduce", tensor)
        part = (REDUCE, kind, number, tensor.numel(), 0, tensor.data_ptr(), opts.rootRank, None, factor)
        return self._run([part], [tensor], [tensor], opts)

    def allgather(self, outputs, inputs, opts=None):
        opts = opts or c10d.AllgatherOptions()
        if isinstance(inputs, torch.Tensor):
            outputs = [outputs]
        source = types.one("all_gather", inputs)
        targets = types.one("all_gather", outputs)
        types.alike("all_gather", targets, source, self._size, "output")
        types.contiguous("all_gather", source)
        flat, part = self._gathered(ALL_GATHER, source, targets)
        return self._run([part], [source, flat], [targets], opts, lambda: _scatter_out(flat, targets))

    def _gathered(self, collective, source, targets, root=0):
        """A flat tensor for what comes from all ranks, and the call that fills it."""
        kind, each = types.moved(source.dtype)
        sizes = [target.numel() for target in targets]
        flat = torch.empty(sum(sizes), dtype=source.dtype, device=source.device)
        counts = None if len(set(sizes)) == 1 else [size * each for size in sizes]
        if source.numel() != sizes[self._rank]:
            raise ValueError(
                f"{_NAMES[collective]}: this rank gives {source.numel()} values and has room for {sizes[self._rank]} of its own"
            )
        part = _part(collective, kind, 0, source.numel() * each, source.data_ptr(), flat.data_ptr(), root, counts)
        return flat, part

    def all_gather_single(self, output, source, opts=None):
        opts = opts or c10d.AllgatherOptions()
        part = self._all_gather_part(output, source)
        return self._run([part], [source, output], [output], opts)

    _allgather_base = all_gather_single

    def _all_gather_part(self, output, source):
        call = "all_gather_into_tensor"
        _plain(call, output, source)
        if output.numel() != source.numel() * self._size:
            raise ValueError(
                f"{call}: {source.numel()} values of each of {self._size} ranks do not fill an output of {output.numel()}"
            )
        kind, each = types.moved(source.dtype)
        begin, size = output.data_ptr(), source.numel() * source.element_size()
        at = 0 if source.data_ptr() == begin + self._rank * size else source.data_ptr()
        return _part(ALL_GATHER, kind, 0, source.numel() * each, at, begin)

    def all_gather_single_coalesced(self, outputs, inputs, opts=None):
        opts = opts or c10d.AllgatherOptions()
        parts = [self._all_gather_part(output, source) for output, source in zip(outputs, inputs, strict=True)]
        return self._run(parts, [*inputs, *outputs], list(outputs), opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather_coalesced(self, output_lists, inputs, opts=None):
        """`output_lists[i][j]` is what rank i gave as its input j."""
        opts = opts or c10d.AllgatherOptions()
        if len(output_lists) != self._size:
            raise ValueError(f"all_gather_coalesced needs {self._size} lists of outputs, one for each rank, not {len(output_lists)}")
        parts, keep, pairs = [], list(inputs), []
        for index, source in enumerate(inputs):
            targets = [outputs[index] for outputs in output_lists]
            types.contiguous("all_gather_coalesced", source)
            types.alike("all_gather_coalesced", targets, source, self._size, "output")
            flat, part = self._gathered(ALL_GATHER, source, targets)
            parts.append(part)
            keep.append(flat)
            pairs.append((flat, targets))

        def spread():
            for flat, targets in pairs:
                _scatter_out(flat, targets)

        return self._run(parts, keep, [tensor for outputs in output_lists for tensor in outputs], opts, spread)

    def gather(self, outputs, inputs, opts=None):
        opts = _options(c10d.GatherOptions, opts, "rootRank")
        if isinstance(inputs, torch.Tensor):
            outputs = [outputs]
        source = types.one("gather", inputs)
        types.contiguous("gather", source)
        if self._rank != opts.rootRank:
            kind, each = types.moved(source.dtype)
            part = _part(GATHER, kind, 0, source.numel() * each, source.data_ptr(), 0, opts.rootRank)
            return self._run([part], [source], [], opts)
        targets = types.one("gather", outputs)
        types.alike("gather", targets, source, self._size, "output")
        if len({target.numel() for target in targets}) != 1:
            raise ValueError("gather: all ranks give as many values; outputs differ in size")
        flat, part = self._gathered(GATHER, source, targets, opts.rootRank)
        return self._run([part], [source, flat], [targets], opts, lambda: _scatter_out(flat, targets))

    def gather_single(self, output, source, opts=None):
        opts = opts or c10d.GatherOptions()
        types.contiguous("gather", source)
        kind, each = types.moved(source.dtype)
        at, keep = 0, [source]
        if self._rank == opts.rootRank:
            types.contiguous("gather", output)
            _same_type("gather", output, source)
            if output.numel() != source.numel() * self._size:
                raise ValueError(f"gather: {source.numel()} values of each of {self._size} ranks do not fill an output of {output.numel()}")
            at = output.data_ptr()
            keep.append(output)
        part = _part(GATHER, kind, 0, source.numel() * each, source.data_ptr(), at, opts.rootRank)
        return self._run([part], keep, [output], opts)

    gather_into_tensor = gather_single

    def scatter(self, outputs, inputs, opts=None):
        opts = _options(c10d.ScatterOptions, opts, "rootRank")
        if isinstance(outputs, torch.Tensor):
            inputs = [inputs]
        target = types.one("scatter", outputs)
        types.contiguous("scatter", target)
        kind, each = types.moved(target.dtype)
        if self._rank != opts.rootRank:
            part = _part(SCATTER, kind, 0, target.numel() * each, 0, target.data_ptr(), opts.rootRank)
            return self._run([part], [target], [target], opts)
        sources = types.one("scatter", inputs)
        types.alike("scatter", sources, target, self._size, "input")
        _same_size("scatter", sources, target)
        flat = _flat(sources, target)
        part = _part(SCATTER, kind, 0, target.numel() * each, flat.data_ptr(), target.data_ptr(), opts.rootRank)
        return self._run([part], [flat, target], [target], opts)

    def reduce_scatter(self, outputs, inputs, opts=None):
        opts = _options(c10d.ReduceScatterOptions, opts, "reduceOp")
        if isinstance(outputs, torch.Tensor):
            inputs = [inputs]
        target = types.one("reduce_scatter", outputs)
        sources = types.one("reduce_scatter", inputs)
        types.alike("reduce_scatter", sources, target, self._size, "input")
        types.contiguous("reduce_scatter", target)
        if target.is_complex():
            types.check_complex("reduce_scatter", opts.reduceOp)
            return self.reduce_scatter([torch.view_as_real(target)], [[torch.view_as_real(one) for one in sources]], opts)
        kind, number, factor = types.reduction("reduce_scatter", target.dtype, opts.reduceOp)
        sizes = [source.numel() for source in sources]
        if sizes[self._rank] != target.numel():
            raise ValueError(f"reduce_scatter: input {self._rank} has {sizes[self._rank]} values, the output {target.numel()}")
        counts = None if len(set(sizes)) == 1 else sizes
        flat = _flat(sources, target)
        part = _part(REDUCE_SCATTER, kind, number, target.numel(), flat.data_ptr(), target.data_ptr(), 0, counts, factor)
        return self._run([part], [flat, target], [target], opts)

    def reduce_scatter_single(self, output, source, opts=None):
        opts = opts or c10d.ReduceScatterOptions()
        part = self._reduce_scatter_part(output, source, opts)
        return self._run([part], [source, output], [output], opts)

    _reduce_scatter_base = reduce_scatter_single

    def _reduce_scatter_part(self, output, source, opts):
        call = "reduce_scatter_tensor"
        _plain(call, output, source)
        if source.numel() != output.numel() * self._size:
            raise ValueError(
                f"{call}: an input of {source.numel()} values is not {output.numel()} for each of {self._size} ranks"
            )
        if output.is_complex():
            types.check_complex(call, opts.reduceOp)
            output, source = torch.view_as_real(output), torch.view_as_real(source)
        kind, number, factor = types.reduction(call, output.dtype, opts.reduceOp)
        begin, size = source.data_ptr(), output.numel() * output.element_size()
        if output.data_ptr() == begin + self._rank * size:
            return _part(REDUCE_SCATTER, kind, number, output.numel(), 0, begin, 0, None, factor)
        return _part(REDUCE_SCATTER, kind, number, output.numel(), begin, output.data_ptr(), 0, None, factor)

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=None):
        opts = opts or c10d.ReduceScatterOptions()
        parts = [self._reduce_scatter_part(output, source, opts) for output, source in zip(outputs, inputs, strict=True)]
        return self._run(parts, [*inputs, *outputs], list(outputs), opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def all_to_all_single(self, output, source, output_splits, input_splits, opts=None):
        opts = opts or c10d.AllToAllOptions()
        call = "all_to_all_single"
        _plain(call, output, source)
        kind, each = types.moved(source.dtype)
        if not output_splits and not input_splits:
            if source.numel() != output.numel() or source.numel() % self._size:
                raise ValueError(
                    f"{call}: {source.numel()} values in and {output.numel()} out cannot be split evenly among {self._size} ranks; "
                    "give split sizes"
                )
            at = 0 if source.data_ptr() == output.data_ptr() else source.data_ptr()
            part = _part(ALL_TO_ALL, kind, 0, source.numel() // self._size * each, at, output.data_ptr())
        else:
            send = _split_counts(call, "input", source, input_splits, self._size, each)
            receive = _split_counts(call, "output", output, output_splits, self._size, each)
            part = _part(ALL_TO_ALL, kind, 0, 0, source.data_ptr(), output.data_ptr(), 0, (send, receive))
        return self._run([part], [source, output], [output], opts)

    alltoall_base = all_to_all_single

    def alltoall(self, outputs, inputs, opts=None):
        opts = opts or c10d.AllToAllOptions()
        like = inputs[0] if inputs else outputs[0]
        types.alike("all_to_all", inputs, like, self._size, "input")
        types.alike("all_to_all", outputs, like, self._size, "output")
        kind, each = types.moved(like.dtype)
        send = [tensor.numel() * each for tensor in inputs]
        receive = [tensor.numel() * each for tensor in outputs]
        flat = _flat(inputs, like)
        result = torch.empty(sum(tensor.numel() for tensor in outputs), dtype=like.dtype, device=like.device)
        part = _part(ALL_TO_ALL, kind, 0, 0, flat.data_ptr(), result.data_ptr(), 0, (send, receive))
        return self._run([part], [flat, result], list(outputs), opts, lambda: _scatter_out(result, outputs))

    def barrier(self, opts=None):
        opts = opts or c10d.BarrierOptions()
        device = getattr(opts, "device", None)
        if self._gpu is not None and (opts.device_ids or (device is not None and device.type == "cuda")):
            self._gpu.synchronize()
        return self._run([_part(BARRIER, BYTE, 0, 0, 0, 0)], [], [], opts)

    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        """A barrier in which rank 0 says who did not come. It goes by the store, so that it works when calls do not."""
        limit = self._timeout if timeout is None or timeout == _UNSET else timeout.total_seconds()
        turn = f"monitored/{self._monitored}"
        self._monitored += 1
        wait = timedelta(seconds=limit)
        if self._rank:
            self._store.set(f"{turn}/{self._rank}", b"1")
            try:
                self._store.wait([f"{turn}/over"], wait)
            except RuntimeError:
                raise RuntimeError(
                    f"Rank {self._rank} successfully reached monitoredBarrier, but received errors while waiting for "
                    f"send/recv from rank 0. Please check rank 0 logs for faulty rank."
                ) from None
            return
        if limit <= 0:
            raise RuntimeError(f"Rank 0 timed out in monitoredBarrier after {round(limit * 1000)} ms. No ranks successfully processed in monitoredBarrier.")
        missing = self._missing(turn, limit, wait_all_ranks)
        if not missing:
            self._store.set(f"{turn}/over", b"1")
            return
        names = ", ".join(str(rank) for rank in missing)
        what = f"Ranks {names}" if wait_all_ranks else f"Rank {names}"
        error = f"{what} failed to pass monitoredBarrier in {round(limit * 1000)} ms"
        raise RuntimeError(error)

    def _missing(self, turn, limit, all_of_them):
        end = time.monotonic() + limit
        missing = []
        for rank in range(1, self._size):
            left = max(end - time.monotonic(), 0.001)
            try:
                self._store.wait([f"{turn}/{rank}"], timedelta(seconds=left))
            except RuntimeError:
                missing.append(rank)
                if not all_of_them:
                    break
        return missing

    # Messages.

    def send(self, tensors, target, tag=0):
        return self._message("send", self._rank, target, tensors, tag)

    def recv(self, tensors, source, tag=0):
        return self._message("recv", source, self._rank, tensors, tag)

    def _message(self, call, source, target, tensors, tag):
        tensor = types.one(call, tensors)
        types.contiguous(call, tensor)
        peer = target if call == "send" else source
        # On a GPU a message to oneself meets its receive in a batch.
        if not 0 <= peer < self._size or (peer == self._rank and not tensor.is_cuda):
            raise ValueError(f"{call}: rank {peer} is not another rank of this group of {self._size}")
        if tensor.is_cuda:
            return self._on_gpu(tensor.device).message(call == "send", peer, tensor)
        way = self._mailbox.way(source, target)

        def begun():
            work = Work([tensor], source=source)
            way.start(tensor, tag, self._timeout, work.finish)
            return self._coalesce(work)

        return self._profiled(call, begun) if _is_profiling() else begun()

    def recv_anysource(self, tensors, tag=0):
        raise ringway.InvalidUsage(
            "ringway has no receive from any rank: which message comes first would depend on time; "
            "name the source in recv"
        )

    # Several calls as one.

    def _start_coalescing(self, device):
        self._coalesced = []
        if device.type == "cuda":
            self._on_gpu(device).begin_batch()

    def _end_coalescing(self, device):
        works, self._coalesced = self._coalesced or [], None
        if device.type == "cuda":
            batch = self._on_gpu(device).end_batch()
            return batch if batch is not None else works[-1] if works else Done([])
        return Several(works)

    def _coalesce(self, work):
        if self._coalesced is not None and work is not None:
            self._coalesced.append(work)
        return work

    # Recovery: ranks are put together anew, by whoever knows which are left.

    @property
    def supports_reconfigure(self) -> bool:
        return True

    def get_reconfigure_handle(self) -> str:
        """What this rank is known by in the next :meth:`reconfigure`: the first one's is where all meet."""
        self._handle = _native.unique_id(self._settings).hex()
        return self._handle

    def reconfigure(self, opts):
        """The ranks with these handles go on, numbered as in the list, or in the order of their handles if it is a set."""
        handles = list(opts.handles) if isinstance(opts.handles, list) else sorted(opts.handles)
        if self._handle not in handles:
            raise ValueError("reconfigure: this rank's handle is not among those given; ask for it anew before each call")
        limit = self._timeout if opts.timeout is None else opts.timeout.total_seconds()
        settings = {**self._settings, **_timeouts(limit)}
        self.shutdown()
        rank = handles.index(self._handle)
        communicator = _native.Communicator.from_unique_id(bytes.fromhex(handles[0]), rank, len(handles), settings)
        self._store = dist.PrefixStore(f"reconfigured/{opts.uuid}", self._first_store)
        self._handle = None
        self._adopt(communicator)
        return Done([])

    # Groups out of groups.

    def split_group(self, ranks, timeout=None, opts=None, group_name=None, group_desc=None, device_types=None):
        """Ranks of this group make another; all ranks of this one call it."""
        self._splits += 1
        ranks = list(ranks)
        member = self._rank in ranks
        color, key = (min(ranks), ranks.index(self._rank)) if member else (None, 0)
        communicator = self._comm.split(color, key)
        if not member:
            return None
        group = ProcessGroupRingway(
            dist.PrefixStore(f"split/{self._splits}/{min(ranks)}", self._store),
            communicator.rank,
            communicator.size,
            timeout=timeout or timedelta(seconds=self._timeout),
            global_ranks=[self._global_ranks[rank] for rank in ranks],
            settings=self._settings,
            communicator=communicator,
        )
        if group_name is not None:
            group._set_group_name(group_name)
        if group_desc is not None:
            group._set_group_desc(group_desc)
        return group

    splitGroup = split_group


def _timeouts(seconds: float) -> dict[str, str]:
    """How long ranks wait for each other: in calls that say nothing else, which are those on GPUs; and when they meet, here and
    after a failure, for which torch's half hour is too long."""
    ms = round(max(seconds, 0.001) * 1000)
    return {"RINGWAY_TIMEOUT": f"{min(ms, 7 * 86_400_000)}ms", "RINGWAY_INIT_TIMEOUT": f"{min(ms, 300_000)}ms"}


class _Silent(c10d.Backend):
    """See `ProcessGroupRingway._register`."""

    def getBackendName(self) -> str:
        return "ringway"


_NAMES = {
    ALL_REDUCE: "all_reduce",
    ALL_GATHER: "all_gather",
    REDUCE_SCATTER: "reduce_scatter",
    BROADCAST: "broadcast",
    REDUCE: "reduce",
    GATHER: "gather",
    SCATTER: "scatter",
    ALL_TO_ALL: "all_to_all",
    BARRIER: "barrier",
}


def _options(kind, given, word):
    """A call's options, or the one that c10d's short forms have in their place."""
    if isinstance(given, kind):
        return given
    options = kind()
    if given is not None:
        setattr(options, word, given)
    return options


def _part(collective, kind, op, count, source, target, root=0, counts=None, factor=1.0):
    return (collective, kind, op, count, source, target, root, counts, factor)


def _same_type(call, output, source):
    if output.dtype is not source.dtype:
        raise ValueError(f"{call}: the output is {output.dtype}, the input {source.dtype}; they must be the same")


def _plain(call, output, source):
    types.contiguous(call, source)
    types.contiguous(call, output)
    _same_type(call, output, source)


def _same_size(call, tensors, like):
    for index, tensor in enumerate(tensors):
        if tensor.numel() != like.numel():
            raise ValueError(f"{call}: tensor {index} has {tensor.numel()} values, the one of this rank {like.numel()}")


def _flat(tensors, like):
    """All tensors, one after the other."""
    with torch.no_grad():
        flat = torch.empty(sum(tensor.numel() for tensor in tensors), dtype=like.dtype, device=like.device)
        at = 0
        for tensor in tensors:
            flat[at : at + tensor.numel()].copy_(tensor.reshape(-1))
            at += tensor.numel()
    return flat


def _scatter_out(flat, targets):
    at = 0
    for target in targets:
        target.copy_(flat[at : at + target.numel()].view(target.shape))
        at += target.numel()


def _split_counts(call, what, tensor, splits, size, each):
    """Values for each rank, of splits of the first dimension."""
    rows = tensor.shape[0] if tensor.dim() else 1
    row = tensor.numel() // rows * each if rows else each
    if not splits:
        if rows % size:
            raise ValueError(f"{call}: {rows} rows of the {what} cannot be split evenly among {size} ranks; give split sizes")
        return [rows // size * row] * size
    if len(splits) != size:
        raise ValueError(f"{call} needs {size} {what} split sizes, one for each rank, not {len(splits)}")
    if sum(splits) != rows:
        raise ValueError(f"{call}: the {what} split sizes add up to {sum(splits)}, the {what} has {rows} rows")
    return [split * row for split in splits]
