"""Search on held-out data: a space, a study of trials, and the winner on fresh seeds."""
