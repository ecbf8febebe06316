"""A partition's log on disk: segments, indexes, epochs, checkpoints, recovery."""
