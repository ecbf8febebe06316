"""Settings: where they may stand, what they may be, and which of several values holds (DECISIONS 22; EXPERIENCE 3)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.protocol.errors import InvalidConfig
from tidelog.protocol.settings import (
    BROKER,
    CLUSTER,
    LEVELS,
    MIN_ISR,
    SETTINGS,
    TOPIC,
    UNCLEAN,
    UNCLEAN_RECOVERY,
    Setting,
    canonical_key,
    checked,
    find,
    flag,
    number,
    setting_of,
    unclean_recovery,
)
from tidelog.storage.config import MAX_BATCH_BYTES, LogConfig


def refusal(level: str, key: str, value: str) -> str:
    with pytest.raises(InvalidConfig) as refused:
        checked(level, key, value)
    return str(refused.value)


# ── what may be set ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_a_setting_accepts_its_own_default_and_says_what_it_is_for(setting: Setting) -> None:
    assert setting.default is None or setting.kind.canonical(setting.default) == setting.default
    assert setting.sentence.endswith(".")
    assert setting.kind.accepted


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_no_setting_accepts_nonsense_and_the_refusal_names_it(setting: Setting) -> None:
    if setting.dynamic:
        told = refusal(setting.of, setting.key, "nonsense?")
        assert told == f"{setting.key}=nonsense?: it must be {setting.kind.accepted}"


@given(st.sampled_from(sorted(SETTINGS)), st.text(max_size=12))
def test_what_is_accepted_is_accepted_again_in_the_spelling_that_is_kept(key: str, value: str) -> None:
    kept = SETTINGS[key].kind.canonical(value)
    assert kept is None or SETTINGS[key].kind.canonical(kept) == kept


def test_underscores_are_taken_for_dots() -> None:
    assert checked(TOPIC, "min_insync_replicas", "2") == (MIN_ISR, "2")
    assert all(canonical_key(key.replace(".", "_")) == key for key in SETTINGS)


@pytest.mark.parametrize(
    ("key", "value", "kept"),
    [
        (MIN_ISR, " 02 ", "2"),
        ("retention.ms", "-1", "-1"),
        ("cleanup.policy", "Compact, delete,compact", "compact,delete"),
        (UNCLEAN, "TRUE", "true"),
        ("flush.mode", "GROUP", "group"),
    ],
)
def test_a_value_is_kept_in_one_spelling(key: str, value: str, kept: str) -> None:
    assert checked(TOPIC, key, value) == (key, kept)


@pytest.mark.parametrize(
    ("key", "value", "accepted"),
    [
        (MIN_ISR, "0", "a whole number from 1 to 2147483647"),
        (MIN_ISR, "two", "a whole number from 1 to"),
        (MIN_ISR, "1.5", "a whole number from 1 to"),
        (MIN_ISR, "-1", "a whole number from 1 to"),
        ("retention.ms", "-2", "from 0 to 9223372036854775807, or -1 for no limit"),
        ("retention.ms", "9223372036854775808", "from 0 to 9223372036854775807"),
        ("segment.bytes", "1023", "from 1024 to 2147483647"),
        ("flush.mode", "sync", "one of async, group"),
        ("cleanup.policy", "compact,purge", "one or more of delete, compact"),
        ("cleanup.policy", "", "one or more of delete, compact"),
        ("flush.mode", "brotli", "one of async, group"),
    ],
)
def test_a_refusal_names_the_setting_the_value_and_what_would_be_accepted(
    key: str, value: str, accepted: str
) -> None:
    told = refusal(TOPIC, key, value)
    assert told.startswith(f"{key}={value}: it must be")
    assert accepted in told


@pytest.mark.parametrize(
    ("level", "key", "nearest"),
    [
        (TOPIC, "min.insync.replica", MIN_ISR),
        (TOPIC, "retention_mss", "retention.ms"),
        (TOPIC, "unclean.leader.election", UNCLEAN),
        (BROKER, "replication.throttled.rate", "leader.replication.throttled.rate"),
        (CLUSTER, "default.replication.facto", "default.replication.factor"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_known(level: str, key: str, nearest: str) -> None:
    assert refusal(level, key, "1") == f"{key}: there is no such setting; the nearest is {nearest}"


def test_an_unknown_name_that_is_near_to_none_is_refused_with_all_there_are() -> None:
    assert "a broker has broker.heartbeat.interval.ms, " in refusal(BROKER, "qqqqq", "1")


@pytest.mark.parametrize(
    ("level", "key", "where"),
    [
        (BROKER, MIN_ISR, "topic or cluster"),
        (BROKER, "retention.ms", "topic or cluster"),
        (TOPIC, "leader.replication.throttled.rate", "broker or cluster"),
        (TOPIC, "num.partitions", "cluster"),
    ],
)
def test_a_setting_stands_where_it_may_and_nowhere_else(level: str, key: str, where: str) -> None:
    assert refusal(level, key, "3") == f"{key}: it may be set for {where}, not for {level}"


def test_a_level_that_does_not_exist_is_refused_with_those_that_do() -> None:
    assert (
        refusal("group", MIN_ISR, "2") == "'group' has no settings: it must be one of topic, broker, cluster"
    )


@pytest.mark.parametrize(
    ("key", "instead"),
    [
        ("replica.lag.time.max.ms", "when a process starts"),
        ("reassignment.throttled.rate", "tidelog partition move --throttle"),
    ],
)
def test_what_cannot_be_changed_so_is_refused_with_how_it_is_changed(key: str, instead: str) -> None:
    assert instead in refusal(CLUSTER, key, "5")


def test_every_setting_may_stand_at_the_cluster() -> None:
    assert all(
        CLUSTER in setting.levels and set(setting.levels) <= set(LEVELS) for setting in SETTINGS.values()
    )
    assert setting_of(CLUSTER, MIN_ISR).key == MIN_ISR


def test_the_table_says_of_logs_what_logs_say() -> None:
    log = LogConfig()
    names = ("segment_bytes", "segment_ms", "index_interval_bytes", "max_message_bytes")
    for name in names:
        assert SETTINGS[canonical_key(name)].default == str(getattr(log, name)), name
    assert checked(TOPIC, "max.message.bytes", str(MAX_BATCH_BYTES))
    assert refusal(TOPIC, "max.message.bytes", str(MAX_BATCH_BYTES + 1))


# ── what holds ────────────────────────────────────────────────────────────────────────────────────────


def test_a_topic_goes_before_the_cluster_and_the_cluster_before_the_default() -> None:
    settings = {(TOPIC, "orders", MIN_ISR): "3", (CLUSTER, "", MIN_ISR): "1"}
    assert find(settings, TOPIC, "orders", MIN_ISR) == ("3", TOPIC)
    assert find(settings, TOPIC, "invoices", MIN_ISR) == ("1", CLUSTER)
    assert find(settings, CLUSTER, "", MIN_ISR) == ("1", CLUSTER)
    assert find({}, TOPIC, "orders", MIN_ISR) == ("2", "default")


def test_a_broker_goes_before_the_cluster() -> None:
    key = "leader.replication.throttled.rate"
    settings = {(BROKER, "1", key): "100", (CLUSTER, "", key): "200"}
    assert [number(settings, BROKER, name, key) for name in ("1", "2")] == [100, 200]
    assert number({}, BROKER, "1", key) is None


def test_what_stands_where_it_has_no_meaning_does_not_hold() -> None:
    assert find({(BROKER, "1", MIN_ISR): "7"}, TOPIC, "1", MIN_ISR).value == "2"


def test_a_process_may_have_defaults_of_its_own() -> None:
    assert find({}, CLUSTER, "", "default.replication.factor", {"default.replication.factor": "1"}) == (
        "1",
        "default",
    )


def test_a_flag_is_true_or_false() -> None:
    key = "auto.leader.rebalance.enable"
    assert flag({}, CLUSTER, "", key)
    assert not flag({(CLUSTER, "", key): "false"}, CLUSTER, "", key)


@pytest.mark.parametrize(
    ("ours", "older", "cluster_ours", "cluster_older", "then"),
    [
        (None, None, None, None, "none"),
        ("balanced", None, None, None, "balanced"),
        (None, "true", None, None, "aggressive"),
        ("balanced", "true", None, None, "balanced"),
        ("none", "true", None, None, "none"),
        (None, None, None, "true", "aggressive"),
        (None, "false", None, "true", "none"),
        (None, "false", "aggressive", None, "none"),
        (None, "true", "balanced", None, "balanced"),
        (None, "true", "none", None, "aggressive"),
        ("none", None, None, "true", "none"),
        (None, None, "balanced", "true", "balanced"),
    ],
)
def test_of_the_two_settings_of_unclean_recovery_the_nearer_wins_and_then_ours(
    ours: str | None, older: str | None, cluster_ours: str | None, cluster_older: str | None, then: str
) -> None:
    settings = {
        (TOPIC, "orders", UNCLEAN_RECOVERY): ours,
        (TOPIC, "orders", UNCLEAN): older,
        (CLUSTER, "", UNCLEAN_RECOVERY): cluster_ours,
        (CLUSTER, "", UNCLEAN): cluster_older,
    }
    assert unclean_recovery(settings, "orders") == then
