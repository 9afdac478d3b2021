"""Collective communication for training and serving clusters.

A job is a number of processes, its *ranks*. Each makes a :class:`Communicator` and calls the same collectives in the same
order, on anything that has memory: NumPy arrays, PyTorch tensors, bytearrays, arrays on GPUs. Nothing is copied.

    # sum.py, started by: ringway run -n 4 -- python sum.py
    import numpy, ringway

    with ringway.init() as comm:
        values = numpy.full(3, comm.rank + 1.0)
        comm.all_reduce(values)
        print(comm.rank, values)          # every rank: [10. 10. 10.]

The examples below run without a launcher: :func:`ringway.testing.world` makes ranks of threads.

>>> from ringway.testing import world
>>> def work(comm):
...     values = bytearray([comm.rank, 1])
...     comm.all_reduce(values)
...     return list(values)
>>> world(3, work)
[[3, 3], [3, 3], [3, 3]]
"""

from __future__ import annotations

from ringway._communicator import Communicator, Group, StreamWork, init, unique_id
from ringway._errors import (
    DeviceError,
    Error,
    InternalError,
    InvalidArgument,
    InvalidUsage,
    RemoteError,
    SystemFailure,
    Timeout,
)
from ringway._native import Buffer, Work
from ringway._native import version as __version__

__all__ = [
    "Buffer",
    "Communicator",
    "DeviceError",
    "Diagnosis",
    "Error",
    "Group",
    "InternalError",
    "InvalidArgument",
    "InvalidUsage",
    "RemoteError",
    "StreamWork",
    "SystemFailure",
    "Timeout",
    "Timer",
    "Work",
    "__version__",
    "diagnose",
    "init",
    "timed",
    "unique_id",
]

_DIAGNOSIS = {"Diagnosis", "Timer", "diagnose", "timed"}


def __getattr__(name: str):
    # Programs that only communicate do not wait for what measures.
    if name in _DIAGNOSIS:
        from ringway import diagnosis

        return getattr(diagnosis, name)
    raise AttributeError(f"module 'ringway' has no attribute {name!r}")
