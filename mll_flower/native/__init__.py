"""Machine code that is made while the program runs, through llvmlite (LLVM in a Python package).

Python cannot do a million multiplications in a millisecond, and a C compiler cannot be expected on
a user's machine. So a few hot loops are written down in LLVM's language and compiled when they are
first needed; later processes find the result on disk.

- `vector_code`: words to write such loops with, in vectors of sixteen numbers.
- `machine_code`: compiles them for this CPU, and keeps the result in a private folder.

What is computed stays with those who need it: the training steps in
`mll_flower.training._compiled`, the weighted sums in `mll_flower.models._compiled_sums`.
"""
