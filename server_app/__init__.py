"""The ServerApp of MLL-Flower: the whole network in one run, or one hub of a deployment."""
