"""`tidelog up` and `tidelog down`: a cluster of real processes on this machine, and its end."""
