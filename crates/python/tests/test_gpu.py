"""Calls on GPU memory, on the fake CUDA driver of the library's own tests: device memory is host memory there.

RINGWAY_TEST_FAKES is the folder of its sources; without it, or without g++, this is skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SOURCES = os.environ.get("RINGWAY_TEST_FAKES")

pytestmark = pytest.mark.skipif(
    not SOURCES or not shutil.which("g++"), reason="needs RINGWAY_TEST_FAKES and g++"
)

PREAMBLE = """
import ctypes, os, threading
import ringway
from ringway.testing import world

cuda = ctypes.CDLL(os.environ["RINGWAY_CUDA_LIBRARY"])
def do(name, *words):
    code = getattr(cuda, name)(*words)
    assert code == 0, (name, code)
do("cuInit", 0)
context = ctypes.c_void_p()
do("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)

class Array:
    '''Floats on the GPU.'''
    def __init__(self, values):
        self.count, self.streams = len(values), []
        do("cuCtxSetCurrent", context)
        address = ctypes.c_uint64()
        do("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(4 * max(1, self.count)))
        self.address = address.value
        given = (ctypes.c_float * self.count)(*values)
        do("cuMemcpyHtoD_v2", ctypes.c_uint64(self.address), given, ctypes.c_size_t(4 * self.count))
    def values(self):
        out = (ctypes.c_float * self.count)()
        do("cuMemcpyDtoH_v2", out, ctypes.c_uint64(self.address), ctypes.c_size_t(4 * self.count))
        return list(out)

class Interface(Array):
    @property
    def __cuda_array_interface__(self):
        return {"data": (self.address, False), "shape": (self.count,), "typestr": "<f4", "version": 3}

class Managed(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]

class Dlpack(Array):
    def __dlpack_device__(self):
        return (2, 0)
    def __dlpack__(self, stream=None):
        self.streams.append(stream)
        self.shape = (ctypes.c_int64 * 1)(self.count)
        self.managed = Managed(self.address, 2, 0, 1, 2, 32, 1, ctypes.addressof(self.shape), None, 0, None, None)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.managed), b"dltensor", None)

def stream():
    do("cuCtxSetCurrent", context)
    handle = ctypes.c_void_p()
    do("cuStreamCreate", ctypes.byref(handle), 0)
    return handle.value

def wait(handle):
    do("cuCtxSetCurrent", context)
    do("cuStreamSynchronize", ctypes.c_void_p(handle))
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory) -> dict[str, str]:
    folder, sources = tmp_path_factory.mktemp("fakes"), Path(SOURCES)
    common = ["g++", "-std=c++17", "-shared", "-fPIC", "-pthread", "-O1", "-fvisibility=hidden", "-Wl,-z,nodelete"]
    parts = {
        "libcuda.so.1": ["cuda.cpp", "memory.cpp", "virtual.cpp", "stream.cpp", "module.cpp"],
        "libnvrtc.so": ["nvrtc.cpp"],
    }
    for name, files in parts.items():
        define = f'-DRW_PRELUDE="{sources / "prelude.h"}"'
        paths = [str(sources / file) for file in files]
        subprocess.run([*common, define, "-o", str(folder / name), *paths, "-ldl"], check=True, timeout=300)
    return {
        "RINGWAY_CUDA_LIBRARY": str(folder / "libcuda.so.1"),
        "RINGWAY_NVRTC_LIBRARY": str(folder / "libnvrtc.so"),
        "XDG_CACHE_HOME": str(folder),
    }


def run(driver: dict[str, str], code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE + textwrap.dedent(code)],
        env={**os.environ, **driver},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_collectives_and_messages_on_gpu_memory(driver) -> None:
    code = """
        def work(comm):
            comm.attach_gpu(0)
            assert comm.gpu_refusal is None and comm.gpu_path
            handle, rank = stream(), comm.rank
            for kind in (Interface, Dlpack):
                # Copies wait for all streams of the process, so for the other rank's calls too: they come first.
                values, out, mine = kind([rank + 1.0] * 5), kind([0.0] * 4), kind([float(rank)] * 4)
                given, root, found = kind([rank, 7.0]), kind([rank + 4.0]), kind([0.0])
                comm.barrier()
                assert comm.all_reduce(values, stream=handle) is values
                comm.all_gather(given, out, stream=handle)
                # In place, by NCCL's convention.
                comm.reduce_scatter(mine, stream=handle)
                assert comm.broadcast(root, root=1, stream=handle, async_=True).wait()
                comm.send_recv(root, 1 - rank, found, 1 - rank, stream=handle)
                wait(handle)
                comm.barrier()
                assert values.values() == [3.0] * 5, values.values()
                assert set(values.streams) <= {handle}
                assert out.values() == [0, 7, 1, 7], out.values()
                assert mine.values()[2 * rank : 2 * rank + 2] == [1.0, 1.0]
                assert (root.values(), found.values()) == ([5.0], [5.0])
            for wrong, words in [
                (lambda: comm.all_reduce(values, bytearray(20)), "from float32 to uint8"),
                (lambda: comm.all_reduce(values, timeout=1.0), "give them to ringway.init"),
                (lambda: comm.send(values, 0, timeout=1.0), "a message on GPU memory takes"),
                (lambda: comm.all_to_all(kind([1.0, 2.0])), "no form in place on GPU memory"),
            ]:
                try:
                    wrong()
                except ringway.Error as error:
                    assert words in str(error), error
                else:
                    raise AssertionError(words)
            comm.barrier()
            return True

        print(world(2, work))
    """
    assert run(driver, code).strip() == "[True, True]"


def test_gpu_memory_before_there_is_a_gpu_says_what_to_do(driver) -> None:
    code = """
        try:
            world(1, lambda comm: comm.all_reduce(Interface([1.0])))
        except ringway.InvalidUsage as error:
            print(error)
    """
    assert "attach_gpu" in run(driver, code)
