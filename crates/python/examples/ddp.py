"""Trains a small network on every rank of a job, on processors: two words differ from a job on Gloo or NCCL.

    torchrun --nproc-per-node 2 ddp.py
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import ringway.torch  # noqa: F401 - registers the backend


def main(steps=60):
    dist.init_process_group("ringway")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    samples = torch.Generator().manual_seed(rank)
    for step in range(steps):
        inputs = torch.randn(32, 8, generator=samples)
        wanted = inputs.square().sum(dim=1, keepdim=True) / 8
        loss = torch.nn.functional.mse_loss(model(inputs), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        if rank == 0 and step % 20 in (0, 19):
            print(f"step {step:3}  loss {mean.item():.4f}  ({ranks} ranks)", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
