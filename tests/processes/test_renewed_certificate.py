"""A server that takes a renewed certificate while it runs."""

from __future__ import annotations

import shutil
import socket
import ssl
import threading
import time
from pathlib import Path

from mll_flower.deployment.certs import make_certs
from mll_flower.processes.renewed_certificate import follow_renewals
from tests.support.deployment import example_with


def test_new_connections_see_the_new_certificate(tmp_path: Path) -> None:
    network = example_with(tmp_path)
    make_certs(network, network.certs)
    certificate, key = network.certs / "hub-a.crt", network.certs / "hub-a.key"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()[:2]
        server = threading.Thread(target=_serve, args=(listener, context))
        server.start()
        over = follow_renewals(context, certificate, key, pause=0.02)
        try:
            old = certificate.read_text()
            assert ssl.get_server_certificate(address) == old
            new = tmp_path / "new"
            shutil.copytree(network.certs, new)
            make_certs(network, new, renew=True)
            shutil.copy(new / "hub-a.crt", certificate)
            time.sleep(0.2)
            assert ssl.get_server_certificate(address) == old, "its key is not here yet"
            shutil.copy(new / "hub-a.key", key)
            end = time.monotonic() + 20
            while ssl.get_server_certificate(address) != (new / "hub-a.crt").read_text():
                assert time.monotonic() < end
                time.sleep(0.05)
        finally:
            over.set()
            listener.shutdown(socket.SHUT_RDWR)
            server.join()


def _serve(listener: socket.socket, context: ssl.SSLContext) -> None:
    while True:
        try:
            plain, _ = listener.accept()
        except OSError:
            return
        plain.settimeout(10)
        with plain:
            try:
                context.wrap_socket(plain, server_side=True).close()
            except OSError:
                continue
