"""What starting a broker and starting a controller have in common: settings, logs, signals, and an orderly end."""
