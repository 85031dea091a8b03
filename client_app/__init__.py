"""The ClientApp of MLL-Flower: the workers of a simulation, or one worker of a deployment."""
