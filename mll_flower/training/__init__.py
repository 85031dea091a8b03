"""Local SGD: how workers take their gradient steps, and how many they may take.

- `engine`: trains the workers of a run, one after another, on one thread. Start here.
- `trainer`: what the engine needs of a trainer. The SGD step itself is in `torch_trainer` (any
  torch module) and in `logistic_trainer` (logistic regression,
  with its gradient written out).
- `hub_rounds`: whole rounds of a hub whose workers are all trained in this process.
- `corrected_rounds`, `worker_correction`: what corrections that go past the paper change in them.
- `budgets`: how many steps a worker takes in a round, and when each of them is due.
- `run_engine`: builds the engine that a run config asks for.
- `evaluation`: loss and metric of a model.
- `process`: set-up of a process that trains: threads, memory, reproducible results.
- `gradient_engine`: whether gradients come from autograd or from compiled code.
- `_compiled`: the gradients of plain stacks of layers, as machine code made for the network.
- `_fast`: other code that exists for speed alone.

Importing this package or `budgets` loads no torch.
"""
