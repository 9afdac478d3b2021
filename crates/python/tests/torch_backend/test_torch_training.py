"""What people do with it: DDP, FSDP2, DTensor, torchrun."""

import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from jobs import run

# Imported before the ranks are forked: they take seconds.
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

EXAMPLES = Path(__file__).parents[2] / "examples"


def network():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))


def batches():
    source = torch.Generator().manual_seed(5)
    return [torch.randn(8, 6, generator=source) for _ in range(6)]


def trained(model, part):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for batch in batches():
        loss = model(batch[part]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def ddp(rank, ranks):
    model = DistributedDataParallel(network())
    each = 8 // ranks
    losses = trained(model, slice(rank * each, (rank + 1) * each))
    for loss in losses:
        dist.all_reduce(loss, op=dist.ReduceOp.AVG)
    return [loss.item() for loss in losses]


def test_ddp_trains_as_one_rank_does():
    alone = [loss.item() for loss in trained(network(), slice(None))]
    for ranks in (2, 4):
        for losses in run(ddp, ranks):
            torch.testing.assert_close(torch.tensor(losses), torch.tensor(alone))


def join(rank, ranks, by_initial_size):
    model = DistributedDataParallel(torch.nn.Linear(5, 1, bias=False))
    seen = []
    with model.join(divide_by_initial_world_size=by_initial_size):
        for _ in range(2 + rank):
            model(torch.full((1, 5), rank + 1.0)).sum().backward()
            seen.append(model.module.weight.grad[0, 0].item())
            model.zero_grad()
    return seen


def test_ddp_joins_where_ranks_have_unlike_many_batches():
    # The one that goes on alone divides by both ranks, or by itself.
    for by_initial_size, alone in ((True, 1.0), (False, 2.0)):
        assert run(join, 2, by_initial_size) == [[1.5, 1.5], [1.5, 1.5, alone]]


class Branches(torch.nn.Module):
    """Each rank leaves some parameters unused."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.parts = torch.nn.ModuleList(torch.nn.Linear(5, 5) for _ in range(3))

    def forward(self, batch, which):
        return self.parts[which](self.parts[2](batch))


def join_unused(rank, ranks):
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    with model.join():
        for _ in range(2 + 2 * rank):
            model(torch.ones(1, 5), rank).sum().backward()
    total = torch.tensor([parameter.grad.sum().item() for parameter in model.parameters() if parameter.grad is not None])
    dist.barrier()
    return len(total)


def test_ddp_joins_with_unused_parameters():
    assert run(join_unused, 2) == [6, 6]


def fsdp2(rank, ranks):
    mesh = init_device_mesh("cpu", (ranks,))
    model = network()
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    each = 8 // ranks
    losses = trained(model, slice(rank * each, (rank + 1) * each))
    for loss in losses:
        dist.all_reduce(loss, op=dist.ReduceOp.AVG)
    return [loss.item() for loss in losses]


def test_fsdp2_trains_as_one_rank_does():
    alone = [loss.item() for loss in trained(network(), slice(None))]
    for losses in run(fsdp2, 2):
        torch.testing.assert_close(torch.tensor(losses), torch.tensor(alone))


def dtensor(rank, ranks):
    mesh = init_device_mesh("cpu", (ranks,))
    whole = torch.arange(24.0).reshape(4, 6)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    torch.testing.assert_close((sharded @ sharded.t()).full_tensor(), whole @ whole.t())
    torch.testing.assert_close(sharded.redistribute(mesh, [Shard(1)]).full_tensor(), whole)
    torch.testing.assert_close(sharded.redistribute(mesh, [Replicate()]).to_local(), whole)


def test_dtensor():
    run(dtensor, 2)


def start(*command, limit=180):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=limit, env=environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_torchrun_runs_the_example():
    said = start(
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(EXAMPLES / "ddp.py")
    )
    assert "step  59" in said and "(2 ranks)" in said, said


def test_the_elastic_example_loses_a_rank_and_goes_on():
    said = start(sys.executable, str(EXAMPLES / "elastic.py"))
    assert "is now rank 1 of 2" in said and "done: [-" in said, said
    assert "rank 1 " in said


def test_the_example_of_equal_bits():
    assert "the same bits" in start(sys.executable, str(EXAMPLES / "same_bits.py"))
