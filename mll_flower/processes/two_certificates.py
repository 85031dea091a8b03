"""A server that shows one certificate on its public sockets, and another on a private one."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path

import uvicorn


class TwoCertificatesServer(uvicorn.Server):
    """A server that shows another certificate on one more socket: uvicorn has one for all.

    Parameters
    ----------
    config : uvicorn.Config
        What it serves, and the certificate for the other sockets.
    private : socket.socket
        The further socket.
    certificate, key : Path
        The certificate that it shows there.
    """

    def __init__(
        self, config: uvicorn.Config, private: socket.socket, certificate: Path, key: Path
    ) -> None:
        super().__init__(config)
        self._private = private
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen on all sockets."""
        await super().startup(sockets)
        if not self.started:
            return
        config = self.config
        self.servers.append(
            await asyncio.get_running_loop().create_server(
                lambda: config.http_protocol_class(  # type: ignore[call-arg]
                    config=config, server_state=self.server_state, app_state=self.lifespan.state
                ),
                sock=self._private,
                ssl=self._context,
                backlog=config.backlog,
            )
        )
