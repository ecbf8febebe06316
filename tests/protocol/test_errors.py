"""The table of replication/A-errors, and what an error is worth on the other side of a connection."""

import pytest

from tidelog.protocol.errors import (
    BY_CODE,
    NONE,
    DeliveryError,
    NotLeaderOrFollower,
    TidelogError,
    UnknownServerError,
    error_of,
)

YES, NO = True, False
OTHERWISE = None
"""Whether to try again is decided by a rule of its own; `errors` says no."""

TABLE = {
    -1: ("UNKNOWN_SERVER_ERROR", NO),
    1: ("OFFSET_OUT_OF_RANGE", NO),
    2: ("CORRUPT_MESSAGE", YES),
    3: ("UNKNOWN_TOPIC_OR_PARTITION", YES),
    5: ("LEADER_NOT_AVAILABLE", YES),
    6: ("NOT_LEADER_OR_FOLLOWER", YES),
    7: ("REQUEST_TIMED_OUT", YES),
    9: ("REPLICA_NOT_AVAILABLE", YES),
    10: ("MESSAGE_TOO_LARGE", NO),
    12: ("OFFSET_METADATA_TOO_LARGE", NO),
    14: ("COORDINATOR_LOAD_IN_PROGRESS", YES),
    15: ("COORDINATOR_NOT_AVAILABLE", YES),
    16: ("NOT_COORDINATOR", YES),
    17: ("INVALID_TOPIC", NO),
    19: ("NOT_ENOUGH_REPLICAS", YES),
    20: ("NOT_ENOUGH_REPLICAS_AFTER_APPEND", YES),
    21: ("INVALID_REQUIRED_ACKS", NO),
    25: ("UNKNOWN_MEMBER_ID", NO),
    32: ("INVALID_TIMESTAMP", NO),
    35: ("UNSUPPORTED_VERSION", NO),
    36: ("TOPIC_ALREADY_EXISTS", NO),
    37: ("INVALID_PARTITIONS", NO),
    38: ("INVALID_REPLICATION_FACTOR", NO),
    39: ("INVALID_REPLICA_ASSIGNMENT", NO),
    40: ("INVALID_CONFIG", NO),
    41: ("NOT_CONTROLLER", YES),
    42: ("INVALID_REQUEST", NO),
    44: ("POLICY_VIOLATION", NO),
    45: ("OUT_OF_ORDER_SEQUENCE_NUMBER", OTHERWISE),  # 5.3
    46: ("DUPLICATE_SEQUENCE_NUMBER", OTHERWISE),  # a success
    47: ("INVALID_PRODUCER_EPOCH", NO),
    48: ("INVALID_TXN_STATE", NO),
    49: ("INVALID_PRODUCER_ID_MAPPING", NO),
    50: ("INVALID_TRANSACTION_TIMEOUT", NO),
    51: ("CONCURRENT_TRANSACTIONS", YES),
    52: ("TRANSACTION_COORDINATOR_FENCED", NO),
    55: ("OPERATION_NOT_ATTEMPTED", YES),
    56: ("STORAGE_ERROR", YES),
    59: ("UNKNOWN_PRODUCER_ID", OTHERWISE),  # 5.3
    68: ("NON_EMPTY_GROUP", NO),
    69: ("GROUP_ID_NOT_FOUND", NO),
    70: ("FETCH_SESSION_ID_NOT_FOUND", YES),
    71: ("INVALID_FETCH_SESSION_EPOCH", YES),
    74: ("FENCED_LEADER_EPOCH", YES),
    75: ("UNKNOWN_LEADER_EPOCH", YES),
    77: ("STALE_BROKER_EPOCH", NO),
    78: ("OFFSET_NOT_AVAILABLE", YES),
    80: ("PREFERRED_LEADER_NOT_AVAILABLE", NO),
    81: ("GROUP_MAX_SIZE_REACHED", NO),
    82: ("FENCED_INSTANCE_ID", NO),
    83: ("ELIGIBLE_LEADERS_NOT_AVAILABLE", NO),
    84: ("ELECTION_NOT_NEEDED", NO),
    85: ("NO_REASSIGNMENT_IN_PROGRESS", NO),
    87: ("INVALID_RECORD", NO),
    88: ("UNSTABLE_OFFSET_COMMIT", YES),
    89: ("THROTTLED", YES),
    90: ("PRODUCER_FENCED", NO),
    95: ("INVALID_UPDATE_VERSION", NO),
    98: ("SNAPSHOT_NOT_FOUND", YES),
    100: ("UNKNOWN_TOPIC_ID", YES),
    101: ("DUPLICATE_BROKER_REGISTRATION", OTHERWISE),  # 4.5
    102: ("BROKER_ID_NOT_REGISTERED", OTHERWISE),
    103: ("INCONSISTENT_TOPIC_ID", YES),
    104: ("INCONSISTENT_CLUSTER_ID", OTHERWISE),
    105: ("TRANSACTIONAL_ID_NOT_FOUND", NO),
    107: ("INELIGIBLE_REPLICA", OTHERWISE),  # 2.10
    108: ("NEW_LEADER_ELECTED", NO),
    110: ("FENCED_MEMBER_EPOCH", NO),
    111: ("UNRELEASED_INSTANCE_ID", NO),
    112: ("UNSUPPORTED_ASSIGNOR", NO),
    113: ("STALE_MEMBER_EPOCH", YES),
    119: ("INVALID_REGISTRATION", OTHERWISE),
    125: ("INVALID_VOTER_KEY", NO),
}
OURS = {code: error for code, error in BY_CODE.items() if code >= 1000}
every_error = pytest.mark.parametrize("error", BY_CODE.values(), ids=lambda error: error.__name__)


@pytest.mark.parametrize("code", TABLE)
def test_an_error_is_what_the_specification_says(code: int) -> None:
    name, retriable = TABLE[code]
    assert BY_CODE[code].name() == name
    assert BY_CODE[code].retriable is (retriable or False)


def test_every_other_error_is_our_own() -> None:
    assert BY_CODE.keys() - OURS.keys() == TABLE.keys()


def test_no_error_is_called_none() -> None:
    assert NONE == 0
    assert NONE not in BY_CODE


@every_error
def test_every_error_names_the_way_out(error: type[TidelogError]) -> None:
    assert error.way_out().endswith(".")
    assert "\n" not in error.way_out()


@every_error
def test_an_error_that_is_carried_is_raised_again_as_itself(error: type[TidelogError]) -> None:
    again = error_of(error.code, "broker 2 leads orders-0")
    assert type(again) is error
    assert str(again) == "broker 2 leads orders-0"


def test_an_error_that_is_raised_anew_says_all_that_it_said() -> None:
    cause = OSError("the network")
    error = DeliveryError("not acknowledged", undelivered=7)
    error.__cause__ = cause
    error.add_note("and this")
    fresh = error.anew()
    assert type(fresh) is DeliveryError
    assert fresh is not error
    assert (str(fresh), fresh.undelivered, fresh.__cause__) == ("not acknowledged", 7, cause)
    fresh.add_note("and that")
    assert error.__notes__ == ["and this"]


def test_an_error_of_the_future_keeps_its_number() -> None:
    again = error_of(777, "the moon is full")
    assert isinstance(again, UnknownServerError)
    assert str(again) == "error 777 (newer than this tidelog): the moon is full"


def test_an_error_without_a_message_says_the_way_out() -> None:
    assert str(NotLeaderOrFollower()) == NotLeaderOrFollower.way_out()


def test_two_errors_cannot_share_a_code() -> None:
    with pytest.raises(AssertionError, match="Another and NotLeaderOrFollower share 6"):
        type("Another", (TidelogError,), {}, code=6)
    assert BY_CODE[6] is NotLeaderOrFollower


def test_ours_begin_at_1000_and_those_that_never_travel_at_1010() -> None:
    travelling = {error.__name__ for code, error in OURS.items() if code < 1010}
    assert travelling == {"DiskFull", "MalformedFrame", "ConnectionFailed", "NoController"}
