"""Where Spark's Python workers find PySpark: installed, with its bytecode.

Spark puts `$SPARK_HOME/python/lib/pyspark.zip` before everything that is installed, and of what is in an archive Python
keeps no bytecode: each worker, and each query has some of its own, compiles PySpark anew, for a second. It is the same
version that is installed, so tests show Spark a home without the archive.
"""

from importlib.util import find_spec
from pathlib import Path


def without_archive(directory: Path) -> str:
    """A home of the installed Spark, made in that empty directory."""
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    for part in Path(found.origin).parent.iterdir():
        if part.name != "python":
            (directory / part.name).symlink_to(part)
    return str(directory)
