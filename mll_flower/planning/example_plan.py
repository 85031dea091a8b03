"""The text that ``mll-flower plan --example`` writes: a plan to begin with."""

from __future__ import annotations

EXAMPLE = """\
# A plan: which tau, q and graph reach the goal soonest, and what is gained over waiting?
# mll-flower plan THIS_FILE answers. The same file is a clock for mll-flower run --clock THIS_FILE.
name = "first-plan"

# A target, a budget, or both.
[goal]
accuracy = 0.85            # or loss = 0.4 (of the test), or metric = ... of a task with another one
# hours = 2                # a budget of time, on the simulated clock
# gigabytes = 5            # a budget of bytes, sent by all together

# What is trained: keys of `mll-flower run --help`. The data may be a stand-in for yours.
[task]
dataset = "digits"
partition = "dirichlet(0.3)"
model = "mlp"
batch-size = 16
learning-rate = 0.1

[clock]
model-megabytes = 20       # what the links carry; without it, the size of the model above
# slot = 0.2               # seconds of a slot; without it, those of the fastest worker's step
# trace = "arrivals.csv"   # worker,round,seconds: measured times from a round's start to the reply
# trace-steps = 20         # steps that each of these replies took

# One table per hub, with its workers.
[[region]]
name = "north"
workers = 4
seconds-per-step = 0.2     # measured; one number, or one per worker; or rates, with slot in [clock]
down-mbit = 100            # from the hub to each worker
up-mbit = 50               # and back
latency-ms = 10
hub-mbit = 1000            # all that the hub sends or receives; without it, nothing limits it
# superlink = "hub.north.example:9092"   # addresses for the network file of a deployment
# gossip = "hub.north.example:9093"

[[region]]
name = "west"
workers = 3
seconds-per-step = [0.3, 0.3, 0.9]
down-mbit = 50
up-mbit = 20
latency-ms = 20

[[region]]
name = "south"
workers = 3
seconds-per-step = 0.8
down-mbit = 20
up-mbit = 10
latency-ms = 30

# Between any two hubs; single links may differ. Without [links], only those that are listed exist.
[links]
mbit = 200
latency-ms = 15

[[link]]
between = ["north", "south"]
mbit = 50
latency-ms = 40
# closed = true            # no such link

# What is tried. All keys may be left out.
[search]
# tau = [4, 8, 16]
# q = [1, 2, 4, 8]
# graphs = ["complete", "links", "ring", "star", "tree", "one-server"]
# mixing = ["metropolis", "complete", "diffusion", "optimal"]
# waiting = [false, true]  # rounds that end when their time is up, and rounds that wait for all
seeds = 5                  # runs per finalist
# most = 24                # settings that are played at most, of either kind
# longest-slots = 4096     # length of a run, at most
"""
