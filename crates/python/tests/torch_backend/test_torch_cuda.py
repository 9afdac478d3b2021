"""Tensors on a GPU, which all ranks share where there is one alone. Skipped where there is none."""

import os

# Asking the runtime would use CUDA in this process, and ranks are forked from it.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"

import pytest
import ringway
import torch
import torch.distributed as dist
from jobs import run
from test_torch_training import batches, network
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def device_of(rank):
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def tensor_of(rank, device, dtype=torch.float32, count=1000):
    return (torch.arange(count, device=device) % 11 + 3 * rank + 1).to(dtype)


def collectives(rank, ranks):
    device = device_of(rank)
    for dtype in FLOATS + [torch.uint8, torch.int32, torch.int64]:
        every = torch.stack([tensor_of(other, device, dtype) for other in range(ranks)])
        for asynchronous in (False, True):
            for op, reference in ((dist.ReduceOp.SUM, every.sum(0)), (dist.ReduceOp.MAX, every.max(0).values)):
                mine = tensor_of(rank, device, dtype)
                work = dist.all_reduce(mine, op=op, async_op=asynchronous)
                if asynchronous:
                    work.wait()
                torch.testing.assert_close(mine, reference.to(dtype))
        gathered = torch.empty(ranks * 1000, device=device, dtype=dtype)
        dist.all_gather_into_tensor(gathered, tensor_of(rank, device, dtype))
        torch.testing.assert_close(gathered.view(ranks, -1), every)
        scattered = torch.empty(1000, device=device, dtype=dtype)
        dist.reduce_scatter_tensor(scattered, gathered)
        torch.testing.assert_close(scattered, every[rank] * ranks)
    lists = [torch.empty(5, device=device) for _ in range(ranks)]
    dist.all_gather(lists, torch.full((5,), float(rank), device=device))
    assert [one[0].item() for one in lists] == list(range(ranks))
    root = torch.full((7,), float(rank), device=device)
    dist.broadcast(root, src=1)
    assert root.tolist() == [1.0] * 7
    out = torch.empty(ranks, device=device)
    dist.all_to_all_single(out, torch.arange(ranks, device=device, dtype=torch.float32) + 10 * rank)
    assert out.tolist() == [10.0 * other + rank for other in range(ranks)]
    objects = [None] * ranks
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": other} for other in range(ranks)]
    dist.barrier()


def test_collectives_on_gpu_tensors():
    run(collectives, 2, limit=60)


def streams(rank, ranks):
    device = device_of(rank)
    side = torch.cuda.Stream(device)
    big = torch.empty(1 << 22, device=device)
    for turn in range(20):
        with torch.cuda.stream(side):
            # What is under way on the stream the call is made from comes before the call,
            big.fill_(0)
            for _ in range(10):
                big.add_(0.1 * (rank + 1))
            work = dist.all_reduce(big, async_op=True)
            # what follows waiting comes behind it, and the host need not know.
            work.wait()
            big.mul_(2)
        torch.cuda.current_stream(device).wait_stream(side)
        expected = 2 * sum(range(1, ranks + 1))
        assert abs(big.max().item() - expected) < 1e-3 and abs(big.min().item() - expected) < 1e-3, turn
        # Memory that nobody holds any more is not given away while the call uses it.
        dist.all_reduce(torch.ones(1 << 20, device=device), async_op=True)
        torch.zeros(1 << 20, device=device)
    future = dist.all_reduce(torch.full((3,), 1.0, device=device), async_op=True).get_future()
    assert future.wait()[0].tolist() == [float(ranks)] * 3


def test_calls_keep_to_streams():
    run(streams, 2, limit=60)


def messages(rank, ranks):
    device = device_of(rank)
    peer = 1 - rank
    mine, theirs = tensor_of(rank, device), torch.empty(1000, device=device)
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, peer), dist.P2POp(dist.irecv, theirs, peer)])
    for work in works:
        work.wait()
    torch.testing.assert_close(theirs, tensor_of(peer, device))
    if rank == 0:
        dist.send(mine, 1)
    else:
        dist.recv(theirs, 0)
        torch.testing.assert_close(theirs, tensor_of(0, device))


def test_messages_between_gpu_tensors():
    run(messages, 2, limit=60)


def trained(model, part, device):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for batch in batches():
        loss = model(batch[part].to(device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def mean_losses(model, rank, ranks, device):
    each = 8 // ranks
    losses = trained(model, slice(rank * each, (rank + 1) * each), device)
    for loss in losses:
        dist.all_reduce(loss, op=dist.ReduceOp.AVG)
    return [loss.item() for loss in losses]


def alone(rank, ranks):
    device = device_of(rank)
    return [loss.item() for loss in trained(network().to(device), slice(None), device)]


def ddp(rank, ranks):
    device = device_of(rank)
    return mean_losses(DistributedDataParallel(network().to(device), device_ids=[device]), rank, ranks, device)


def fsdp2(rank, ranks):
    device = device_of(rank)
    mesh = init_device_mesh("cuda", (ranks,))
    model = network().to(device)
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return mean_losses(model, rank, ranks, device)


@pytest.mark.parametrize("how", [ddp, fsdp2])
def test_training_on_a_gpu_is_as_one_rank_trains(how):
    (wanted,) = run(alone, 1, limit=60)
    for losses in run(how, 2, limit=60):
        torch.testing.assert_close(torch.tensor(losses), torch.tensor(wanted))


def dies(rank, ranks):
    device = device_of(rank)
    dist.all_reduce(torch.ones(4, device=device))
    torch.cuda.synchronize()
    if rank == 1:
        os._exit(3)
    with pytest.raises(ringway.Error, match="rank 1"):
        for _ in range(1000):
            dist.all_reduce(torch.ones(4, device=device))
            torch.cuda.synchronize()
    return "told"


def test_a_rank_that_dies_is_named():
    assert run(dies, 2, limit=60, dies={1})[0] == "told"
