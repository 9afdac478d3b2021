"""The native module's numbers: collectives as the library counts them, types and reductions as NCCL does."""

from __future__ import annotations

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, REDUCE = 0, 1, 2, 3, 4
GATHER, SCATTER, ALL_TO_ALL, BARRIER = 5, 6, 7, 8

BYTE, F32, F64 = 1, 7, 8

OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4, "mulsum": 5}
