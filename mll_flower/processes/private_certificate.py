"""The certificate of a hub's SuperLink on its private address, which only the hub itself calls.

On its public port a SuperLink shows the hub's own certificate, which ends one day. The hub's run
calls the same SuperLink on loopback all the time, and must not die of that: there the SuperLink
shows a certificate that is made anew whenever the hub starts, that only the hub's own processes
trust, and that never ends, whatever the clock says.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

CERTIFICATE = "private.crt"
KEY = "private.key"

_FOR_EVER = dt.datetime(2000, 1, 1), dt.datetime(9999, 12, 31)


def make_private_certificate(folder: Path, host: str = "127.0.0.1") -> Path:
    """Write a certificate that signs itself, and its key, to a folder; return the certificate.

    Parameters
    ----------
    folder : Path
        Where `CERTIFICATE` and `KEY` are written, readable by their owner only.
    host : str
        The address that it is for.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a hub's SuperLink on loopback")])
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_FOR_EVER[0])
        .not_valid_after(_FOR_EVER[1])
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    form = serialization.PrivateFormat.PKCS8
    _write(folder / KEY, key.private_bytes(pem, form, serialization.NoEncryption()))
    _write(folder / CERTIFICATE, certificate.public_bytes(pem))
    return folder / CERTIFICATE


def _write(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
