"""A hub's SuperLink without workers, as Flower ships it or guarded; and what an attacker sends it.

The attacker has a worker's files: the authority's certificate and the worker's private key.
"""

from __future__ import annotations

import base64
import socket
import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.supercore.date import now

from mll_flower.deployment.certs import make_certs
from mll_flower.deployment.commands import deployment_environment, superlink_command
from mll_flower.deployment.credentials import hub_worker_keys
from mll_flower.deployment.network_file import NetworkFile
from mll_flower.processes.private_certificate import make_private_certificate
from mll_flower.processes.process_tree import Processes
from mll_flower.processes.superlink import SuperLink
from tests.support.deployment import example_with, free_ports

PROTOBUF = "application/protobuf"


@dataclass
class Site:
    """A SuperLink that runs.

    Attributes
    ----------
    network : NetworkFile
        Hub ``a`` of it is this one.
    port : int
        The public port.
    link : SuperLink
        How the hub itself reaches it.
    pid : int
        Its process.
    """

    network: NetworkFile
    folder: Path
    port: int
    link: SuperLink
    pid: int

    @property
    def memory(self) -> int:
        """Return the bytes of memory that it has."""
        return psutil.Process(self.pid).memory_info().rss

    def connect(self, port: int | None = None) -> ssl.SSLSocket:
        """Return a connection over TLS, to the public port unless another is given."""
        return self.encrypt(socket.create_connection(("127.0.0.1", port or self.port), timeout=20))

    def encrypt(self, plain: socket.socket) -> ssl.SSLSocket:
        """Return a connection with TLS on it."""
        context = ssl.create_default_context(cafile=str(self.network.hub("a").tls.ca))
        context.load_verify_locations(self.link.ca)  # on its private port it shows another
        return context.wrap_socket(plain, server_hostname="127.0.0.1")

    def send(self, data: bytes | Iterable[bytes], port: int | None = None) -> bytes:
        """Send bytes on a new connection and return all that comes back."""
        with self.connect(port) as connection:
            try:
                for piece in [data] if isinstance(data, bytes) else data:
                    connection.sendall(piece)
            except OSError:
                pass  # it has heard enough
            return _read_all(connection)

    def post(
        self, path: str, body: bytes = b"", key: Path | None = None, port: int | None = None
    ) -> int:
        """POST a protobuf message, signed if a worker's key is given; return the status."""
        head = [f"POST {path} HTTP/1.1", "Host: hub", f"Content-Type: {PROTOBUF}"]
        head += [f"Content-Length: {len(body)}", "Connection: close", *signature(key)]
        return status(self.send("\r\n".join([*head, "", ""]).encode() + body, port))

    def flwr_home(self, folder: Path) -> dict[str, str]:
        """Return the environment of somebody who runs ``flwr`` against the public port."""
        env = deployment_environment(folder)
        ca = self.network.hub("a").tls.ca
        SuperLink(folder, f"127.0.0.1:{self.port}", env, ca).write_config()
        return env


def status(answer: bytes) -> int:
    """Return the status of an HTTP answer; 0 if there is none."""
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def signature(key: Path | None) -> list[str]:
    """Return the headers by which a SuperNode proves that it has this key."""
    if key is None:
        return []
    private = serialization.load_ssh_private_key(key.read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    public = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    timestamp = now().isoformat()
    signed = private.sign(timestamp.encode(), ec.ECDSA(hashes.SHA256()))
    return [
        f"flwr-public-key: {base64.b64encode(public).decode()}",
        f"flwr-timestamp: {timestamp}",
        f"flwr-signature: {base64.b64encode(signed).decode()}",
    ]


def _read_all(connection: ssl.SSLSocket) -> bytes:
    parts = []
    try:
        while part := connection.recv(1 << 16):
            parts.append(part)
    except OSError:
        pass  # closed in the middle of what we sent, or nothing more comes
    return b"".join(parts)


@contextmanager
def running_superlink(folder: Path, guarded: bool) -> Iterator[Site]:
    """Start the SuperLink of hub a of the example network, with TLS; end it afterwards."""
    folder.mkdir(exist_ok=True)
    public, gossip, private = free_ports(3)
    changes = [("127.0.0.1:9400", f"127.0.0.1:{public}"), ("127.0.0.1:9401", f"127.0.0.1:{gossip}")]
    network = example_with(folder, *changes)
    if not network.certs.exists():
        make_certs(network, network.certs)
    entry = network.hub("a")
    command = superlink_command(
        entry, folder, f"127.0.0.1:{private}", hub_worker_keys(network, "a"), insecure=False
    )
    if not guarded:
        private = public
        tls = command[command.index("--ssl-ca-certfile") :]
        command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(public), *tls]
        command += ["--database", str(folder / "superlink.db")]
    home = folder / "home"
    ca = make_private_certificate(folder) if guarded else entry.tls.ca
    link = SuperLink(home, f"127.0.0.1:{private}", deployment_environment(home), ca)
    with Processes() as processes:
        link.start(processes, "superlink", command, folder / "superlink.log")
        ours = psutil.Process().children()
        pid = next(child.pid for child in ours if str(folder / "superlink.db") in child.cmdline())
        yield Site(network, folder, public, link, pid)
