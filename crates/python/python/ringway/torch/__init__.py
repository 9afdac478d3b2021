"""The ``ringway`` backend of torch.distributed.

Importing this module registers the backend, for tensors on processors and on GPUs:

    import torch.distributed as dist
    import ringway.torch

    dist.init_process_group("ringway")

Everything else is ordinary torch.distributed. Errors are :class:`ringway.Error`: they name the rank at
fault, the operation and what to do, and are the same on every rank.
"""

from __future__ import annotations

import torch.distributed as dist

from .group import ProcessGroupRingway
from .recovery import adopted, recover
from .work import Work

__all__ = ["ProcessGroupRingway", "Work", "recover", "register"]


def _create(options, backend_options=None):
    """What torch.distributed calls for each group."""
    return ProcessGroupRingway(
        options.store,
        options.group_rank,
        options.group_size,
        timeout=options.timeout,
        global_ranks=list(options.global_ranks_in_group),
        communicator=adopted(),
        later=getattr(options, "enable_reconfigure", False),
    )


def register(name: str = "ringway") -> None:
    """Makes the backend known to torch.distributed. Importing this module has done it."""
    if name.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(name, _create, extended_api=True, devices=["cpu", "cuda"])


register()
