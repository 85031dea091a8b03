"""The rival that ``flwr run`` of this project is timed against: Flower's own FedAvg."""
