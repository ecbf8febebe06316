"""Consumer groups: what a coordinator remembers of them, and what it decides about them (docs/GROUPS.md)."""
