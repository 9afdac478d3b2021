"""Every collective against NumPy, on ranks that are threads."""

from __future__ import annotations

import numpy as np
import pytest

import ringway
from ringway.testing import world

TYPES = ["int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]
COUNTS = [0, 1, 7, 1000]


def values(rank: int, count: int, kind: str = "float64") -> np.ndarray:
    """Small whole numbers: every type holds them, and sums of them are exact."""
    return np.random.default_rng(1000 * rank + count).integers(0, 5, count).astype(kind)


def same(found: object, wanted: np.ndarray) -> None:
    np.testing.assert_array_equal(np.asarray(found), wanted)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("count", COUNTS)
def test_all_reduce(size: int, count: int) -> None:
    sums = sum((values(rank, count) for rank in range(size)), np.zeros(count))

    def work(comm: ringway.Communicator) -> None:
        given, out = values(comm.rank, count), np.empty(count)
        assert comm.all_reduce(given, out) is out
        same(out, sums)
        same(given, values(comm.rank, count))
        assert comm.all_reduce(given) is given
        same(given, sums)

    world(size, work)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(
    ("op", "reduce"),
    [("sum", np.sum), ("prod", np.prod), ("max", np.max), ("min", np.min)],
)
def test_types_and_reductions(kind: str, op: str, reduce) -> None:
    inputs = [values(rank, 33, kind) for rank in range(3)]
    wanted = reduce(np.stack(inputs), axis=0).astype(kind)
    world(3, lambda comm: same(comm.all_reduce(inputs[comm.rank].copy(), op=op), wanted))


def test_average_and_factors() -> None:
    def work(comm: ringway.Communicator) -> None:
        same(comm.all_reduce(np.full(4, comm.rank + 1.0), op="avg"), np.full(4, 2.0))
        found = comm.all_reduce(np.ones(4), op="mulsum", scalar=comm.rank + 1.0)
        same(found, np.full(4, 6.0))

    world(3, work)


def test_levels_give_the_same_bits() -> None:
    inputs = [np.random.default_rng(rank).standard_normal(501).astype("float32") for rank in range(3)]
    # In rank order, in the type itself: what the level promises.
    wanted = (inputs[0] + inputs[1]) + inputs[2]
    world(3, lambda comm: same(comm.all_reduce(inputs[comm.rank].copy(), level="shape"), wanted))


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("count", COUNTS)
def test_moving(size: int, count: int) -> None:
    inputs = [values(rank, count) for rank in range(size)]
    joined = np.concatenate(inputs)

    def work(comm: ringway.Communicator) -> None:
        rank = comm.rank
        block = slice(rank * count, (rank + 1) * count)
        same(comm.all_gather(inputs[rank], np.empty(count * size)), joined)
        whole = np.full(count * size, -1.0)
        whole[block] = inputs[rank]
        same(comm.all_gather(whole), joined)
        for root in range(size):
            same(comm.broadcast(inputs[rank].copy(), root=root), inputs[root])
            out = np.empty(count)
            same(comm.broadcast(inputs[rank], out, root), inputs[root])
            out = np.empty(count * size) if rank == root else None
            comm.gather(inputs[rank], out, root)
            if out is not None:
                same(out, joined)
            given = joined if rank == root else None
            same(comm.scatter(given, np.empty(count), root), inputs[rank])
            whole = joined.copy() if rank == root else np.empty(count)
            comm.scatter(whole, root=root)
            if rank != root:
                same(whole, inputs[rank])

    world(size, work)


@pytest.mark.parametrize("count", COUNTS)
def test_reducing_to_parts(count: int) -> None:
    size = 3
    inputs = [values(rank, count * size) for rank in range(size)]
    sums = sum(inputs, np.zeros(count * size))

    def work(comm: ringway.Communicator) -> None:
        block = slice(comm.rank * count, (comm.rank + 1) * count)
        same(comm.reduce_scatter(inputs[comm.rank], np.empty(count)), sums[block])
        same(comm.reduce_scatter(inputs[comm.rank].copy())[block], sums[block])
        for root in range(size):
            found = comm.reduce(inputs[comm.rank].copy(), root=root)
            same(found, sums if comm.rank == root else inputs[comm.rank])
            out = np.empty(count * size) if comm.rank == root else None
            comm.reduce(inputs[comm.rank], out, root=root)
            if out is not None:
                same(out, sums)

    world(size, work)


def test_all_to_all() -> None:
    size, count = 3, 4
    inputs = [values(rank, size * count) for rank in range(size)]

    def work(comm: ringway.Communicator) -> None:
        block = slice(comm.rank * count, (comm.rank + 1) * count)
        wanted = np.concatenate([one[block] for one in inputs])
        same(comm.all_to_all(inputs[comm.rank], np.empty(size * count)), wanted)
        same(comm.all_to_all(inputs[comm.rank].copy()), wanted)

    world(size, work)


def test_unequal_counts() -> None:
    counts = [3, 0, 5]
    inputs = [values(rank, counts[rank]) for rank in range(3)]
    joined = np.concatenate(inputs)
    whole = [values(rank, 8) for rank in range(3)]
    starts = np.cumsum([0, *counts])

    def work(comm: ringway.Communicator) -> None:
        rank, mine = comm.rank, slice(starts[comm.rank], starts[comm.rank + 1])
        same(comm.all_gather(inputs[rank], np.empty(8), counts=counts), joined)
        sums = sum(whole, np.zeros(8))
        same(comm.reduce_scatter(whole[rank], np.empty(counts[rank]), counts=counts), sums[mine])
        out = np.empty(8) if rank == 1 else None
        comm.gather(inputs[rank], out, 1, counts=counts)
        if out is not None:
            same(out, joined)
        given = joined if rank == 1 else None
        same(comm.scatter(given, np.empty(counts[rank]), 1, counts=counts), inputs[rank])
        # Rank i sends i + j elements, all of them i, to rank j.
        send, receive = [rank + j for j in range(3)], [j + rank for j in range(3)]
        given = np.full(sum(send), rank, "int32")
        wanted = np.concatenate([np.full(j + rank, j, "int32") for j in range(3)])
        found = comm.all_to_all(given, np.empty(sum(receive), "int32"), counts=(send, receive))
        same(found, wanted)

    world(3, work)


def test_messages() -> None:
    def work(comm: ringway.Communicator) -> None:
        rank, size = comm.rank, comm.size
        after, before = (rank + 1) % size, (rank - 1) % size
        same(comm.send_recv(np.full(9, rank), after, np.empty(9, int), before), np.full(9, before))
        found = np.empty((size, 2))
        with comm.group() as group:
            for peer in range(size):
                group.send(np.full(2, 10.0 * rank + peer), peer)
                group.recv(found[peer], peer)
        same(found[:, 0], 10.0 * np.arange(size) + rank)
        if rank == 0:
            comm.send(np.arange(3), to=1)
        elif rank == 1:
            same(comm.recv(np.empty(3, int), source=0), np.arange(3))
        comm.barrier()

    world(3, work)


def test_communicators_of_communicators() -> None:
    def work(comm: ringway.Communicator) -> None:
        half = comm.split(comm.rank % 2, key=-comm.rank)
        assert half is not None
        assert (half.size, half.rank) == (2, 1 - comm.rank // 2)
        same(half.all_reduce(np.array([comm.rank])), np.array([2 + 2 * (comm.rank % 2)]))
        half.close()
        assert comm.split(None if comm.rank else 7) is None or comm.rank == 0
        with comm.dup() as second:
            same(second.all_reduce(np.array([1])), np.array([4]))
        if comm.rank != 2:
            with comm.shrink([2]) as rest:
                same(rest.all_reduce(np.array([1])), np.array([3]))

    world(4, work)


def test_random_sequences_of_calls() -> None:
    """Whatever the order of collectives, roots, counts and types, ranks that call alike get what NumPy says."""
    random, size = np.random.default_rng(20261), 3
    plan = [
        (
            random.choice(["all_reduce", "all_gather", "broadcast", "reduce", "all_to_all"]),
            int(random.integers(0, 400)),
            str(random.choice(TYPES)),
            int(random.integers(0, size)),
            bool(random.integers(0, 2)),
        )
        for _ in range(120)
    ]

    def work(comm: ringway.Communicator) -> None:
        pending = []
        for name, count, kind, root, later in plan:
            inputs = [values(rank, count * size, kind) for rank in range(size)]
            given, mine = inputs[comm.rank], slice(comm.rank * count, (comm.rank + 1) * count)
            if name == "all_reduce":
                out, wanted, words = given.copy(), sum(inputs).astype(kind), ()
            elif name == "broadcast":
                out, wanted, words = given.copy(), inputs[root], (None, root)
            elif name == "reduce":
                out, words = given.copy(), (None, "sum", root)
                wanted = sum(inputs).astype(kind) if comm.rank == root else given
            elif name == "all_gather":
                out, words = np.empty(count * size, kind), None
                given, wanted = given[mine], np.concatenate([one[:0] for one in inputs])
                wanted = np.concatenate(
                    [one[r * count : (r + 1) * count] for r, one in enumerate(inputs)]
                )
            else:
                out, words = np.empty(count * size, kind), None
                wanted = np.concatenate([one[mine] for one in inputs])
            call = getattr(comm, name)
            arguments = (given, out) if words is None else (out, *words)
            found = call(*arguments, async_=later)
            pending.append((found if later else None, out, wanted))
        for waits, out, wanted in pending:
            assert waits is None or waits.wait(30)
            same(out, wanted)

    world(size, work)
