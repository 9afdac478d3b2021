"""Every collective of torch.distributed, against what it means."""

import time

import pytest
import torch
import torch.distributed as dist

# Imported before the ranks are forked: it takes seconds.
import torch.distributed._functional_collectives as functional
from jobs import run

TYPES = [torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64]


def tensor_of(rank, dtype=torch.float32, count=7):
    return (torch.arange(count) + 3 * rank + 1).to(dtype)


def all_reduces(rank, ranks):
    every = [[tensor_of(other, dtype) for other in range(ranks)] for dtype in TYPES]
    ops = [
        (dist.ReduceOp.SUM, lambda stack: stack.sum(0)),
        (dist.ReduceOp.PRODUCT, lambda stack: stack.prod(0)),
        (dist.ReduceOp.MIN, lambda stack: stack.min(0).values),
        (dist.ReduceOp.MAX, lambda stack: stack.max(0).values),
    ]
    for inputs in every:
        for op, reference in ops:
            for asynchronous in (False, True):
                mine = inputs[rank].clone()
                work = dist.all_reduce(mine, op=op, async_op=asynchronous)
                if asynchronous:
                    assert work.wait() is True
                    assert work.is_completed() and work.is_success()
                wide = torch.stack(inputs).to(torch.float64 if inputs[0].is_floating_point() else torch.int64)
                torch.testing.assert_close(mine, reference(wide).to(mine.dtype), rtol=2e-2, atol=0)
    mean = tensor_of(rank)
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    torch.testing.assert_close(mean, torch.stack([tensor_of(other) for other in range(ranks)]).mean(0))
    scaled = tensor_of(rank)
    dist.all_reduce(scaled, op=dist._make_nccl_premul_sum(0.5))
    torch.testing.assert_close(scaled, torch.stack([tensor_of(other) for other in range(ranks)]).sum(0) / 2)


def test_all_reduce():
    run(all_reduces, 3)


def short_forms(rank, ranks):
    group = dist.distributed_c10d._get_default_group()
    every = [tensor_of(other) for other in range(ranks)]
    mine = tensor_of(rank)
    group.allreduce(mine).wait()
    torch.testing.assert_close(mine, torch.stack(every).sum(0))
    mine = tensor_of(rank)
    group.allreduce([mine], dist.ReduceOp.MAX).wait()
    torch.testing.assert_close(mine, torch.stack(every).max(0).values)
    mine = tensor_of(rank)
    group.broadcast(mine, 1).wait()
    torch.testing.assert_close(mine, every[1])
    mine = tensor_of(rank)
    group.reduce(mine, 1, dist.ReduceOp.MAX).wait()
    if rank == 1:
        torch.testing.assert_close(mine, torch.stack(every).max(0).values)
    outputs = [torch.empty(7) for _ in range(ranks)]
    group.allgather(outputs, tensor_of(rank)).wait()
    torch.testing.assert_close(outputs, every)
    outputs = [torch.empty(7) for _ in range(ranks if rank == 2 else 0)]
    group.gather(outputs, tensor_of(rank), 2).wait()
    torch.testing.assert_close(outputs, every if rank == 2 else [])
    mine = torch.empty(7)
    group.scatter(mine, every if rank == 1 else [], 1).wait()
    torch.testing.assert_close(mine, every[rank])
    group.reduce_scatter(mine, every, dist.ReduceOp.SUM).wait()
    torch.testing.assert_close(mine, every[rank] * ranks)


def test_short_forms_of_c10d():
    run(short_forms, 3)


def odd_types(rank, ranks):
    flags = torch.tensor([rank == 0, True, False])
    dist.all_reduce(flags)
    assert flags.tolist() == [True, True, False]
    complex_ = torch.full((3,), complex(rank, 1))
    dist.all_reduce(complex_)
    assert complex_.tolist() == [complex(sum(range(ranks)), ranks)] * 3
    bits = torch.tensor([1 << rank, 0b111])
    dist.all_reduce(bits, op=dist.ReduceOp.BOR)
    assert bits.tolist() == [(1 << ranks) - 1, 0b111]
    bits = torch.tensor([1 << rank, 0b111])
    dist.all_reduce(bits, op=dist.ReduceOp.BXOR)
    assert bits.tolist() == [(1 << ranks) - 1, 0b111 if ranks % 2 else 0]
    half = torch.full((2, 2), rank, dtype=torch.int16)
    dist.broadcast(half, src=1)
    assert half.tolist() == [[1, 1], [1, 1]]
    with pytest.raises(ValueError, match="cannot reduce torch.int16"):
        dist.all_reduce(half)
    sparse = torch.sparse_coo_tensor([[rank, ranks]], [1.0, 2.0], (ranks + 1,))
    dist.all_reduce(sparse)
    assert sparse.to_dense().tolist() == [1.0] * ranks + [2.0 * ranks]
    layered = torch.full((2, 3, 4, 4), float(rank)).to(memory_format=torch.channels_last)
    dist.all_reduce(layered)
    assert layered.unique().tolist() == [float(sum(range(ranks)))]
    gaps = torch.zeros(4, 4)[:, ::2]
    with pytest.raises(ValueError, match="without gaps"):
        dist.all_reduce(gaps)
    empty = torch.zeros(0)
    dist.all_reduce(empty)
    assert empty.numel() == 0


def test_types_that_are_not_plain_numbers():
    run(odd_types, 3)


def moves(rank, ranks):
    mine, every = tensor_of(rank), [tensor_of(other) for other in range(ranks)]
    together = torch.cat(every)
    got = [torch.empty(7) for _ in range(ranks)]
    dist.all_gather(got, mine)
    torch.testing.assert_close(torch.stack(got), torch.stack(every))
    uneven = [torch.empty(other + 1) for other in range(ranks)]
    dist.all_gather(uneven, torch.full((rank + 1,), float(rank)))
    assert [one.tolist() for one in uneven] == [[float(other)] * (other + 1) for other in range(ranks)]
    flat = torch.empty(7 * ranks)
    dist.all_gather_into_tensor(flat, mine)
    torch.testing.assert_close(flat, together)
    # In place, as FSDP does it.
    flat = torch.zeros(7 * ranks)
    block = flat[7 * rank : 7 * rank + 7]
    block.copy_(mine)
    dist.all_gather_into_tensor(flat, block)
    torch.testing.assert_close(flat, together)
    for root in range(ranks):
        got = [torch.empty(7) for _ in range(ranks)] if rank == root else None
        dist.gather(mine, got, dst=root)
        if got:
            torch.testing.assert_close(torch.stack(got), torch.stack(every))
        part = torch.empty(7)
        dist.scatter(part, every if rank == root else None, src=root)
        torch.testing.assert_close(part, mine)
        spread = mine.clone()
        dist.broadcast(spread, src=root)
        torch.testing.assert_close(spread, every[root])
        total = mine.clone()
        dist.reduce(total, dst=root)
        if rank == root:
            torch.testing.assert_close(total, torch.stack(every).sum(0))
    blocks = [tensor_of(rank * ranks + other) for other in range(ranks)]
    wanted = torch.stack([tensor_of(other * ranks + rank) for other in range(ranks)])
    part = torch.empty(7)
    dist.reduce_scatter(part, blocks)
    torch.testing.assert_close(part, wanted.sum(0))
    dist.reduce_scatter_tensor(part, torch.cat(blocks))
    torch.testing.assert_close(part, wanted.sum(0))
    got = [torch.empty(7) for _ in range(ranks)]
    dist.all_to_all(got, blocks)
    torch.testing.assert_close(torch.stack(got), wanted)
    flat = torch.empty(7 * ranks)
    dist.all_to_all_single(flat, torch.cat(blocks))
    torch.testing.assert_close(flat, wanted.flatten())
    # Rank i sends j + 1 rows to rank j.
    sent = torch.full((sum(range(1, ranks + 1)), 2), float(rank))
    received = torch.empty(((rank + 1) * ranks, 2))
    dist.all_to_all_single(received, sent, [rank + 1] * ranks, list(range(1, ranks + 1)))
    assert received[:, 0].tolist() == [float(other) for other in range(ranks) for _ in range(rank + 1)]
    objects = [None] * ranks
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank})
    assert objects == [{"rank": other, "text": "x" * other} for other in range(ranks)]
    last = ranks - 1
    told = [{"from": last}] if rank == last else [None]
    dist.broadcast_object_list(told, src=last)
    assert told == [{"from": last}]
    dist.barrier()


def test_what_moves_values():
    run(moves, 3)
    run(moves, 1)


def modes(rank, ranks):
    """Background threads have none of the caller's modes."""
    with torch.inference_mode():
        got = [torch.empty(2) for _ in range(ranks)]
        dist.all_gather(got, torch.full((2,), float(rank)), async_op=True).wait()
        assert [one[0].item() for one in got] == [float(other) for other in range(ranks)]
    leaves = [torch.empty(2, requires_grad=True) for _ in range(ranks)]
    with torch.no_grad():
        dist.all_gather(leaves, torch.full((2,), float(rank)), async_op=True).wait()
    assert [one[0].item() for one in leaves] == [float(other) for other in range(ranks)]


def test_the_callers_modes():
    run(modes, 2)


def coalesced(rank, ranks):
    tensors = [torch.full((4,), float(rank)) for _ in range(3)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    assert all(tensor.tolist() == [float(sum(range(ranks)))] * 4 for tensor in tensors)
    outputs = [torch.empty(2 * ranks) for _ in range(2)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for output in outputs:
            dist.all_gather_into_tensor(output, torch.full((2,), float(rank)))
    manager.wait()
    for output in outputs:
        assert output.tolist() == [float(other) for other in range(ranks) for _ in range(2)]


def test_coalesced():
    run(coalesced, 2)


def messages(rank, ranks):
    # Both directions at once, the receive first: nobody may wait for the other's order.
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    got, sent = torch.empty(100_000), torch.full((100_000,), float(rank))
    works = [dist.irecv(got, src=left), dist.isend(sent, dst=right)]
    for work in works:
        work.wait()
    assert got.unique().tolist() == [float(left)]
    if rank == 0:
        dist.send(torch.tensor([1.0]), dst=1, tag=1)
        dist.send(torch.tensor([2.0, 2.0]), dst=1, tag=2)
    if rank == 1:
        second, first = torch.empty(2), torch.empty(1)
        # The first message comes before anybody asks for it: it is kept.
        late = dist.irecv(second, src=0, tag=2)
        late.wait()
        dist.recv(first, src=0, tag=1)
        assert first.tolist() == [1.0] and second.tolist() == [2.0, 2.0]
    if rank == 0:
        # The second is answered first: messages go by their tags, not by the order of the receives.
        early, late = torch.empty(1), torch.empty(1)
        first, second = dist.irecv(early, src=1, tag=11), dist.irecv(late, src=1, tag=12)
        second.wait()
        dist.send(late, dst=1, tag=13)
        first.wait()
        assert (early.item(), late.item()) == (3.0, 4.0)
    if rank == 1:
        answer = torch.empty(1)
        dist.send(torch.tensor([4.0]), dst=0, tag=12)
        dist.recv(answer, src=0, tag=13)
        assert answer.item() == 4.0
        dist.send(torch.tensor([3.0]), dst=0, tag=11)
    operations = [dist.P2POp(dist.isend, sent, right), dist.P2POp(dist.irecv, got, left)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    objects = [None]
    if rank == 0:
        dist.send_object_list([{"a": 1}], dst=1)
    elif rank == 1:
        dist.recv_object_list(objects, src=0)
        assert objects == [{"a": 1}]
    with pytest.raises(RuntimeError, match="no receive from any rank"):
        dist.recv(got)


def test_messages():
    run(messages, 2)
    run(messages, 3)


def futures(rank, ranks):
    tensor = torch.ones(1000)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    assert doubled.wait()[0].item() == 2 * ranks
    works = [dist.all_reduce(torch.full((10,), float(turn)), async_op=True) for turn in range(50)]
    for turn, work in enumerate(works):
        work.wait()
        assert work.result()[0][0].item() == turn * ranks


def test_futures():
    run(futures, 2)


def groups(rank, ranks):
    low, high = dist.new_group([0, 1]), dist.new_group([2, 3])
    mine = low if rank < 2 else high
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor, group=mine)
    assert tensor.item() == (1 if rank < 2 else 5)
    half = dist.split_group(split_ranks=[[0, 2], [1, 3]])
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor, group=half)
    assert tensor.item() == (2 if rank % 2 == 0 else 4)
    assert dist.get_rank(half) == rank // 2
    dist.monitored_barrier()


def test_groups():
    run(groups, 4)


def functional_calls(rank, ranks):
    total = functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD)
    assert total.tolist() == [float(ranks)] * 4
    joined = functional.all_gather_tensor(torch.full((2,), float(rank)), 0, dist.group.WORLD)
    assert joined.tolist() == [float(other) for other in range(ranks) for _ in range(2)]
    part = functional.reduce_scatter_tensor(torch.ones(2 * ranks), "sum", 0, dist.group.WORLD)
    assert part.tolist() == [float(ranks)] * 2


def test_functional_collectives():
    run(functional_calls, 2)


def profiled(rank, ranks):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.all_reduce(torch.ones(10))
        dist.all_reduce(torch.ones(10), async_op=True).wait()
    return [event.name for event in profile.events() if event.name.startswith("ringway:")]


def profiled_and_left(rank, ranks):
    """The thread that ends futures comes late: whoever has waited may close the profile, so the range must have ended."""
    from ringway import _native

    begun, ended, left = [], [], []
    hand_over = _native.hand_over
    store = dist.distributed_c10d._get_default_store()

    def late():
        begun.append(True)
        time.sleep(0.3)
        ended.append(True)
        return hand_over()

    _native.hand_over = late
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            for call in range(3):
                # The first rank waits: its call is under way when its range is made, and the background ends the range.
                if rank:
                    store.wait([f"called {call}"])
                work = dist.all_reduce(torch.ones(10), async_op=True)
                store.set(f"called {call}", "")
                assert work.wait() and work.is_completed() and work.is_success()
                left.append(len(begun) - len(ended))
    finally:
        _native.hand_over = hand_over
    assert rank or len(begun) == 3, begun
    return left


def test_whoever_waited_finds_the_range_ended():
    assert run(profiled_and_left, 2) == [[0, 0, 0]] * 2


def test_profiler_ranges():
    assert run(profiled, 2) == [["ringway:all_reduce"] * 2] * 2
