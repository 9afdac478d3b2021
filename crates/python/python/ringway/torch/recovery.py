"""Going on after a failure: :func:`recover`."""

from __future__ import annotations

import socket
from array import array
from datetime import timedelta

import torch.distributed as dist

import ringway
from ringway._numbers import BROADCAST, BYTE

# The communicator the next group is made of: set for as long as `recover` makes one.
_next = None


def adopted():
    return _next


def recover(excluded=None, timeout: timedelta | None = None, address: str | None = None) -> None:
    """Goes on without the ranks that the error named, or without those in `excluded`.

    All other ranks call it after an error. The default process group is then made anew of them, numbered in
    their old order; other groups are gone, and so is what was under way. No process has to be started for it, and it does
    not matter whether rank 0 was among those that died. `address` is where the others reach this host, if it is not
    the one from which this host reaches theirs.

    Example::

        try:
            dist.all_reduce(gradient)
        except ringway.RemoteError as error:
            print(error)
            ringway.torch.recover()
            rank, size = dist.get_rank(), dist.get_world_size()
    """
    global _next
    group = dist.group.WORLD
    if group is None or not hasattr(group, "communicator"):
        raise ringway.InvalidUsage("recover() needs a default process group of backend ringway; call init_process_group first")
    limit = timeout or timedelta(seconds=group._timeout)
    if excluded is None:
        excluded = _named(group.communicator)
    smaller = group.communicator.shrink(sorted(excluded))
    store = _meet(smaller, limit, address)
    dist.destroy_process_group()
    _next = smaller
    try:
        dist.init_process_group("ringway", store=store, rank=smaller.rank, world_size=smaller.size, timeout=limit)
    finally:
        _next = None


def _named(comm) -> set[int]:
    """Who is at fault, by the error all ranks agreed on."""
    try:
        comm.check()
    except ringway.Error as error:
        gone = {culprit["rank"] for culprit in error.culprits}
        if comm.rank in gone:
            raise ringway.InvalidUsage(f"this rank, {comm.rank}, is the one the others go on without: {error}") from error
        if gone:
            return gone
        raise ringway.InvalidUsage(f"the error names no rank to go on without; give `excluded`: {error}") from error
    raise ringway.InvalidUsage("the process group works; to go on without some of its ranks, give `excluded`")


def _meet(comm, limit: timedelta, address):
    """A store of the ranks of a communicator: the first one serves it. The old one may have died with its rank."""
    place = array("B", bytes(256))
    store = None
    if comm.rank == 0:
        host = address or ("127.0.0.1" if len(set(comm.hosts)) == 1 else _address(comm))
        store = dist.TCPStore(host, 0, comm.size, is_master=True, timeout=limit, wait_for_workers=False)
        said = f"{host} {store.port}".encode()
        place[: len(said)] = array("B", said)
    comm.call(BROADCAST, BYTE, 0, len(place), 0, place.buffer_info()[0], timeout=limit.total_seconds())
    if store is None:
        host, port = place.tobytes().rstrip(b"\0").decode().split()
        store = dist.TCPStore(host, int(port), comm.size, is_master=False, timeout=limit, wait_for_workers=False)
    return store


def _address(comm) -> str:
    """The address of this host that it has towards another host of the job."""
    other = next(one["host"] for one, host in zip(comm.identities(), comm.hosts) if host != comm.hosts[comm.rank])
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(other, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            # Nothing is sent: the system only chooses a route.
            probe.connect(place)
            return probe.getsockname()[0]
    except OSError as error:
        raise ringway.SystemFailure(f"cannot tell by which address {other} reaches this host ({error}); give recover(address=...)") from error
