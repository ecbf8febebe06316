"""What a topic's logs go by."""

from tidelog.broker.config import BrokerConfig
from tidelog.broker.log_settings import FIELDS, LogSettings, started_with
from tidelog.broker.scrubbing import ScrubSettings
from tidelog.protocol.settings import BROKER, CLUSTER, SETTINGS, TOPIC
from tidelog.protocol.types import BrokerId
from tidelog.storage.config import LogConfig

BASE = LogConfig(segment_bytes=1 << 20)


def test_a_topics_own_setting_wins_then_the_clusters_then_the_brokers() -> None:
    settings = {(CLUSTER, "", "retention.ms"): "1000", (TOPIC, "orders", "retention.ms"): "5"}
    logs = LogSettings(BASE, settings)
    assert (logs.of("orders").retention_ms, logs.of("bills").retention_ms) == (5, 1000)
    assert logs.of("bills").segment_bytes == BASE.segment_bytes


def test_every_kind_of_value_arrives_as_what_it_is() -> None:
    settings = {
        (TOPIC, "orders", "cleanup.policy"): "compact,delete",
        (TOPIC, "orders", "min.cleanable.dirty.ratio"): "0.1",
        (TOPIC, "orders", "retention.bytes"): "-1",
    }
    config = LogSettings(BASE, settings).of("orders")
    assert (config.compacts, config.deletes) == (True, True)
    assert (config.min_cleanable_dirty_ratio, config.retention_bytes) == (0.1, -1)


def test_what_is_the_clusters_alone_holds_for_every_log() -> None:
    logs = LogSettings(BASE, {(CLUSTER, "", "producer.id.expiration.ms"): "5"})
    assert logs.of("orders").producer_id_expiration_ms == 5


def test_what_was_changed_holds_after_that_was_said() -> None:
    settings: dict[tuple[str, str, str], str | None] = {}
    logs = LogSettings(BASE, settings)
    assert logs.of("orders") is BASE
    settings[TOPIC, "orders", "segment.ms"] = "60000"
    logs.changed()
    assert logs.of("orders").segment_ms == 60_000


def test_every_setting_of_a_log_is_one_of_topics_but_one() -> None:
    of = {key: SETTINGS[key].of for key in FIELDS}
    assert of.pop("producer.id.expiration.ms") == CLUSTER
    assert set(of.values()) == {TOPIC}
    for key, name in FIELDS.items():
        default = SETTINGS[key].default
        assert default is not None
        assert str(getattr(LogConfig(), name)) == default, key


def test_a_broker_knows_what_it_was_started_with_otherwise_than_by_default() -> None:
    config = BrokerConfig(
        broker_id=BrokerId(3),
        controllers=((1, "h", 1),),
        open_segments=16,
        replication_throttled_rate_bytes_s=5,
        scrub=ScrubSettings(enable=False),
        log=LogConfig(segment_bytes=4096),
    )
    assert started_with(config) == {
        (BROKER, "3", "open.segments"): "16",
        (BROKER, "3", "leader.replication.throttled.rate"): "5",
        (BROKER, "3", "log.scrubber.enable"): "false",
    }
    assert started_with(BrokerConfig(broker_id=BrokerId(3), controllers=((1, "h", 1),))) == {}
