"""File descriptors of this process: one per connection, so that a server needs many."""

from __future__ import annotations

from contextlib import suppress

ENOUGH = 1 << 16
"""More descriptors than this are not asked for."""


def raise_descriptor_limit() -> int:
    """Raise the soft limit as far as the hard one allows; return what it is then.

    The usual 1,024 let a thousand idle connections keep everyone else out.
    """
    try:
        import resource
    except ImportError:  # not a Unix system
        return 0
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return ENOUGH
    target = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    with suppress(OSError, ValueError):
        if target > soft:
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    return max(soft, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
