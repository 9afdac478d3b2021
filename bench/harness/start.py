"""One start of a library: a time limit, its JSON lines, and a note of how it went."""

import json
import os
import pathlib
import signal
import subprocess
import time

from . import machine

GRACE_S = 10


def start(command, environment, limit_s):
    """Runs a command to its end. Gives its note and the JSON lines it printed, also when it failed."""
    watch, began = machine.CpuWatch(), time.monotonic()
    process = subprocess.Popen(
        [str(word) for word in command],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # so that all it leaves behind can be found
    )
    try:
        out, err = process.communicate(timeout=limit_s)
        outcome = "ok" if process.returncode == 0 else f"exit code {process.returncode}"
    except subprocess.TimeoutExpired:
        out, err = _end(process)
        outcome = f"no end within {limit_s:.0f} s"
    finally:
        _end_session(process.pid)
    wall_s = time.monotonic() - began
    if "WRONG" in err:
        outcome = "wrong answer: " + next(line for line in err.splitlines() if "WRONG" in line)
    note = {"outcome": outcome, "wall_s": round(wall_s, 2), **watch.shares(wall_s)}
    if outcome != "ok":
        note["stderr"] = err[-2000:]
    return note, json_lines(out)


def json_lines(text):
    """The lines that are JSON objects; launchers may print others."""
    found = []
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except ValueError:
                pass  # cut off by the time limit
    return found


def _end(process):
    """The launcher ends its ranks when asked; who does not listen is ended."""
    process.send_signal(signal.SIGTERM)
    try:
        return process.communicate(timeout=GRACE_S)
    except subprocess.TimeoutExpired:
        _end_session(process.pid)
        return process.communicate()


def _end_session(session):
    """Ends what is left of a session: launchers put ranks into process groups of their own."""
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                os.kill(int(stat.parent.name), signal.SIGKILL)
        except (OSError, ValueError, IndexError):
            pass  # gone meanwhile
