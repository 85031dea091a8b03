"""A hub in a process of its own, for tests that freeze or kill it.

For each line ``{"mixing": 1, "deadline": 5.0}`` on its standard input it publishes, exchanges and
mixes, and prints one line of JSON with the result. It ends when its input ends.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from mll_flower.gossip import mix_with_neighbours
from mll_flower.gossip.grpc_client import GrpcGossip
from tests.support.gossip_hubs import RUN, snapshot, tls_files


def main(hub: str, listen: str, neighbours: str, certs: str) -> None:
    tls = tls_files(Path(certs), hub)
    gossip = GrpcGossip(hub, listen, json.loads(neighbours), RUN, tls=tls)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        own = snapshot(hub, request["mixing"])
        gossip.publish(own)
        found = gossip.exchange(request["mixing"], request["deadline"])
        mixed, _ = mix_with_neighbours(own, found)
        answer = {"silent": found.silent, "model": {n: x.tolist() for n, x in mixed.items()}}
        print(json.dumps(answer), flush=True)
    gossip.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
