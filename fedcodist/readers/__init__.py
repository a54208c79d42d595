"""Readers: one file format a module, from somebody else's bytes to arrays and rows.

Every reader treats its file as hostile: nothing is executed, nothing is unpacked to disk, no claim of a header is believed before it is
compared with the bytes that are there, and what is wrong is one DataError that names the place. Readers know no task.
"""
