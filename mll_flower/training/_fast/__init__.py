"""Code that exists for speed alone, apart from the code that says what is computed.

Each module has one entry point and one user or two, says what it saves, and can be deleted at
the cost of that time: the results stay the same up to rounding.
"""
