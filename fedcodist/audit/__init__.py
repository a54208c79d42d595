"""Is this public data any good? What can be said of it before a federation is trained with it."""
