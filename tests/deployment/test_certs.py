"""Certificates and keys: what they contain, who may read them, and that others accept them."""

from __future__ import annotations

import ipaddress
import shutil
import socket
import ssl
import stat
import subprocess
import threading
from argparse import Namespace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from flwr.cli.supernode.register import try_load_public_key
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.cli.flower_supernode import _try_setup_client_authentication

from mll_flower.deployment.certs import make_certs, operator_files, public_key, worker_key
from mll_flower.deployment.network_file import NetworkFile, example_network, load_network


def network_with(tmp_path: Path, hubs: int = 2, workers: int = 2, host: str = "") -> NetworkFile:
    path = tmp_path / "network.toml"
    text = example_network(hubs=hubs, workers=workers)
    path.write_text(text.replace('gossip = "127.0.0.1', f'gossip = "{host}') if host else text)
    return load_network(path)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("certs")
    network = network_with(home, host="site.example.org")
    make_certs(network, home / "certs", days=30)
    assert network.hub("a").tls.certificate == home / "certs" / "hub-a.crt"
    return home / "certs"


def load(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_a_hub_is_named_and_may_serve_and_call(home: Path) -> None:
    certificate = load(home / "hub-a.crt")
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [
        "hub-a.mll",
        "localhost",
        "site.example.org",
    ]
    assert names.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address("127.0.0.1")]
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(usage) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
    assert common == "a"
    certificate.verify_directly_issued_by(load(home / "ca.crt"))
    assert (certificate.not_valid_after_utc - certificate.not_valid_before_utc).days == 31


def test_the_operator_may_only_call(home: Path) -> None:
    certificate = load(operator_files(home).certificate)
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]


def test_only_the_owner_can_read_private_keys(home: Path) -> None:
    private = [*home.glob("*.key"), *(p for p in (home / "workers").iterdir() if not p.suffix)]
    assert len(private) == 4 + 4
    for path in private:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "offline" in (home / "README.txt").read_text()


def test_python_accepts_the_chain_in_both_directions(home: Path) -> None:
    """With strict checks (key usage, key identifiers), as newer Pythons do by default."""
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=home / "ca.crt")
    client = ssl.create_default_context(cafile=home / "ca.crt")
    for context, hub in ((server, "a"), (client, "b")):
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        context.load_cert_chain(home / f"hub-{hub}.crt", home / f"hub-{hub}.key")
    left, right = socket.socketpair()
    accepted: list[ssl.SSLSocket] = []
    thread = threading.Thread(
        target=lambda: accepted.append(server.wrap_socket(left, server_side=True))
    )
    thread.start()
    with client.wrap_socket(right, server_hostname="127.0.0.1") as connection:
        thread.join()
        assert connection.version() == "TLSv1.3"
    accepted[0].close()


@pytest.mark.parametrize("number", [0, 1])
def test_flower_accepts_the_worker_keys(home: Path, number: int) -> None:
    path = worker_key(home, "b", number)
    arguments = Namespace(auth_supernode_private_key=str(path), auth_supernode_public_key=None)
    keys = _try_setup_client_authentication(arguments)
    assert keys is not None
    private, public = keys
    assert isinstance(private.curve, ec.SECP384R1)
    registered = try_load_public_key(public_key(path))
    assert registered == public_key_to_bytes(public)


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")
def test_ssh_keygen_reads_the_worker_keys(home: Path) -> None:
    path = worker_key(home, "a", 0)
    derived = subprocess.run(
        ["ssh-keygen", "-y", "-f", path], check=True, capture_output=True, text=True
    ).stdout
    assert derived.split()[:2] == public_key(path).read_text().split()[:2]


def test_nothing_is_overwritten_unless_asked(tmp_path: Path) -> None:
    network, certs = network_with(tmp_path), tmp_path / "certs"
    written = make_certs(network, certs)
    before = {path: path.read_bytes() for path in written}
    (certs / "hub-a.key").unlink()
    with pytest.raises(FileExistsError, match=r"ca\.crt exists; nothing was written"):
        make_certs(network, certs)
    assert not (certs / "hub-a.key").exists()
    make_certs(network, certs, overwrite=True)
    assert all(p.read_bytes() != old for p, old in before.items() if p.name != "README.txt")


def test_a_network_can_grow(tmp_path: Path) -> None:
    certs = tmp_path / "certs"
    before = {p: p.read_bytes() for p in make_certs(network_with(tmp_path), certs)}
    bigger = network_with(tmp_path, hubs=3, workers=3)
    new = make_certs(bigger, certs, extend=True)
    names = {path.name for path in new} - {"README.txt"}
    assert names == {"hub-c.crt", "hub-c.key"} | {
        f"{w}{end}" for w in ("a-2", "b-2", "c-0", "c-1", "c-2") for end in ("", ".pub")
    }
    assert all(path.read_bytes() == old for path, old in before.items())
    load(certs / "hub-c.crt").verify_directly_issued_by(load(certs / "ca.crt"))
    (certs / "ca.key").unlink()
    with pytest.raises(FileNotFoundError, match=r"ca\.key is missing"):
        make_certs(network_with(tmp_path, hubs=4), certs, extend=True)


def test_impossible_arguments_are_refused(tmp_path: Path) -> None:
    network = network_with(tmp_path)
    with pytest.raises(ValueError, match="days=0"):
        make_certs(network, tmp_path / "certs", days=0)
    with pytest.raises(ValueError, match="choose one"):
        make_certs(network, tmp_path / "certs", overwrite=True, extend=True)
    with pytest.raises(ValueError, match="choose one"):
        make_certs(network, tmp_path / "certs", renew=True, extend=True)
    with pytest.raises(FileNotFoundError, match="nothing to renew"):
        make_certs(network, tmp_path / "certs", renew=True)


def test_certificates_are_renewed_and_the_old_ones_kept(tmp_path: Path) -> None:
    certs = tmp_path / "certs"
    network = network_with(tmp_path)
    before = {p: p.read_bytes() for p in make_certs(network, certs, days=30)}
    new = make_certs(network, certs, days=90, renew=True)
    names = {f"{stem}.{end}" for stem in ("hub-a", "hub-b", "operator") for end in ("crt", "key")}
    assert {path.name for path in new} == names | {"README.txt"}
    (old,) = certs.glob("old-*")
    assert {path.name: path.read_bytes() for path in old.iterdir()} == {
        path.name: data for path, data in before.items() if path.name in names
    }
    assert stat.S_IMODE(old.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(p.stat().st_mode) == 0o600 for p in old.glob("*.key"))
    for path, data in before.items():
        assert (path.read_bytes() == data) == (path.name not in names)
    renewed = load(certs / "hub-a.crt")
    renewed.verify_directly_issued_by(load(certs / "ca.crt"))
    lives = renewed.not_valid_after_utc - renewed.not_valid_before_utc
    assert lives.days == 91


def test_an_authority_that_ends_too_soon_is_renewed_with_its_key(tmp_path: Path) -> None:
    certs = tmp_path / "certs"
    network = network_with(tmp_path)
    make_certs(network, certs, days=30)
    key, authority = (certs / "ca.key").read_bytes(), load(certs / "ca.crt")
    assert (authority.not_valid_after_utc - authority.not_valid_before_utc).days == 301
    make_certs(network, certs, days=400, renew=True)
    renewed, hub = load(certs / "ca.crt"), load(certs / "hub-a.crt")
    assert renewed.not_valid_after_utc > hub.not_valid_after_utc > authority.not_valid_after_utc
    assert (certs / "ca.key").read_bytes() == key
    hub.verify_directly_issued_by(renewed)
    hub.verify_directly_issued_by(authority)  # a site that still has the old one believes it
    (old,) = certs.glob("old-*")
    assert load(old / "ca.crt") == authority
