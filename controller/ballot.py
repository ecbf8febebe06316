"""What a controller has promised, on its disk: `quorum-state` (design 4.12), and whether it may vote with its log.

    {"version":1,"epoch":7,"leader_id":2,"voted_id":1,"voted_directory_id":"<32 hex>","crc":"1a2b3c4d"}

-1 and null stand for nobody. What it keeps true (I-45): the file is durable when `write` returns, whole after any
crash, and never trusted when a byte of it is not what was written. A controller that has a log but does not know
what it has promised must not vote, or an epoch could have two leaders: it does not start. Nor does one whose log is
damaged or gone: it would vote for somebody who lacks what was committed with its help (I-44).
"""

from typing import Final

import msgspec

from tidelog.controller.facts import METADATA, METADATA_TOPIC_ID
from tidelog.controller.quorum import QuorumState
from tidelog.protocol.errors import CorruptCheckpoint, DamagedLog, UnsupportedFormat
from tidelog.protocol.types import BrokerId, Epoch
from tidelog.storage.data_directory import DataDirectory
from tidelog.storage.files import Directory, read_whole, write_whole
from tidelog.storage.log import Log
from tidelog.storage.names import partition_name
from tidelog.storage.seal import JSON

QUORUM_STATE: Final = "quorum-state"
VERSION: Final = 1
WAY_OUT: Final = (
    "if the other controllers are a majority, move the data directory away, and this one will follow them without a vote; "
    "a lone controller's directory is the cluster, and only a complete copy of this very state may be put back"
)
"""For a controller that may not vote with what it has."""


class _Fields(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    epoch: int
    leader_id: int
    voted_id: int
    voted_directory_id: str | None


class _Version(msgspec.Struct):
    version: int


class Ballot:
    """The file, and what it holds."""

    __slots__ = ("_directory", "state")

    def __init__(self, directory: Directory, state: QuorumState) -> None:
        self._directory = directory
        self.state = state
        """What is durable."""

    @classmethod
    def read(cls, directory: Directory, log_epoch: Epoch) -> "Ballot":
        """At a start. `log_epoch` is that of the metadata log's last batch, -1 if it has none.

        A log that has seen a newer epoch than the file says that the file's promises are over.
        """
        where = f"{directory.path}/{QUORUM_STATE}"
        try:
            content = read_whole(directory, QUORUM_STATE)
        except FileNotFoundError:
            if log_epoch >= 0:
                raise CorruptCheckpoint(
                    f"{where} is missing, and there is a metadata log: {WAY_OUT}"
                ) from None
            return cls(directory, QuorumState())
        state = decode_state(content, where)
        if state is None:
            raise CorruptCheckpoint(f"{where} is not what was written: {WAY_OUT}")
        return cls(directory, state if state.epoch >= log_epoch else QuorumState(log_epoch))

    def write(self, state: QuorumState) -> None:
        """Make it durable, if it is news. Raises `OSError`: then nobody knows what is on the disk."""
        assert state.epoch >= self.state.epoch, (state, self.state)
        if state != self.state:
            write_whole(self._directory, QUORUM_STATE, encode_state(state))
            self.state = state


def log_to_vote_with(data: DataDirectory, wall_ms: int) -> Log:
    """The metadata log, made if there never was one.

    A log that lacks what others count upon, or is gone, is refused: without its votes nothing of that is lost. The log
    is durable before the first promise is, so who has promised something had one, whatever else is gone with it.
    """
    if METADATA in data.report.offline:
        raise data.report.offline[METADATA]
    if METADATA not in data.logs and (METADATA in data.gone or data.directory.exists(QUORUM_STATE)):
        raise DamagedLog(f"{data.directory.path}/{partition_name(METADATA)} is gone; {WAY_OUT}")
    log = data.logs.get(METADATA) or data.create(METADATA, METADATA_TOPIC_ID, wall_ms)
    if damage := data.damage_of(METADATA):
        raise DamagedLog(f"{log} is damaged: {damage}; {WAY_OUT}")
    return log


def encode_state(state: QuorumState) -> bytes:
    """The file that says this."""
    voted = state.voted_directory_id
    fields = _Fields(VERSION, state.epoch, state.leader_id, state.voted_id, voted.hex() if voted else None)
    return JSON.seal(msgspec.json.encode(fields)[:-1])  # without its closing brace: the seal has it


def decode_state(content: bytes, where: str) -> QuorumState | None:
    """What the file says; None when it is not what was written. A newer tidelog's is refused."""
    body = JSON.unseal(content)
    if body is None:
        return None
    try:
        version = msgspec.json.decode(body + b"}", type=_Version).version
        if version > VERSION:
            raise UnsupportedFormat(f"{where} is of version {version}, this tidelog reads {VERSION}")
        fields = msgspec.json.decode(body + b"}", type=_Fields)
        voted = fields.voted_directory_id
        state = QuorumState(
            fields.epoch,
            BrokerId(fields.leader_id),
            BrokerId(fields.voted_id),
            bytes.fromhex(voted) if voted is not None else None,
        )
    except (msgspec.MsgspecError, ValueError):
        return None
    return state if encode_state(state) == content else None
