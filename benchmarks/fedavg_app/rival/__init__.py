"""The rival of the benchmark: FedAvg as Flower has it."""
