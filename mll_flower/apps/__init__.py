"""What this project's Flower apps do: the whole network in one run, one hub, a worker.

The apps themselves are ``server_app``, ``client_app`` and ``hub_app`` beside this package: a
few lines each, so that Flower finds them.
"""
