"""Calls in the background, and threads of Python beside calls that wait."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import numpy as np
import pytest

import ringway
from ringway.testing import world


def test_background_calls_keep_the_order_of_calls() -> None:
    def work(comm):
        values = np.ones(1000)
        works = [comm.all_reduce(values, async_=True) for _ in range(5)]
        # Behind the others, though it is not in the background.
        comm.all_reduce(values)
        assert all(one.is_done() for one in works)
        assert all(one.wait() and one.exception() is None for one in works)
        assert (values == 2.0**6).all()
        assert comm.barrier(async_=True).wait(30)

    world(2, work)


def test_waiting_for_a_while() -> None:
    meet = threading.Barrier(2)

    def work(comm):
        if comm.rank == 1:
            meet.wait(30)
            comm.barrier()
            return
        one = comm.barrier(async_=True)
        began = time.monotonic()
        assert one.wait(0.1) is False
        assert time.monotonic() - began >= 0.1
        assert not one.is_done() and one.exception() is None and "under way" in repr(one)
        meet.wait(30)
        assert one.wait(30) is True and one.wait() is True

    world(2, work)


def test_buffers_are_held_until_the_call_is_over() -> None:
    class Held(np.ndarray):
        pass

    def work(comm):
        values = np.ones(1 << 16).view(Held)
        gone = weakref.ref(values)
        one = comm.all_reduce(values, async_=True)
        del values
        gc.collect()
        if not one.is_done():
            assert gone() is not None
        assert one.wait(30)
        gc.collect()
        assert gone() is None

    world(2, work)


def test_messages_in_the_background() -> None:
    def work(comm):
        other = 1 - comm.rank
        found = np.zeros(1 << 18)
        with comm.group(async_=True) as group:
            group.send(np.full(1 << 18, comm.rank + 1.0), other)
            group.recv(found, other)
        assert group.work.wait(30)
        assert (found == other + 1).all()
        one = comm.send_recv(b"x", other, bytearray(1), other, async_=True)
        assert one.wait(30)

    world(2, work)


def test_the_end_is_told_in_the_background() -> None:
    def work(comm):
        told, ready = [], threading.Event()

        def done(error):
            told.append((error, threading.current_thread() is threading.main_thread()))
            # The turn is over: it may call.
            native.call(8, 1, 0, 0, 0, 0)
            ready.set()

        native = comm.native
        native.call(8, 1, 0, 0, 0, 0, background=True, done=done)
        assert ready.wait(30)
        assert told == [(None, False)]

    world(2, work)


def test_errors_come_out_of_wait_and_to_those_who_are_told() -> None:
    def work(comm):
        if comm.rank == 0:
            comm.native.abort("enough")
        told, ready = [], threading.Event()
        done = lambda error: (told.append(error), ready.set())  # noqa: E731
        one = comm.native.call(8, 1, 0, 0, 0, 0, background=True, done=done)
        with pytest.raises(ringway.RemoteError, match="enough"):
            one.wait(30)
        assert isinstance(one.exception(), ringway.RemoteError) and "failed" in repr(one)
        assert ready.wait(30) and isinstance(told[0], ringway.RemoteError)
        with pytest.raises(ringway.RemoteError, match="enough"):
            comm.check()

    world(2, work)


def test_other_threads_run_while_a_call_waits() -> None:
    def work(comm):
        if comm.rank == 1:
            # Rank 0 waits for this in a call; this thread could not run if it held Python's lock, and nothing would end.
            steps = 0
            until = time.monotonic() + 0.3
            while time.monotonic() < until:
                steps += 1
            assert steps > 1000
        comm.barrier()

    world(2, work)


def test_closing_waits_for_what_is_under_way() -> None:
    def work(comm):
        values = np.ones(1 << 20)
        one = comm.all_reduce(values, async_=True)
        comm.close()
        assert one.is_done() and values[0] == 2
        assert comm.closed and "closed" in repr(comm)
        comm.close()
        comm.abort("too late")
        for call in (comm.check, comm.barrier, lambda: comm.all_reduce(values, async_=True)):
            with pytest.raises(ringway.InvalidUsage, match="closed; make a new one"):
                call()

    world(2, work)


def test_closing_ends_when_work_failed() -> None:
    def work(comm):
        if comm.rank == 0:
            one = comm.barrier(async_=True)
            threading.Timer(0.2, comm.abort, ["enough"]).start()
            comm.close()
            assert isinstance(one.exception(), ringway.RemoteError)
        else:
            time.sleep(0.5)

    world(2, work)


def test_threads_may_share_a_communicator() -> None:
    """Each pair of threads has a communicator of its own; calls of several communicators run at once."""

    def work(comm):
        second = comm.dup()

        def many(one):
            for _ in range(50):
                assert one.all_reduce(np.ones(64))[0] == 2

        threads = [threading.Thread(target=many, args=(one,)) for one in (comm, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        second.close()

    world(2, work)


def test_of_all_errors_in_a_world_the_cause_is_raised() -> None:
    def work(comm):
        if comm.rank == 1:
            raise ValueError("on purpose")
        comm.barrier()

    for _ in range(5):
        with pytest.raises(ValueError, match="on purpose"):
            world(3, work)
