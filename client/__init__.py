"""The Python client: producer, consumer and admin over one connection pool."""
