"""Search on held-out data: a space, a study of trials, and its winner on fresh seeds."""
