"""Clusters for tests: in one process, as real processes, and simulated."""
