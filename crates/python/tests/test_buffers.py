"""What may be handed over, and what is refused before anything is sent."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

import ringway
from ringway.testing import world


def alone(work):
    return world(1, work)[0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: bytearray([1, 2, 3]),
        lambda: array("d", [1, 2, 3]),
        lambda: array("i", [1, 2, 3]),
        lambda: memoryview(bytearray([1, 2, 3])),
        lambda: np.array([1, 2, 3]),
        lambda: np.array([[1.0, 2.0], [3.0, 4.0]]),
        lambda: np.array(5.0),
    ],
)
def test_buffers_are_summed_in_place(make) -> None:
    def work(comm):
        given = make()
        comm.all_reduce(given)
        return np.asarray(given).tolist()

    wanted = (2 * np.asarray(make())).tolist()
    assert world(2, work) == [wanted, wanted]


def test_nothing_is_copied() -> None:
    given = np.zeros(5)
    assert ringway.Buffer(given).address == given.ctypes.data
    assert ringway.Buffer(given[1:]).address == given.ctypes.data + 8


def test_a_bytearray_in_use_keeps_its_size() -> None:
    given = bytearray(8)
    held = ringway.Buffer(given)
    with pytest.raises(BufferError):
        given.append(1)
    del held
    given.append(1)


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch")

    def work(comm):
        for kind in (torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.float16):
            given = torch.full((2, 3), comm.rank + 1, dtype=kind)
            assert comm.all_reduce(given) is given
            assert (given == 3).all(), (kind, given)
        out = torch.empty(4, dtype=torch.float8_e4m3fn)
        comm.all_gather(torch.full((2,), comm.rank + 1.0).to(torch.float8_e4m3fn), out)
        assert out.float().tolist() == [1, 1, 2, 2]
        flags = torch.tensor([comm.rank == 1])
        comm.broadcast(flags, root=1)
        assert flags.item()

    world(2, work)
    with pytest.raises(ringway.InvalidArgument, match="not contiguous"):
        ringway.Buffer(torch.zeros(3, 4).t())


def test_types_of_ml_dtypes() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")

    def work(comm):
        for kind in (ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn):
            given = np.full(7, comm.rank + 1, kind)
            comm.all_reduce(given)
            assert (given == 3).all(), kind

    world(2, work)


def test_an_array_interface_will_do() -> None:
    class Wrapped:
        """As arrays whose types the buffer protocol does not know."""

        def __init__(self, array: np.ndarray, name: str) -> None:
            self.dtype = type("Type", (), {"name": name})()
            self.__array_interface__ = {**array.__array_interface__, "typestr": "<V2"}

    half = np.array([0x3F80, 0x4000], "uint16")  # 1.0 and 2.0 in bfloat16
    buffer = ringway.Buffer(Wrapped(half, "bfloat16"))
    assert (buffer.data_type, buffer.type_name, buffer.count) == (9, "bfloat16", 2)
    world(2, lambda comm: comm.all_reduce(Wrapped(half.copy(), "bfloat16")))
    alone(lambda comm: comm.all_reduce(Wrapped(half, "bfloat16")))
    assert half.tolist() == [0x3F80, 0x4000]


def test_any_type_is_moved_but_only_some_are_reduced() -> None:
    def work(comm):
        given = np.array([comm.rank + 1, 300], "int16")
        out = np.empty(4, "int16")
        assert comm.all_gather(given, out).tolist() == [1, 300, 2, 300]
        out = np.empty(3, "int16")
        counts = [1, 2]
        comm.all_gather(given[: comm.rank + 1], out, counts=counts)
        assert out.tolist() == [1, 2, 300]
        assert comm.broadcast(np.array([comm.rank > 0]), root=1).tolist() == [True]
        pair = np.array([1 + 2j]) * comm.rank
        assert comm.broadcast(pair, root=1).tolist() == [1 + 2j]

    world(2, work)
    for kind in ("int16", "uint16", "bool", "complex64"):
        with pytest.raises(ringway.InvalidArgument, match=f"of {kind} cannot be.*convert"):
            alone(lambda comm: comm.all_reduce(np.zeros(2, kind)))


class Hoarder:
    """Speaks DLPack, and refuses: as tensors that need gradients, or sparse ones, do."""

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **words):
        raise BufferError("not today")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda comm: comm.all_reduce(b"abc"), "read-only"),
        (lambda comm: comm.all_reduce(np.zeros(3), memoryview(np.zeros(3)).toreadonly()), "read-only"),
        (lambda comm: comm.recv(b"abc", 0), "read-only"),
        (lambda comm: comm.all_reduce(np.zeros(8)[::2]), "not contiguous"),
        (lambda comm: comm.all_reduce(np.asfortranarray(np.zeros((3, 4)))), "not contiguous"),
        (lambda comm: comm.all_reduce(np.zeros(3, ">f8")), "another byte order"),
        (lambda comm: comm.all_reduce([1, 2]), "a list has no memory"),
        (lambda comm: comm.all_reduce(object()), "a object has no memory"),
        (lambda comm: comm.all_reduce(None), "no buffer"),
        (lambda comm: comm.all_reduce(np.zeros(3), np.zeros(4)), "has 4 elements of float64, but needs 3"),
        (lambda comm: comm.all_reduce(np.zeros(3), np.zeros(3, "f4")), "from float64 to float32"),
        (lambda comm: comm.all_gather(np.zeros(3), np.zeros(4)), "needs 6"),
        (lambda comm: comm.all_gather(np.zeros(3)), "dealt evenly to 2 ranks"),
        (lambda comm: comm.all_to_all(np.zeros(3), np.zeros(3)), "dealt evenly"),
        (lambda comm: comm.reduce_scatter(np.zeros(5), np.zeros(2)), "needs 4"),
        (lambda comm: comm.all_gather(np.zeros(1), np.zeros(2), counts=[1]), "2 whole numbers"),
        (lambda comm: comm.all_gather(np.zeros(1), np.zeros(2), counts=[1.0, 1.0]), "2 whole numbers"),
        (lambda comm: comm.all_to_all(np.zeros(2), np.zeros(2), counts=[1, 1]), "pair of lists of 2"),
        (lambda comm: comm.all_reduce(np.zeros(1), scalar=3.0), "has no scalar"),
        (lambda comm: comm.split(-1), "color -1 cannot be"),
        (lambda comm: comm.all_reduce(Hoarder()), "does not hand out its memory .not today"),
        (lambda comm: comm.all_gather(np.zeros(1), np.zeros(2), counts=[1, -1]), "negative"),
        (lambda comm: comm.all_to_all(np.zeros(1), np.zeros(2), counts=[[1], [1]]), "pair of lists"),
        (lambda comm: comm.all_reduce(np.zeros(1), op="total"), "'total' is not known; choose one of sum"),
        (lambda comm: comm.all_reduce(np.zeros(1), level="exact"), "exact"),
        (lambda comm: comm.all_reduce(np.zeros(1), timeout=-1), "cannot be"),
        (lambda comm: comm.broadcast(np.zeros(1), root=2), "root 2 of broadcast does not exist"),
        (lambda comm: comm.send(np.zeros(1), to=5), "rank 5 does not exist; ranks are 0 to 1"),
        (lambda comm: comm.send(np.zeros(1), to=-1), "rank -1 does not exist"),
        (lambda comm: comm.carrier(9), "rank 9 does not exist"),
    ],
)
def test_what_cannot_be_is_refused_and_the_communicator_goes_on(call, words: str) -> None:
    def work(comm):
        with pytest.raises(ValueError, match=words) as found:
            call(comm)
        assert isinstance(found.value, ringway.InvalidArgument)
        assert comm.all_reduce(np.ones(1)).tolist() == [2]

    world(2, work)
