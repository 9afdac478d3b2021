"""``python -m ringway`` and the script ``ringway``: the command line."""

from __future__ import annotations

import signal
import sys

from ringway import _native


def main() -> None:
    """Runs the command of this process's arguments, and ends the process with its code."""
    module = __name__ == "__main__"
    again = [sys.executable, *(["-m", "ringway"] if module else [sys.argv[0]])]
    # The command has handlers of its own where it needs them; else Ctrl-C ends it, as it ends any program.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    code = _native.command(["ringway", *sys.argv[1:]], again)
    sys.exit(code)


if __name__ == "__main__":
    main()
