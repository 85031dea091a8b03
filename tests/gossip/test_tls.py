"""Names in certificates, and the files that hold the certificates."""

from __future__ import annotations

from pathlib import Path

import pytest

from mll_flower.gossip.tls import TlsFiles, hub_name, hubs_named, operator_name


@pytest.mark.parametrize("hub", ["a", "lyon", "hub-1", "x.mll"])
def test_a_hub_is_found_by_its_name(hub: str) -> None:
    assert hubs_named([hub_name(hub)]) == [hub]


def test_other_names_stand_for_no_hub() -> None:
    names = [operator_name(), "localhost", "127.0.0.1", "hub-a.example.org", "a.mll"]
    assert hubs_named(names) == []
    assert hubs_named([*names, "hub-a.mll", "hub-b.mll"]) == ["a", "b"]


def test_a_missing_file_is_named_with_the_remedy(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path / "ca.crt", tmp_path / "hub-a.crt", tmp_path / "hub-a.key")
    files.ca.write_bytes(b"CA")
    files.certificate.write_bytes(b"certificate")
    with pytest.raises(FileNotFoundError, match=r"hub-a\.key.*mll-flower certs NETWORK"):
        files.read()
    files.key.write_bytes(b"key")
    assert files.read() == (b"CA", b"certificate", b"key")
