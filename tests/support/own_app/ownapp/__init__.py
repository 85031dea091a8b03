"""A Flower app of few lines and deterministic numbers, for deployments in tests."""
