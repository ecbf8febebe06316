"""What can be the name of a host: said of whatever peers or people give, before anybody connects there."""


def is_host(text: str) -> bool:
    """Whether it can be looked up: a name like `a..b` is refused with a UnicodeError, not with an OSError."""
    try:
        text.encode("idna")
    except UnicodeError:
        return False
    return bool(text) and "\0" not in text
