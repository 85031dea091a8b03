"""What hubs send each other, as bytes: JSON and safetensors, never pickle.

There are small messages, and snapshots, which hold a hub's model for a mixing.

A snapshot is sent as a stream: first a JSON header, then the arrays as safetensors, in chunks.
Nothing that is read here is trusted: sizes, types and checksums are checked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import safetensors.numpy

from mll_flower.gossip.ledger import Published, Verdict
from mll_flower.gossip.snapshot import Array, RejectedSnapshot, Rejection, Snapshot

CHUNK = 1 << 20
"""Bytes of a body that travel in one message."""

SMALL = 1 << 16
"""Largest header, request or status, in bytes."""

_HEADER_TYPES: dict[str, type | tuple[type, ...]] = {
    "run": str,
    "mixing": int,
    "hub": str,
    "weight": (int, float),
    "degree": int,
    "token": str,
    "bytes": int,
    "sha256": str,
}


def dump(message: dict[str, Any]) -> bytes:
    """Return a small message as JSON."""
    return json.dumps(message, separators=(",", ":")).encode()


def parse(data: bytes) -> dict[str, Any]:
    """Read a small JSON message; raise `ValueError` if it is not one."""
    if len(data) > SMALL:
        raise ValueError(f"a message of {len(data)} bytes, more than {SMALL}")
    try:
        message = json.loads(data)
    except RecursionError as error:
        raise ValueError("JSON that is nested too deep") from error
    if not isinstance(message, dict):
        raise ValueError(f"a JSON {type(message).__name__} instead of an object")
    return message


def largest_body(arrays: Mapping[str, Array]) -> int:
    """Return the bytes that a body with arrays like these takes at most."""
    # A name may be escaped, and each array is described in some hundred bytes.
    return SMALL + sum(array.nbytes + 6 * len(name) + 512 for name, array in arrays.items())


def dump_body(snapshot: Snapshot) -> bytes:
    """Return a snapshot's arrays as safetensors, which needs the C order that they have."""
    return safetensors.numpy.save({name: np.asarray(a) for name, a in snapshot.arrays.items()})


def messages(published: Published) -> Iterator[bytes]:
    """Yield the messages that carry a snapshot: the header, then the body in chunks."""
    snapshot, body = published.snapshot, published.body
    yield dump(
        {
            "answer": "snapshot",
            "run": snapshot.run,
            "mixing": snapshot.mixing,
            "hub": snapshot.hub,
            "weight": snapshot.weight,
            "degree": snapshot.degree,
            "token": published.token,
            "bytes": len(body),
            "sha256": published.sha256,
            **({"links": dict(snapshot.links)} if snapshot.links else {}),
        }
    )
    for start in range(0, len(body), CHUNK):
        yield body[start : start + CHUNK]


def check_header(header: dict[str, Any], max_bytes: int) -> None:
    """Raise `RejectedSnapshot` if a header is incomplete or announces too many bytes."""
    for key, kind in _HEADER_TYPES.items():
        if not isinstance(header.get(key), kind) or isinstance(header.get(key), bool):
            raise RejectedSnapshot(Rejection.GARBLED, f"header with {key} = {header.get(key)!r}")
    if header["bytes"] > max_bytes:
        raise RejectedSnapshot(
            Rejection.OVERSIZED, f"{header['bytes']} bytes announced, at most {max_bytes} allowed"
        )


def read_snapshot(header: dict[str, Any], chunks: Iterable[bytes]) -> Published:
    """Read the body that a checked header announces, and no more bytes than that."""
    announced: int = header["bytes"]
    parts: list[bytes] = []
    digest = hashlib.sha256()
    size = 0
    for chunk in chunks:
        size += len(chunk)
        if size > announced:
            raise RejectedSnapshot(
                Rejection.OVERSIZED, f"more than the {announced} bytes that its header announced"
            )
        digest.update(chunk)
        parts.append(chunk)
    if size != announced or digest.hexdigest() != header["sha256"]:
        raise RejectedSnapshot(
            Rejection.CHECKSUM, f"{size} of {announced} bytes, SHA-256 {digest.hexdigest()[:12]}..."
        )
    try:
        arrays = safetensors.numpy.load(b"".join(parts))
        weight = float(header["weight"])
        links = {str(hub): int(uses) for hub, uses in dict(header.get("links", {})).items()}
        snapshot = Snapshot(
            header["run"], header["mixing"], header["hub"], weight, header["degree"], arrays, links
        )
    except Exception as error:
        # Which exception the reader raises depends on the bytes; all of them mean the same.
        raise RejectedSnapshot(Rejection.GARBLED, f"{type(error).__name__}: {error}") from error
    return Published(snapshot, header["token"])


def dump_verdict(verdict: Verdict) -> bytes:
    """Return a verdict as JSON."""
    return dump({**vars(verdict), "reason": verdict.reason[:500]})


def parse_verdict(data: bytes) -> Verdict:
    """Read a verdict; raise `ValueError` if it is not one."""
    message = parse(data)
    verdict = Verdict(
        run=message.get("run", ""),
        mixing=message.get("mixing", -1),
        token=message.get("token", ""),
        accepted=message.get("accepted") is True,
        reason=str(message.get("reason", ""))[:500],
    )
    if not (isinstance(verdict.mixing, int) and isinstance(verdict.run, str)):
        raise ValueError(f"not a verdict: {message}")
    return verdict
