"""Data before it becomes a task: stores prepared from files, vocabularies, splits, partitions, capacities."""
