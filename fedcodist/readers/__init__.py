"""Readers: one module for each file format, from bytes that somebody else wrote to arrays and rows.

Every reader treats its file as hostile: nothing in it is executed or unpacked to disk, what a header claims is checked against the bytes
that are there, and whatever is wrong becomes one DataError that names the place. Readers know nothing of tasks.
"""
