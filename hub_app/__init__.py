"""The Flower app of one hub of a deployment."""
