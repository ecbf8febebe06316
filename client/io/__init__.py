"""The client's faces to the world: connections, the session over them, and what users hold."""
