"""Who is at the other end of a connection on this machine: a process of our own user, or not.

Every user of a machine reaches its loopback interface. Linux lists the owner of each connection's
end in ``/proc/net/tcp``; on other systems nobody is turned away.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

_TABLE = Path("/proc/net/tcp")
_ESTABLISHED = "01"


def is_own_connection(caller: tuple[str, int] | None, server: tuple[str, int]) -> bool:
    """Return whether a connection on loopback comes from our own user, or from root.

    Parameters
    ----------
    caller, server : tuple[str, int]
        IPv4 addresses of the two ends of the connection.
    """
    try:
        lines = _TABLE.read_text().splitlines()[1:]
    except FileNotFoundError:
        return True
    if caller is None:
        return False
    ends = [_as_listed(caller), _as_listed(server)]
    for line in lines:
        fields = line.split()
        if fields[1:3] == ends:
            # A caller that has closed its end already is listed under root's id, whoever it was.
            return fields[3] == _ESTABLISHED and int(fields[7]) in (os.getuid(), 0)
    return False


def _as_listed(address: tuple[str, int]) -> str:
    """Return an address as the table has it: the kernel's own byte order, hexadecimal."""
    host = int.from_bytes(socket.inet_aton(address[0]), sys.byteorder)
    return f"{host:08X}:{address[1]:04X}"
