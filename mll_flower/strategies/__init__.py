"""The Flower strategies: all hubs on one grid, or one hub that gossips with its neighbours.

- `multi_level` and `gossiping`: the two strategies that users start;
- `base`: the rounds that both share, on Flower's own loop;
- `hub`: one hub, which averages the replies of its workers;
- `corrections`: what corrections that go past the paper change;
- `inner_strategy`: a strategy of Flower's that aggregates inside a hub;
- `reports`: what a strategy reports about a round.
"""
