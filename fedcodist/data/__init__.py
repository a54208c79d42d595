"""Data before it is a task: stores of publishers' files, vocabularies, splits, partitions."""
