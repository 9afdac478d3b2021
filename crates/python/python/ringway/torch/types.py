"""What torch calls types and reductions, in the library's numbers; tensors as memory."""

from __future__ import annotations

import torch
import torch.distributed as dist

from ringway._numbers import BYTE

# Types, as in NCCL's `ncclDataType_t`.
NUMBERS = {
    torch.int8: 0,
    torch.uint8: 1,
    torch.int32: 2,
    torch.uint32: 3,
    torch.int64: 4,
    torch.uint64: 5,
    torch.float16: 6,
    torch.float32: 7,
    torch.float64: 8,
    torch.bfloat16: 9,
    torch.float8_e4m3fn: 10,
    torch.float8_e5m2: 11,
}

# Reductions, as in NCCL's `ncclRedOp_t`.
SUM, PROD, MAX, MIN, AVG, PRE_MUL_SUM = 0, 1, 2, 3, 4, 5
_Op = dist.ReduceOp.RedOpType
OPS = {
    _Op.SUM: SUM,
    _Op.AVG: AVG,
    _Op.PRODUCT: PROD,
    _Op.MIN: MIN,
    _Op.MAX: MAX,
    _Op.PREMUL_SUM: PRE_MUL_SUM,
}
# By what torch does for truth values: a sum is "any", a product is "all".
OPS_OF_BOOL = {
    _Op.SUM: MAX,
    _Op.MAX: MAX,
    _Op.BOR: MAX,
    _Op.PRODUCT: MIN,
    _Op.MIN: MIN,
    _Op.BAND: MIN,
}
# By their hashes, those that need nothing but their number: looking for an enumeration of torch's in a dictionary takes
# longer than a small call. All reductions are there, so that none is taken for another.
_by_hash = {hash(dist.ReduceOp(op)): OPS.get(op) for op in _Op.__members__.values() if op is not _Op.PREMUL_SUM}
PLAIN = {key: number for key, number in _by_hash.items() if number is not None}
if len(_by_hash) < len(_Op.__members__) - 1:
    PLAIN = {}
BITWISE = {
    _Op.BAND: torch.bitwise_and,
    _Op.BOR: torch.bitwise_or,
    _Op.BXOR: torch.bitwise_xor,
}


def name_of(op) -> str:
    return str(op).rsplit(".", 1)[-1]


def reduction(call: str, dtype: torch.dtype, wanted) -> tuple[int, int, float]:
    """Type, reduction and factor of a call that reduces; an error says what is not there."""
    op = wanted.op if hasattr(wanted, "op") else wanted
    if dtype is torch.bool:
        number = OPS_OF_BOOL.get(op)
        if number is None:
            raise ValueError(f"{call} of truth values has no {name_of(op)}; use SUM, PRODUCT, MIN or MAX")
        return BYTE, number, 1.0
    kind, number = NUMBERS.get(dtype), OPS.get(op)
    if kind is None:
        raise ValueError(
            f"{call} cannot reduce {dtype}: there is no such reduction; convert it first (to torch.int32, say)"
        )
    if number is None:
        raise ValueError(f"{call} has no {name_of(op)} for {dtype}")
    if number != PRE_MUL_SUM:
        return kind, number, 1.0
    # Older torch tells it where it is pickled.
    factor = wanted.factor if hasattr(wanted, "factor") else wanted.__getstate__()[1]
    if isinstance(factor, torch.Tensor):
        if factor.numel() != 1:
            raise ValueError(f"{call}: the factor of PREMUL_SUM is one number for a rank, not {factor.numel()}")
        factor = factor.item()
    return kind, number, float(factor)


def check_complex(call: str, wanted) -> None:
    """Complex numbers travel as pairs of reals: that is right for sums alone."""
    op = wanted.op if hasattr(wanted, "op") else wanted
    if op not in (_Op.SUM, _Op.AVG, _Op.PREMUL_SUM):
        raise ValueError(f"{call} of complex numbers has no {name_of(op)}")


def moved(dtype: torch.dtype) -> tuple[int, int]:
    """Type of a call that only moves values, and how many of these one value is."""
    kind = NUMBERS.get(dtype)
    return (kind, 1) if kind is not None else (BYTE, dtype.itemsize)


def dense(call: str, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, if its values stand side by side in memory, in whatever order."""
    if tensor.is_contiguous() or torch.ops.aten.is_non_overlapping_and_dense(tensor):
        return tensor
    raise ValueError(
        f"{call} needs a tensor without gaps, not one of shape {tuple(tensor.shape)} and strides {tensor.stride()}; "
        "call .contiguous() first"
    )


def contiguous(call: str, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_contiguous():
        return tensor
    raise ValueError(
        f"{call} needs a contiguous tensor, not one of shape {tuple(tensor.shape)} and strides {tensor.stride()}; "
        "call .contiguous() first"
    )


def one(call: str, tensors) -> torch.Tensor:
    """The tensor of a list of one, or given by itself."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError(f"{call} takes one tensor of this rank, not {len(tensors)}")
    return tensors[0]


def alike(call: str, tensors, like: torch.Tensor, count: int, what: str) -> None:
    """Checks a list of tensors that belong to the ranks."""
    if len(tensors) != count:
        raise ValueError(f"{call} needs {count} {what} tensors, one for each rank, not {len(tensors)}")
    for index, tensor in enumerate(tensors):
        if tensor.dtype is not like.dtype:
            raise ValueError(f"{call}: {what} tensor {index} is {tensor.dtype}, the others are {like.dtype}")
