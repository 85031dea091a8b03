"""Read and check a network file: the TOML file that describes a deployment.

Every hub, worker and operator has a copy of it. Every mistake in it is an error that names the
key, the value and the remedy.
"""

from __future__ import annotations

import ipaddress
import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import networkx as nx

from mll_flower.algorithm.corrections import SETTINGS, Corrections
from mll_flower.algorithm.graphs import GRAPHS, hub_graph
from mll_flower.deployment.example_network import example_network
from mll_flower.deployment.network_entries import (
    AUTO_LEAST,
    AUTO_MOST,
    HubEntry,
    NetworkFile,
    NetworkFileError,
    Value,
)
from mll_flower.deployment.trust import TRUST_KEYS, Trust, read_trust
from mll_flower.gossip.tls import SUFFIX, TlsFiles
from mll_flower.models.subnetwork_average import ABSENT_RULES, AbsentRule
from mll_flower.strategies.corrections.settings import check_gossip, check_together

__all__ = ["HubEntry", "NetworkFile", "NetworkFileError", "example_network", "load_network"]

ROUND_MARGIN = 10.0
"""Seconds of a round beyond its tau slots, by default: what Flower takes to start workers."""

_TOP = {
    "name", "tau", "q", "slot", "rounds", "slots", "round-deadline", "round-deadline-cap",
    "gossip-deadline", "mixing", "absent", "certs", "edges", "graph", "hub", "run-config", "app",
    *TRUST_KEYS, *SETTINGS,
}  # fmt: skip
_HUB = {"id", "superlink", "gossip", "workers", "listen", "ca", "certificate", "key"}
_ID = re.compile(r"[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?")


def load_network(path: str | Path) -> NetworkFile:
    """Read and check a network file; relative paths in it start at its directory."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NetworkFileError(
            f"{path}: cannot be read ({error}); give the path of the network's TOML file"
        ) from error
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise NetworkFileError(f"{path}: not TOML: {error}") from error
    return _Reader(path, table).network()


class _Reader:
    """Turns the tables of one file into a `NetworkFile`, or raises an error with a remedy."""

    def __init__(self, path: Path, table: Mapping[str, Any]) -> None:
        self.path = path
        self.top = self.known_keys(table, _TOP, "")

    def error(self, where: str, problem: str, remedy: str) -> NetworkFileError:
        return NetworkFileError(f"{self.path}: {where}: {problem}; {remedy}")

    def known_keys(self, table: Mapping[str, Any], keys: set[str], where: str) -> dict[str, Any]:
        """Return the table with its keys spelled with hyphens; unknown ones are errors."""
        found: dict[str, Any] = {}
        for key, value in table.items():
            name = key.replace("_", "-")
            if name not in keys:
                listed = ", ".join(sorted(keys))
                raise self.error(f"{where}{key}", "unknown key", f"the known ones are {listed}")
            if name in found:
                raise self.error(f"{where}{key}", "given twice", "keep one of the two spellings")
            found[name] = value
        return found

    def text(self, table: Mapping[str, Any], key: str, where: str = "", default: Any = None) -> str:
        value = table.get(key, default)
        if value is None:
            raise self.error(f"{where}{key}", "missing", f'add {key} = "..."')
        if not isinstance(value, str) or not value:
            raise self.error(f"{where}{key}", f"{value!r}", "write a non-empty string")
        return value

    def count(self, table: Mapping[str, Any], key: str, where: str = "") -> int:
        value = table.get(key)
        if value is None:
            raise self.error(f"{where}{key}", "missing", f"add {key} = 1 or more")
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.error(f"{where}{key}", f"{value!r}", "use a whole number of at least 1")
        return value

    def seconds(self, key: str, default: float | None = None) -> float:
        value = self.top.get(key, default)
        if value is None:
            raise self.error(key, "missing", f"add {key} = a number of seconds")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value <= 0:
            raise self.error(key, f"{value!r}", "use a positive number of seconds")
        return float(value)

    def resolve(self, name: str) -> Path:
        return self.path.parent / Path(name).expanduser()

    def network(self) -> NetworkFile:
        tau, q, slot = self.count(self.top, "tau"), self.count(self.top, "q"), self.seconds("slot")
        certs = self.resolve(self.text(self.top, "certs", default="certs"))
        hubs = self.hubs(certs)
        auto = self.top.get("round-deadline") == "auto"
        round_deadline = self.round_deadline(tau * slot, auto)
        # How far two hubs can be apart after q rounds, each at least tau slots long.
        skew = q * (round_deadline - tau * slot)
        name = self.text(self.top, "name")
        if not _ID.fullmatch(name):
            raise self.error("name", f"{name!r}", "use lower-case letters, digits and hyphens")
        trust = read_trust(self.top, {hub.id: hub.workers for hub in hubs}, self.error)
        return NetworkFile(
            path=self.path,
            name=name,
            tau=tau,
            q=q,
            slot=slot,
            rounds=self.rounds(tau),
            round_deadline=round_deadline,
            gossip_deadline=self.seconds("gossip-deadline", skew + ROUND_MARGIN),
            mixing=self.mixing(),
            absent=self.absent(),
            certs=certs,
            hubs=hubs,
            edges=self.edges([hub.id for hub in hubs]),
            run_config=self.run_config(),
            # Only hubs have the app's folder: they check it.
            app=self.resolve(self.text(self.top, "app")) if "app" in self.top else None,
            trust=trust,
            corrections=self.corrections(tau, trust),
            auto_deadline=auto,
        )

    def round_deadline(self, period: float, auto: bool) -> float:
        """Return the deadline of a round, or the longest that a hub may choose."""
        key, least = "round-deadline", period
        if auto:
            key, least = "round-deadline-cap", period + AUTO_LEAST
            deadline = self.seconds(key, period + AUTO_MOST)
        elif "round-deadline-cap" in self.top:
            raise self.error(
                "round-deadline-cap",
                "is the limit of deadlines that hubs choose themselves",
                'write round-deadline = "auto", or remove it',
            )
        elif isinstance(self.top.get(key), str):
            raise self.error(key, f"{self.top[key]!r}", 'use a number of seconds, or "auto"')
        else:
            deadline = self.seconds(key, period + ROUND_MARGIN)
        if deadline < least:
            beyond = f" + {AUTO_LEAST:g}" if auto else ""
            raise self.error(
                key,
                f"{deadline} s is shorter than tau * slot{beyond} = {least} s",
                "workers need that time for their steps, and more to answer: raise it",
            )
        return deadline

    def rounds(self, tau: int) -> int:
        if ("rounds" in self.top) == ("slots" in self.top):
            raise self.error("rounds / slots", "give one of the two", "it is the length of the run")
        if "rounds" in self.top:
            return self.count(self.top, "rounds")
        slots = self.count(self.top, "slots")
        if slots % tau:
            nearest = max(1, round(slots / tau)) * tau
            raise self.error("slots", f"{slots} is not a multiple of tau = {tau}", f"use {nearest}")
        return slots // tau

    def mixing(self) -> str | Path:
        value = self.text(self.top, "mixing", default="metropolis")
        if value == "metropolis":
            return value
        path = self.resolve(value)
        if not path.is_file():
            raise self.error(
                "mixing",
                f"{value!r}: no such file",
                'use "metropolis", or the path of a file that holds H (the other rules must know '
                "the whole network: compute H once and write it to a file)",
            )
        return path

    def absent(self) -> str:
        value = self.text(self.top, "absent", default="keep")
        if value not in ABSENT_RULES:
            raise self.error("absent", f"{value!r}", f"use one of {', '.join(ABSENT_RULES)}")
        return value

    def corrections(self, tau: int, trust: Trust) -> Corrections:
        try:
            corrections = Corrections.from_keys(self.top)
            check_gossip(corrections)
            absent = cast(AbsentRule, self.absent())
            check_together(corrections, tau, absent, trust.inner_strategy)
        except ValueError as error:
            raise NetworkFileError(f"{self.path}: {error}") from None
        return corrections

    def hubs(self, certs: Path) -> tuple[HubEntry, ...]:
        tables = self.top.get("hub")
        if not isinstance(tables, list) or not tables:
            raise self.error("hub", "missing", "add a [[hub]] table for each hub")
        hubs: list[HubEntry] = []
        taken: dict[str, str] = {}
        for number, table in enumerate(tables, start=1):
            if not isinstance(table, dict):
                raise self.error("hub", f"{table!r} is not a table", "write [[hub]] tables")
            where = f"hub {number}: "
            hub = self.hub(self.known_keys(table, _HUB, where), where, certs)
            if any(other.id == hub.id for other in hubs):
                raise self.error(f"hub {number}: id", f"{hub.id!r} is taken", "choose another")
            for key, address in (("superlink", hub.superlink), ("gossip", hub.gossip)):
                if address in taken:
                    raise self.error(
                        f"hub {hub.id}: {key}",
                        f"{address!r} is already {taken[address]}",
                        "give each an address of its own",
                    )
                taken[address] = f"the {key} of hub {hub.id}"
            hubs.append(hub)
        return tuple(hubs)

    def hub(self, table: Mapping[str, Any], where: str, certs: Path) -> HubEntry:
        id = self.text(table, "id", where)
        if not _ID.fullmatch(id):
            raise self.error(
                f"{where}id", f"{id!r}", "use at most 50 lower-case letters, digits and hyphens"
            )
        files = {
            "ca": certs / "ca.crt",
            "certificate": certs / f"hub-{id}.crt",
            "key": certs / f"hub-{id}.key",
        }
        for key in files:
            if key in table:
                files[key] = self.resolve(self.text(table, key, where))
        return HubEntry(
            id=id,
            superlink=self.address(table, "superlink", where),
            gossip=self.address(table, "gossip", where),
            workers=self.count(table, "workers", where),
            listen=self.text(table, "listen", where).strip("[]") if "listen" in table else "",
            tls=TlsFiles(**files),
        )

    def address(self, table: Mapping[str, Any], key: str, where: str) -> str:
        value = self.text(table, key, where)
        host, _, port = value.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise self.error(f"{where}{key}", f"{value!r}", 'write "host:port", port 1 to 65535')
        bare = host.strip("[]")
        if ":" in host and not (host.startswith("[") and host.endswith("]")):
            raise self.error(f"{where}{key}", f"{value!r}", f'write "[{bare}]:{port}" for IPv6')
        try:
            is_wildcard = ipaddress.ip_address(bare).is_unspecified
        except ValueError:
            is_wildcard = False
            if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", bare):
                raise self.error(
                    f"{where}{key}", f"{value!r}", "use a host name or an IP address"
                ) from None
        if is_wildcard:
            raise self.error(
                f"{where}{key}",
                f"{value!r} is not an address that others can reach",
                f'write the one that they use, and listen = "{bare}"',
            )
        if bare.lower().endswith(SUFFIX):
            raise self.error(
                f"{where}{key}",
                f"{value!r}: names under {SUFFIX} stand for hubs in certificates",
                "use another host name",
            )
        return value.lower()

    def edges(self, ids: list[str]) -> tuple[tuple[str, str], ...]:
        if "graph" in self.top and "edges" in self.top:
            raise self.error("edges / graph", "both are given", "keep one of the two")
        edges = self.graph_edges(ids) if "graph" in self.top else self.listed_edges(ids)
        graph: nx.Graph[str] = nx.Graph()
        graph.add_nodes_from(ids)
        graph.add_edges_from(edges)
        if not nx.is_connected(graph):
            parts = sorted(sorted(part) for part in nx.connected_components(graph))
            raise self.error(
                "edges", f"the hub graph is not connected: {parts}", "add edges between these parts"
            )
        return tuple(edges)

    def graph_edges(self, ids: list[str]) -> list[tuple[str, str]]:
        name = self.text(self.top, "graph")
        try:
            graph = hub_graph(name if name in GRAPHS else self.resolve(name), len(ids))
        except (ValueError, OSError) as error:
            listed = ", ".join(GRAPHS)
            remedy = f"use one of {listed}, a graph's file, or list edges"
            raise self.error("graph", f"{name!r}: {error}", remedy) from error
        return [(ids[a], ids[b]) for a, b in graph.edges]

    def listed_edges(self, ids: list[str]) -> list[tuple[str, str]]:
        value = self.top.get("edges", [])
        if not isinstance(value, list):
            raise self.error("edges", f"{value!r}", 'write edges = [["a", "b"], ...]')
        edges: list[tuple[str, str]] = []
        for edge in value:
            if not isinstance(edge, list) or len(edge) != 2:
                raise self.error("edges", f"{edge!r}", "an edge is a pair of hub ids")
            for end in edge:
                if end not in ids:
                    raise self.error(
                        "edges", f"{edge}: no hub {end!r}", f"the hubs are {', '.join(ids)}"
                    )
            a, b = edge
            if a == b:
                raise self.error("edges", f"{edge} is a self-loop", "remove it")
            if (a, b) in edges or (b, a) in edges:
                raise self.error("edges", f"{edge} is given twice", "remove one")
            edges.append((a, b))
        return edges

    def run_config(self) -> dict[str, Value]:
        value = self.top.get("run-config", {})
        if not isinstance(value, dict):
            raise self.error("run-config", f"{value!r}", "write a [run-config] table")
        for key, entry in value.items():
            if not isinstance(entry, bool | int | float | str):
                raise self.error(
                    f"run-config: {key}", f"{entry!r}", "use a number, a string, true or false"
                )
        return dict(value)
