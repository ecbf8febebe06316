"""What operators do with a cluster, by way of any broker (DECISIONS 21)."""

from tidelog.client.io.session import Session


class Admin:
    """A client's `admin`."""

    def __init__(self, session: Session) -> None:
        self._session = session
