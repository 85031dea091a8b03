"""Make the certificates and keys of a deployment: for its own CA, hubs, operator and workers.

They are written to one directory, which then holds:

- ``ca.crt``, ``ca.key``: the network's certificate authority. The key signs new hubs; keep it
  offline.
- ``hub-<id>.crt``, ``hub-<id>.key``: a hub, as server and as client; for its exchange of
  models with other hubs (gossip) and for the TLS of its SuperLink.
- ``operator.crt``, ``operator.key``: the operator, who may ask any hub for its status.
- ``workers/<hub>-<n>``, ``workers/<hub>-<n>.pub``: the key pair of a SuperNode in OpenSSH
  form, as ``ssh-keygen -t ecdsa -b 384`` makes it: the private key for ``flower-supernode
  --auth-supernode-private-key``, the public key for ``flwr supernode register``.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from mll_flower.deployment.network_entries import NetworkFile, host_of
from mll_flower.gossip.tls import OPERATOR, TlsFiles, hub_name, operator_name

AUTHORITY_LIVES = 10
"""The CA's certificate is valid for this many times the days of the others."""

_README = """\
Keys and certificates of the network {name!r}.
Move ca.key offline once every hub has its files: with it, anyone can join the network as any hub.
A hub needs ca.crt, hub-<id>.crt and hub-<id>.key, and the *.pub keys of its workers.
A worker needs ca.crt and workers/<hub>-<n>. The operator needs ca.crt, operator.crt and .key.
"""

_Key = ec.EllipticCurvePrivateKey


def operator_files(directory: Path) -> TlsFiles:
    """Return where `make_certs` puts the operator's files."""
    return TlsFiles(directory / "ca.crt", *_pair(directory, OPERATOR))


def worker_key(directory: Path, hub: str, number: int) -> Path:
    """Return where `make_certs` puts the private key of a hub's worker (0 is the first)."""
    return directory / "workers" / f"{hub}-{number}"


def public_key(private: Path) -> Path:
    """Return where the public key to a worker's private key is: beside it."""
    return private.with_name(f"{private.name}.pub")


def make_certs(
    network: NetworkFile,
    directory: Path,
    days: int = 365,
    overwrite: bool = False,
    extend: bool = False,
    renew: bool = False,
) -> list[Path]:
    """Make all certificates and keys that a network needs.

    Parameters
    ----------
    network : NetworkFile
        The hubs, their addresses and their numbers of workers.
    directory : Path
        Where to put them; created if it does not exist.
    days : int
        Days for which the certificates are valid; the CA's own for ten times as many.
    overwrite : bool
        Replace all files, the CA's too: every hub then needs its new files.
    extend : bool
        Keep the files that exist and make those that are missing, signed by the existing CA:
        for hubs and workers that join later.
    renew : bool
        Make new certificates and keys for the hubs and the operator, signed by the existing CA,
        and what is missing. Those that they replace are kept in a folder ``old-<time>``. If the
        CA's own certificate would end before them, it is renewed as well, with the same key: who
        has the old one believes the new certificates until then, too.

    Returns
    -------
    list[Path]
        The files written.
    """
    if days < 1:
        raise ValueError(f"days={days}: certificates are valid for at least 1 day")
    if overwrite + extend + renew > 1:
        raise ValueError("of overwrite, extend and renew more than one is asked for; choose one")
    if renew and not (directory / "ca.crt").exists():
        raise FileNotFoundError(
            f"{directory / 'ca.crt'} does not exist: there is nothing to renew; make the "
            f"certificates with `mll-flower certs {network.path}`"
        )
    existing = [path for path in _all_files(network, directory) if path.exists()]
    if existing and not (overwrite or extend or renew):
        raise FileExistsError(
            f"{existing[0]} exists; nothing was written. Ask for overwrite to replace everything, "
            "for extend to add what is missing, or for renew to replace what expires"
        )
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    (directory / "workers").mkdir(exist_ok=True, mode=0o700)
    return _Maker(network, directory, days, keep=extend or renew, renew=renew).make()


def _pair(directory: Path, stem: str) -> tuple[Path, Path]:
    return directory / f"{stem}.crt", directory / f"{stem}.key"


def _all_files(network: NetworkFile, directory: Path) -> Iterator[Path]:
    for stem in ("ca", OPERATOR, *(f"hub-{hub.id}" for hub in network.hubs)):
        yield from _pair(directory, stem)
    for key in _worker_keys(network, directory):
        yield from (key, public_key(key))


def _worker_keys(network: NetworkFile, directory: Path) -> Iterator[Path]:
    for hub in network.hubs:
        for number in range(hub.workers):
            yield worker_key(directory, hub.id, number)


class _Maker:
    """Makes the files of one network; with ``keep``, only those that are missing or renewed."""

    def __init__(
        self, network: NetworkFile, directory: Path, days: int, keep: bool, renew: bool
    ) -> None:
        self.network = network
        self.directory = directory
        self.keep, self.renew = keep, renew
        self.written: list[Path] = []
        # Valid since yesterday: the clocks of two sites differ.
        self.start = dt.datetime.now(dt.UTC) - dt.timedelta(days=1)
        self.end = self.start + dt.timedelta(days=days + 1)
        self.authority_end = self.start + dt.timedelta(days=AUTHORITY_LIVES * days + 1)
        self.old = directory / f"old-{dt.datetime.now(dt.UTC):%Y%m%d-%H%M%S}"

    def make(self) -> list[Path]:
        issuer, signer = self.authority()
        for hub in self.network.hubs:
            hosts = ["localhost", "127.0.0.1", host_of(hub.superlink), host_of(hub.gossip)]
            if hub.listen not in ("", "0.0.0.0", "::"):
                hosts.append(hub.listen)
            names = [x509.DNSName(hub_name(hub.id)), *_alternative_names(hosts)]
            usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            self.issue(f"hub-{hub.id}", hub.id, names, usages, issuer, signer)
        names = [x509.DNSName(operator_name())]
        self.issue(OPERATOR, OPERATOR, names, [ExtendedKeyUsageOID.CLIENT_AUTH], issuer, signer)
        for path in _worker_keys(self.network, self.directory):
            self.worker(path)
        self.write(
            self.directory / "README.txt", _README.format(name=self.network.name).encode(), 0o644
        )
        return self.written

    def authority(self) -> tuple[x509.Name, _Key]:
        certificate_path, key_path = _pair(self.directory, "ca")
        if self.keep and certificate_path.exists():
            return self.load_authority(certificate_path, key_path)
        name = _common_name(f"MLL network {self.network.name} CA")
        return self.make_authority(name, ec.generate_private_key(ec.SECP384R1()))

    def make_authority(self, name: x509.Name, key: _Key) -> tuple[x509.Name, _Key]:
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        certificate = (
            self.builder(name, name, key, key, self.authority_end)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(key, hashes.SHA384())
        )
        self.write_pair(*_pair(self.directory, "ca"), certificate, key)
        return name, key

    def load_authority(self, certificate_path: Path, key_path: Path) -> tuple[x509.Name, _Key]:
        if not key_path.exists():
            raise FileNotFoundError(
                f"{key_path} is missing: bring the CA's key back while it signs new hubs"
            )
        key = serialization.load_pem_private_key(key_path.read_bytes(), None)
        certificate = x509.load_pem_x509_certificate(certificate_path.read_bytes())
        if not isinstance(key, _Key) or key.public_key() != certificate.public_key():
            raise ValueError(
                f"{key_path} is not the key of {certificate_path}: bring back the one that is"
            )
        if self.renew and certificate.not_valid_after_utc < self.end:
            self.keep_aside(certificate_path)
            return self.make_authority(certificate.subject, key)
        self.end = min(self.end, certificate.not_valid_after_utc)
        return certificate.subject, key

    def issue(
        self,
        stem: str,
        common_name: str,
        names: Sequence[x509.GeneralName],
        usages: Sequence[x509.ObjectIdentifier],
        issuer: x509.Name,
        signer: _Key,
    ) -> None:
        certificate_path, key_path = _pair(self.directory, stem)
        if self.renew:
            self.keep_aside(certificate_path)
            self.keep_aside(key_path)
        elif self.keep and certificate_path.exists() and key_path.exists():
            return
        key = ec.generate_private_key(ec.SECP384R1())
        certificate = (
            self.builder(_common_name(common_name), issuer, key, signer, self.end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .sign(signer, hashes.SHA384())
        )
        self.write_pair(certificate_path, key_path, certificate, key)

    def builder(
        self, subject: x509.Name, issuer: x509.Name, key: _Key, signer: _Key, end: dt.datetime
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self.start)
            .not_valid_after(end)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
                critical=False,
            )
        )

    def worker(self, path: Path) -> None:
        public_path = public_key(path)
        if self.keep and path.exists() and public_path.exists():
            return
        key = ec.generate_private_key(ec.SECP384R1())
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        )
        public = key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        self.write(path, private, 0o600)
        self.write(public_path, public + f" {path.name}\n".encode(), 0o644)

    def write_pair(
        self, certificate_path: Path, key_path: Path, certificate: x509.Certificate, key: _Key
    ) -> None:
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        self.write(key_path, private, 0o600)
        self.write(certificate_path, certificate.public_bytes(serialization.Encoding.PEM), 0o644)

    def keep_aside(self, path: Path) -> None:
        """Keep a copy of a file that is replaced."""
        if path.exists():
            self.old.mkdir(exist_ok=True, mode=0o700)
            shutil.copy2(path, self.old / path.name)

    def write(self, path: Path, data: bytes, mode: int) -> None:
        """Write a new file that never has another mode than this, not even while it is empty."""
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        self.written.append(path)


def _common_name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])


def _alternative_names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = []
    for host in dict.fromkeys(hosts):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    return names
