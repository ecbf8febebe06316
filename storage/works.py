"""Long work in steps, some of which wait for the disk: whoever takes the steps decides where they wait.

for step in steps: None: it may go on at once; a function: run it first, in a worker thread or here
"""

from collections.abc import Callable, Iterator

Work = Callable[[], None]
"""Something that waits for the disk: it may run in a worker thread, nothing else of the same steps meanwhile."""


def take_here(steps: Iterator[Work | None]) -> None:
    """Take all steps, here and now."""
    for step in steps:
        if step is not None:
            step()
