"""A hub in a process of its own: reads mixings from stdin, prints what came of them.

A line ``{"mixing": 1, "deadline": 5.0}`` lets it publish, exchange and mix; the answer is one
JSON line. It ends with its stdin.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from mll_flower.gossip import mix_with_neighbours
from mll_flower.gossip.grpc_client import GrpcGossip
from mll_flower.gossip.tls import TlsFiles
from tests.support.gossip_hubs import RUN, snapshot


def main(hub: str, listen: str, neighbours: str, certs: str) -> None:
    home = Path(certs)
    tls = TlsFiles(home / "ca.crt", home / f"hub-{hub}.crt", home / f"hub-{hub}.key")
    gossip = GrpcGossip(hub, listen, json.loads(neighbours), RUN, tls=tls)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        own = snapshot(hub, order["mixing"])
        gossip.publish(own)
        found = gossip.exchange(order["mixing"], order["deadline"])
        mixed, _ = mix_with_neighbours(own, found)
        answer = {"silent": found.silent, "model": {n: x.tolist() for n, x in mixed.items()}}
        print(json.dumps(answer), flush=True)
    gossip.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
