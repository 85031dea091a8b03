"""Processes whose clock is off, as on a machine without NTP.

libfaketime would do, but its version 0.9.10 breaks `time.sleep` or `threading.Event.wait` of Python
3.11, whatever is set. So a few lines of C take the place of the functions that tell the date, and
leave all others alone.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

_SOURCE = """
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long ahead(void) {
    const char *seconds = getenv("SECONDS_AHEAD");
    return seconds ? atol(seconds) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += ahead();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    int failed = clock_gettime(CLOCK_REALTIME, &exact);
    (void)zone;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result)
        *result = now.tv_sec;
    return now.tv_sec;
}
"""


def wrong_clock(folder: Path, seconds: int) -> dict[str, str]:
    """Return the environment of processes whose clock is so many seconds ahead of ours.

    Parameters
    ----------
    folder : Path
        Where the library is made.
    seconds : int
        Negative for a clock that is behind.
    """
    library = folder / "wrong_clock.so"
    if not library.exists():
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("needs a C compiler")
        (folder / "wrong_clock.c").write_text(_SOURCE)
        command = [compiler, "-shared", "-fPIC", "-o", str(library), str(folder / "wrong_clock.c")]
        made = subprocess.run(command, capture_output=True, text=True)
        if made.returncode:
            pytest.skip(f"no library can be made here: {made.stderr[-300:]}")
    return {"LD_PRELOAD": str(library), "SECONDS_AHEAD": str(seconds)}
