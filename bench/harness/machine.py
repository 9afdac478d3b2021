"""The machine: what it is, which cores the ranks get, and who else uses them."""

import datetime
import os
import pathlib
import platform
import resource
import subprocess

HZ = os.sysconf("SC_CLK_TCK")


def allowed_cpus():
    return sorted(os.sched_getaffinity(0))


def cores_first(allowed, siblings_of):
    """The CPUs in the order in which ranks get them: one of every core, then the second threads."""
    order, later, seen = [], [], set()
    for cpu in allowed:
        core = min(siblings_of(cpu))
        (later if core in seen else order).append(cpu)
        seen.add(core)
    return order, order + later


def siblings(cpu):
    """The CPUs that share a core with this one, itself included."""
    path = pathlib.Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        return parse_cpu_list(path.read_text())
    except (OSError, ValueError):
        return [cpu]


def parse_cpu_list(text):
    """The kernel's way to write sets: 0-2,8 is 0 1 2 8."""
    cpus = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        cpus += range(int(first), int(last or first) + 1)
    return cpus


def _first_line(command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
        return (done.stdout + done.stderr).strip().splitlines()[0] if done.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired, IndexError):
        return None


def describe(source):
    """What a reader needs to judge the figures. The host's name is nobody's business."""
    info = {}
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        info.setdefault(key.strip(), value.strip())
    cores, cpus = cores_first(allowed_cpus(), siblings)
    memory = next(
        (int(line.split()[1]) // 1024 for line in open("/proc/meminfo") if line.startswith("MemTotal")), 0
    )
    return {
        "cpu": info.get("model name", platform.machine()),
        "cores": len(cores),
        "cpus": len(cpus),
        "caches": caches(),
        "memory_mib": memory,
        "virtual": "hypervisor" in info.get("flags", ""),
        "kernel": platform.release(),
        "huge_pages": _chosen("/sys/kernel/mm/transparent_hugepage/enabled"),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "compiler": _first_line(["cc", "--version"]),
        "commit": _first_line(["git", "-C", str(source), "describe", "--always", "--dirty", "--exclude", "*"]),
    }


def caches():
    """Sizes by level, of the first CPU."""
    found = {}
    for index in sorted(pathlib.Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            kind, level = ((index / name).read_text().strip() for name in ("type", "level"))
            if kind != "Instruction":
                found[f"L{level}"] = (index / "size").read_text().strip()
        except OSError:
            pass
    return found


def _chosen(path):
    try:
        return pathlib.Path(path).read_text().partition("[")[2].partition("]")[0]
    except OSError:
        return None


class CpuWatch:
    """How much of all cores' time went to our own processes, to others, and to other guests."""

    def __init__(self):
        self.started = self._read()

    def _read(self):
        with open("/proc/stat") as stat:
            ticks = [int(word) / HZ for word in stat.readline().split()[1:]]
        # user, nice, system, softirq: loopback's work is done in softirq
        busy = ticks[0] + ticks[1] + ticks[2] + ticks[6]
        own = resource.getrusage(resource.RUSAGE_CHILDREN)
        return busy, ticks[7], own.ru_utime + own.ru_stime

    def shares(self, wall_s):
        """Shares of all cores' time since the start; valid once our children were waited for."""
        busy, steal, own = (after - before for before, after in zip(self.started, self._read()))
        most = max(wall_s, 1e-3) * (os.cpu_count() or 1)
        share = lambda seconds: round(max(0.0, seconds) / most, 3)
        return {"own": share(own), "foreign": share(busy - own), "steal": share(steal)}
