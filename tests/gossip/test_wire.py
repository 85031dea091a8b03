"""Snapshots and small messages as bytes: round trips, and every kind of wrong bytes."""

from __future__ import annotations

import hashlib
import itertools
import json
import pickle
from collections.abc import Iterator

import numpy as np
import pytest

from mll_flower.gossip import RejectedSnapshot, Rejection, Snapshot, wire
from mll_flower.gossip.ledger import Published, Verdict

LIMIT = 1 << 30
ARRAYS = {
    "weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "half": np.array([0.5, -2.0], np.float16),
    "count": np.array(7, np.int64),
    "flags": np.array([True, False]),
    "empty": np.zeros((0, 3)),
}


def published(arrays: dict[str, np.ndarray] = ARRAYS) -> Published:
    snapshot = Snapshot("run-1", 3, "a", 2.5, 2, arrays)
    return Published(snapshot, "token-1", wire.dump_body(snapshot))


def sent(published: Published) -> tuple[dict, list[bytes]]:
    """Return the header and the chunks that carry a snapshot."""
    header, *chunks = wire.messages(published)
    return wire.parse(header), chunks


def receive(header: dict, chunks: list[bytes], max_bytes: int = LIMIT) -> Published:
    """Read a snapshot as a hub does."""
    wire.check_header(header, max_bytes)
    return wire.read_snapshot(header, iter(chunks))


def rejection(header: dict, chunks: list[bytes], max_bytes: int = LIMIT) -> Rejection:
    """Return why a snapshot is rejected."""
    with pytest.raises(RejectedSnapshot) as rejected:
        receive(header, chunks, max_bytes)
    return rejected.value.rejection


def test_the_uses_of_links_survive_the_round_trip() -> None:
    snapshot = Snapshot("run-1", 3, "a", 2.5, 2, ARRAYS, {"b": 7, "c": 0})
    whole = Published(snapshot, "token-1", wire.dump_body(snapshot))
    assert receive(*sent(whole)).snapshot.links == {"b": 7, "c": 0}
    header, chunks = sent(published())
    assert "links" not in header
    assert receive(header, chunks).snapshot.links == {}
    for wrong in (3, ["b"], {"b": "often"}, {"b": None}):
        assert rejection({**header, "links": wrong}, chunks) is Rejection.GARBLED


def test_a_snapshot_survives_the_round_trip() -> None:
    found = receive(*sent(published()))
    assert found.token == "token-1"
    one, other = found.snapshot, published().snapshot
    for field in ("run", "mixing", "hub", "weight", "degree"):
        assert getattr(one, field) == getattr(other, field)
    assert one.arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert (one.arrays[name].dtype, one.arrays[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(one.arrays[name], array)


def test_a_large_model_travels_in_chunks() -> None:
    large = {"w": np.random.default_rng(0).random(3 * wire.CHUNK // 8)}
    header, chunks = sent(published(large))
    assert len(chunks) == 4  # three chunks of numbers, and the safetensors header
    assert max(map(len, chunks)) == wire.CHUNK
    assert header["bytes"] == sum(map(len, chunks))
    np.testing.assert_array_equal(receive(header, chunks).snapshot.arrays["w"], large["w"])


def test_a_model_above_the_limit_is_rejected_by_its_header() -> None:
    header, chunks = sent(published())
    assert rejection(header, chunks, max_bytes=header["bytes"] - 1) is Rejection.OVERSIZED
    receive(header, chunks, max_bytes=header["bytes"])


def test_more_bytes_than_announced_are_not_read() -> None:
    header, chunks = sent(published())
    read = []

    def endless() -> Iterator[bytes]:
        for chunk in itertools.chain(chunks, itertools.repeat(b"more")):
            read.append(chunk)
            yield chunk

    with pytest.raises(RejectedSnapshot) as rejected:
        wire.read_snapshot(header, endless())
    assert rejected.value.rejection is Rejection.OVERSIZED
    assert read == [*chunks, b"more"]


def test_a_changed_byte_is_noticed() -> None:
    header, chunks = sent(published())
    changed = chunks[0][:-1] + bytes([chunks[0][-1] ^ 1])
    assert rejection(header, [changed]) is Rejection.CHECKSUM
    assert rejection({**header, "sha256": "0" * 64}, chunks) is Rejection.CHECKSUM


def test_a_truncated_body_is_noticed() -> None:
    header, chunks = sent(published())
    assert rejection(header, [chunks[0][:-8]]) is Rejection.CHECKSUM
    assert rejection(header, []) is Rejection.CHECKSUM
    assert rejection({**header, "bytes": -1}, []) is Rejection.CHECKSUM


@pytest.mark.parametrize("body", [b"", b"\x00" * 64, pickle.dumps({"w": 1}), b"\xff" * 8 + b"{}"])
def test_a_body_that_is_not_safetensors_is_rejected(body: bytes) -> None:
    header, _ = sent(published())
    header |= {"bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}
    assert rejection(header, [body] if body else []) is Rejection.GARBLED


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        ("run", 1),
        ("mixing", "3"),
        ("mixing", 3.0),
        ("mixing", True),
        ("hub", None),
        ("weight", "heavy"),
        ("weight", True),
        ("degree", 1.5),
        ("token", 7),
        ("bytes", "100"),
        ("bytes", 1e3),
        ("sha256", ["0"]),
    ],
)
def test_a_header_with_a_wrong_type_is_rejected(key: str, wrong: object) -> None:
    header, chunks = sent(published())
    assert rejection({**header, key: wrong}, chunks) is Rejection.GARBLED


@pytest.mark.parametrize(
    "key", ["run", "mixing", "hub", "weight", "degree", "token", "bytes", "sha256"]
)
def test_a_header_without_a_key_is_rejected(key: str) -> None:
    header, chunks = sent(published())
    del header[key]
    assert rejection(header, chunks) is Rejection.GARBLED


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "Expecting value"),
        (b"\x80\x04.", "decode"),
        (b"[1]", "list instead of an object"),
        (b"5", "int instead of an object"),
        (b"[" * 50_000, "nested too deep"),
        (b'{"a":' * 10_000, "nested too deep"),
        (json.dumps({"a": "x" * wire.SMALL}).encode(), f"more than {wire.SMALL}"),
    ],
)
def test_bytes_that_are_not_a_small_message_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wire.parse(data)


def test_a_small_message_survives_the_round_trip() -> None:
    message = {"run": "é", "mixing": None, "wait": 1.5, "list": [1, {"a": True}]}
    assert wire.parse(wire.dump(message)) == message


@pytest.mark.parametrize("accepted", [True, False])
def test_a_verdict_survives_the_round_trip(accepted: bool) -> None:
    verdict = Verdict("run-1", 3, "token-1", accepted, "" if accepted else "not finite")
    assert wire.parse_verdict(wire.dump_verdict(verdict)) == verdict


def test_a_long_reason_is_cut() -> None:
    verdict = Verdict("run-1", 3, "token-1", False, "x" * (2 * wire.SMALL))
    assert wire.parse_verdict(wire.dump_verdict(verdict)).reason == "x" * 500


def test_only_true_is_a_confirmation() -> None:
    fields = {"run": "run-1", "mixing": 3, "token": "token-1"}
    for value in (1, "true", None):
        assert not wire.parse_verdict(wire.dump({**fields, "accepted": value})).accepted
    assert not wire.parse_verdict(wire.dump(fields)).accepted


@pytest.mark.parametrize("fields", [{"run": 5, "mixing": 1}, {"run": "r", "mixing": "one"}])
def test_bytes_that_are_not_a_verdict_are_refused(fields: dict) -> None:
    with pytest.raises(ValueError, match="not a verdict"):
        wire.parse_verdict(wire.dump(fields))
