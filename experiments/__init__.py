"""The paper's experiments and two beyond it: ``python -m experiments FIGURE``.

A figure is a TOML file in ``figures/``: the set-ups to run and the claims to test.
``models.toml`` says what each model learns at each scale, ``published.json`` holds the numbers
that the authors published with their code, and ``texts/`` holds the prose of
docs/reproduction.md, whose tables are written from the runs.
"""
