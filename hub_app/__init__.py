"""The ServerApp of one hub in a deployment, with its gossip."""
