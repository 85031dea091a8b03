"""What a strategy does when a correction that goes past the paper is on; nothing otherwise.

- `corrector`: the rounds of one or more hubs, and their mixing in one place;
- `gossip`: the mixing of one hub that gossips;
- `rates`: the workers' rates, given or measured from their replies.

The algorithm with all corrections, to be read, is `mll_flower.algorithm.corrected_reference`; the
arithmetic of one hub is in `mll_flower.models.corrections`.
"""
