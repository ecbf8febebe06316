"""The `tidelog` command: thin commands over client, broker, controller and storage."""
