"""`tidelog up` and `tidelog down`: a cluster of real processes on this machine, and its end."""

from typing import Final

DATA: Final = "tidelog-data"
"""The directory where none is said."""
