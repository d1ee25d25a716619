"""A fresh Python process that finds this package, and how much memory a call needs in it."""

import gc
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eigenclock.errors import EigenclockError

PAGE = 4096


def python(*arguments: str, threads: int | None = None, exact_memory: bool = False) -> str:
    """What a fresh interpreter prints on its last line; with ``exact_memory`` freed blocks go back to the system at once.

    Raises:
        EigenclockError: the process failed; the message ends with the last line it wrote on stderr.
    """
    # Without files to keep compiled code in, every import would compile anew.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    here = str(Path(__file__).resolve().parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH", ""))))
    # glibc otherwise keeps freed blocks for later calls, which would then seem to need no memory.
    environment |= {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"} if exact_memory else {}
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment, check=False)
    lines = done.stdout.split("\n")
    if done.returncode or not done.stdout.strip():
        why = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        raise EigenclockError(f"a benchmark process ended with status {done.returncode}: {why[0]}")
    return [line for line in lines if line.strip()][-1]


def peak_growth(call: Callable[[], Any]) -> int:
    """Bytes by which the resident memory of this process rises above its present size while a call runs, at least one page.

    Linux can forget an earlier peak (``/proc/self/clear_refs``); elsewhere an earlier, higher peak hides part of the growth.
    """
    gc.collect()
    can_forget = _forget_peak()
    before = _status("VmRSS") if can_forget else _highest()
    kept = call()  # alive until the peak is read
    after = _status("VmHWM") if can_forget else _highest()
    del kept
    return max(after - before, PAGE)


def _forget_peak() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        return abs(_status("VmHWM") - _status("VmRSS")) < 1 << 20
    except OSError:
        return False


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {name}")


def _highest() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
