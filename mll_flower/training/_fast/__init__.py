"""Code that exists for speed alone; each module says what it saves."""
