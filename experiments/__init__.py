"""The paper's experiments, and two beyond it: figures as configs, runs, verdicts, documentation.

``mll-flower reproduce FIGURE`` is the way in. Figures are TOML files in ``figures/``; what
each model learns, at which scale, is in ``models.toml``; ``published.json`` holds the numbers
that the authors published with their code.
"""
