"""Nothing may be set that nobody obeys: each setting, and the place of the product that reads it (DECISIONS 22).

    a log's          a field of `LogConfig`, which `reconfigure` hands to logs that are open
    a broker's       a field of `BrokerConfig`; where it may be changed at run time, `live` finds it there
    a controller's   a field of `ControllerConfig`
    all others       are looked up by their names, in the modules of `BY_NAME`

A setting without such a place fails here, and so does a place that nobody reads.
"""

import ast
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from tests.architecture import modules
from tests.test_architecture import ROOT
from tidelog.broker.config import FIELDS as OF_BROKERS
from tidelog.broker.config import BrokerConfig
from tidelog.broker.log_settings import FIELDS as OF_LOGS
from tidelog.broker.log_settings import LogSettings, live
from tidelog.controller.config import FIELDS as OF_CONTROLLERS
from tidelog.protocol.settings import AT_START, BROKER, CLUSTER, SETTINGS, TOPIC, Setting
from tidelog.protocol.types import BrokerId
from tidelog.storage.config import LogConfig

BY_NAME = {
    "min.insync.replicas": ("controller/configs.py", "MIN_ISR"),
    "unclean.leader.election.enable": ("controller/recovery.py", "unclean_recovery"),
    "unclean.recovery": ("controller/recovery.py", "unclean_recovery"),
    "flush.mode": ("controller/topics.py", "FLUSH_MODE"),
    "leader.replication.throttled.rate": ("broker/broker.py", "leader.replication.throttled.rate"),
    "reassignment.throttled.rate": ("broker/broker.py", "MOVE_RATE"),
    "num.partitions": ("controller/configs.py", "num.partitions"),
    "default.replication.factor": ("controller/configs.py", "default.replication.factor"),
    "auto.create.topics.enable": ("broker/requests/metadata.py", "AUTO_CREATE"),
    "auto.leader.rebalance.enable": ("controller/active.py", "auto.leader.rebalance.enable"),
    "leader.imbalance.check.interval.seconds": (
        "controller/chores.py",
        "leader.imbalance.check.interval.seconds",
    ),
    "leader.imbalance.per.broker.percentage": (
        "controller/active.py",
        "leader.imbalance.per.broker.percentage",
    ),
    "fast.fencing.enable": ("controller/config.py", "FAST_FENCING"),
}
"""Those that are looked up when they are needed: where, and by which word."""

PROPERTIES = {
    "cleanup_policy": "compacts",
    "compression_type": "codec",
    "message_timestamp_type": "appends_time",
}
"""Fields that are read by a property of theirs."""

CONFIG = BrokerConfig(broker_id=BrokerId(1), controllers=((1, "127.0.0.1", 9192),))


@cache
def words() -> dict[str, set[str]]:
    """What each module of the product reads: attributes, names and texts, assignments left out."""
    return {
        module.path: {word for node in ast.walk(module.tree) if (word := _word(node)) is not None}
        for module in modules(ROOT)
    }


def _word(node: ast.AST) -> str | None:
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        return node.attr
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        return node.id
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return None


def readers(attribute: str) -> list[str]:
    """The modules that read it; who only checks it at the start does not count."""
    return [path for path, read in words().items() if attribute in read and not path.endswith("/config.py")]


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_every_setting_is_read_by_somebody(setting: Setting) -> None:
    key = setting.key
    places = (*OF_BROKERS.get(key, ()), *OF_CONTROLLERS.get(key, ()))
    if key in BY_NAME:
        path, word = BY_NAME[key]
        assert word in words()[path], f"{path} does not read {word}"
    elif key in OF_LOGS:
        assert readers(PROPERTIES.get(OF_LOGS[key], OF_LOGS[key])), f"no log obeys {key}"
    else:
        assert places, f"{key} is the setting of nothing"
    for field in (place.rpartition(".")[2] for place in places):
        assert readers(PROPERTIES.get(field, field)) or key in BY_NAME, f"nobody reads {field}"


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_what_may_be_changed_at_run_time_is_not_read_at_the_start_alone(setting: Setting) -> None:
    if setting.dynamic:
        looked_up = setting.key in BY_NAME or setting.key in OF_LOGS
        assert looked_up or (setting.of == BROKER and setting.key in OF_BROKERS), setting.key
    elif setting.instead == AT_START:
        assert setting.key in {*OF_BROKERS, *OF_CONTROLLERS}


def another(setting: Setting) -> str:
    """A value that it does not have by itself."""
    tried = ("7", "70000", "0.25", "true", "false", "compact", "zstd", "LogAppendTime", "group", "balanced")
    found = next((each for each in tried if _fits(setting, each)), None)
    if found is None:
        found = str(int(setting.default or 0) + 1_048_576)
        assert _fits(setting, found), setting
    return found


def _fits(setting: Setting, value: str) -> bool:
    return value != setting.default and setting.kind.canonical(value) == value


DYNAMIC_OF_BROKERS = [s for s in SETTINGS.values() if s.of == BROKER and s.dynamic]


@pytest.mark.parametrize("level", [BROKER, CLUSTER])
@pytest.mark.parametrize("setting", DYNAMIC_OF_BROKERS, ids=lambda s: s.key)
def test_what_is_set_for_a_broker_is_in_its_config_until_it_is_unset(setting: Setting, level: str) -> None:
    where = (level, "1" if level == BROKER else "", setting.key)
    value = another(setting)
    changed = live(CONFIG, {where: value})
    for path in OF_BROKERS[setting.key]:
        assert text(field(changed, path)) == value
        assert field(changed, path) != field(CONFIG, path)
    assert live(CONFIG, {}) == live(CONFIG, {where: None}) == CONFIG
    assert live(CONFIG, {(BROKER, "2", setting.key): value}) == CONFIG


def test_a_broker_goes_back_to_what_it_was_started_with() -> None:
    started = replace(CONFIG, flush=replace(CONFIG.flush, flush_ms=1234))
    assert live(started, {(BROKER, "1", "flush.ms"): "5"}).flush.flush_ms == 5
    assert live(started, {}).flush.flush_ms == 1234


def test_what_is_read_at_the_start_is_not_changed_behind_its_back() -> None:
    assert live(CONFIG, {(BROKER, "1", "replica.lag.time.max.ms"): "5"}) == CONFIG


@pytest.mark.parametrize("key", OF_LOGS)
def test_what_is_set_for_a_topic_is_in_the_config_of_its_logs_until_it_is_unset(key: str) -> None:
    setting = SETTINGS[key]
    where = (TOPIC, "orders", key) if setting.of == TOPIC else (CLUSTER, "", key)
    settings: dict[tuple[str, str, str], str | None] = {where: another(setting)}
    logs = LogSettings(LogConfig(), settings)
    assert text(getattr(logs.of("orders"), OF_LOGS[key])) == another(setting)
    del settings[where]
    logs.changed()
    assert logs.of("orders") == LogConfig()


def field(config: Any, path: str) -> Any:
    """The field of a config, or of one within it."""
    for name in path.split("."):
        config = getattr(config, name)
    return config


def text(value: object) -> str:
    """As it is written in settings."""
    return (
        str(value).lower()
        if isinstance(value, bool)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )
