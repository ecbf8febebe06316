"""Tidelog: a replicated commit log for Python, small enough to read."""

from pathlib import Path as _Path

__version__ = "0.1.0"

# In a checkout the components live at the top level of the repository, so that its tree shows the
# architecture; an installed wheel carries them inside this package and skips this (docs/adr/0001).
_root = _Path(__file__).resolve().parents[2]
if (_root / "pyproject.toml").is_file() and (_root / "broker" / "__init__.py").is_file():
    __path__.append(str(_root))
del _root
