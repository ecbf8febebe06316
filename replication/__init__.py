"""What partitions and the metadata log share: fetching, following, waiting."""
