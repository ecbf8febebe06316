"""The words that processes exchange, and how they travel."""
