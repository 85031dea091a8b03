"""Drawings of the hub graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mll_flower.algorithm.network import HubNetwork
from mll_flower.results.hub_graph import draw_hub_graph


def test_a_png_is_large_and_not_blank(tmp_path: Path) -> None:
    network = HubNetwork.build(workers_per_hub=[2, 3, 1, 2], graph="path", weights=range(1, 9))
    with Image.open(draw_hub_graph(network, tmp_path / "hubs.png")) as image:
        assert image.format == "PNG"
        pixels = np.asarray(image.convert("L"))
    assert min(pixels.shape) >= 600
    assert (pixels < 200).mean() > 0.01


@pytest.mark.parametrize(
    ("hubs", "graph"), [(1, "path"), (2, "path"), (4, "path"), (9, "grid"), (200, "ring")]
)
def test_hubs_are_labelled_unless_there_are_too_many(hubs: int, graph: str, tmp_path: Path) -> None:
    network = HubNetwork.build(hubs=hubs, workers_per_hub=3, graph=graph)
    path = draw_hub_graph(network, tmp_path / "hubs.svg", title="My hubs")
    drawn = path.read_text()
    assert "<svg" in drawn
    # matplotlib draws text as paths, each after a comment with the text.
    assert "<!-- My hubs -->" in drawn
    assert drawn.count("<!-- ×3 -->") == (hubs if hubs <= 60 else 0)


def test_without_a_title_the_network_is_counted(tmp_path: Path) -> None:
    network = HubNetwork.build(hubs=2, workers_per_hub=3, graph="path")
    drawn = draw_hub_graph(network, tmp_path / "h.svg").read_text()
    assert "<!-- 2 hubs, 6 workers, 1 edge -->" in drawn


def test_given_colours_replace_those_of_the_rates(tmp_path: Path) -> None:
    network = HubNetwork.build(hubs=3)
    path = draw_hub_graph(network, tmp_path / "h.svg", colours=["#ff0000", "#00ff00", "#0000ff"])
    assert all(colour in path.read_text() for colour in ("#ff0000", "#00ff00", "#0000ff"))
    with pytest.raises(ValueError, match="1 colours for 3 hubs: give one per hub"):
        draw_hub_graph(network, tmp_path / "h.svg", colours=["red"])
