"""Many runs: played several at a time, kept, continued where they were stopped, and judged.

``mll-flower sweep`` and the paper's experiments (``python -m experiments``) are users of this room:
`setups` and `sweep_file` say what is run, `cache` where a run is kept, `runner` and `playing` play
the runs, `estimate` says how long that takes, `state` writes how far they are, `curves` and
`verdicts` say what they show, and `drawing` draws it.
"""
