"""Independent random streams, one for each (run seed, worker, round, purpose), at low cost.

A simulated run draws from one stream per worker and round, and often only a few numbers from
each, so the cost of setting up a stream counts. The usual way, a `numpy.random.SeedSequence`,
hashes its seed: about 13 microseconds for a stream of eight numbers. Philox is a keyed counter,
and distinct keys already give independent streams, so the hash is left out (`stream`: 5
microseconds). Resetting one generator is cheaper still than making a new one (`Streams`: 1.5
microseconds). `stream` and `Streams` give the same numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

_ZEROS = (0, 0, 0, 0)


class _UnhashedKey(ISeedSequence):
    """Hands Philox its key unchanged, where NumPy's own seed sequences hash it."""

    def __init__(self, *key: int) -> None:
        self.key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint64) -> NDArray[Any]:
        return np.array(self.key, dtype=np.uint64)


def _key(seed: int, worker: int, round: int, purpose: int) -> tuple[int, int]:
    if not (0 <= seed < 1 << 64 and 0 <= worker < 1 << 31 and 0 <= round < 1 << 32):
        raise ValueError(
            f"seed={seed}, worker={worker}, round={round}: must be from 0 to 2**64 - 1, from 0 to "
            "2**31 - 1 and from 0 to 2**32 - 1"
        )
    return seed, purpose << 63 | worker << 32 | round


def stream(seed: int, worker: int, round: int, purpose: int) -> np.random.Generator:
    """Return the generator of one stream; ``purpose`` is 0 or 1."""
    key = _UnhashedKey(*_key(seed, worker, round, purpose))
    return np.random.Generator(np.random.Philox(key))  # type: ignore[arg-type]


class Streams:
    """The streams of `stream` for one seed and one purpose, all from one generator.

    A stream is valid only until the next one is requested.
    """

    def __init__(self, seed: int, purpose: int) -> None:
        self._seed, self._purpose = seed, purpose
        self._generator = stream(seed, 0, 0, purpose)
        self._bits = self._generator.bit_generator
        self._start: dict[str, Any] = {"counter": _ZEROS}
        self._state = {
            "bit_generator": "Philox",
            "state": self._start,
            "buffer": _ZEROS,
            "buffer_pos": len(_ZEROS),  # all used up: the first draw fills the buffer
            "has_uint32": 0,
            "uinteger": 0,
        }

    def __call__(self, worker: int, round: int) -> np.random.Generator:
        """Reset the generator to the start of a stream and return it."""
        self._start["key"] = _key(self._seed, worker, round, self._purpose)
        self._bits.state = self._state
        return self._generator
