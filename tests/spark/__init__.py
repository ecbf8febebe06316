"""Tests on a real Spark; a package, so that it ends with the last of them."""
