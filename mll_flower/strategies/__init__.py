"""The Flower strategies: all hubs on one grid, or one hub that gossips with its neighbours."""
