"""Code that exists for speed alone, apart from the code that says what is computed.

Each module is used in one or two places and says how much time it saves. Without it a run is
slower, and its results are the same up to rounding.
"""
