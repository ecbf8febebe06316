"""A process that leads and follows partitions and coordinates consumer groups."""
