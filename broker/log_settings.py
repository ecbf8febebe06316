"""What logs and their upkeep go by while everything runs: what is set, else what this broker was started with.

    a log       the topic's setting, else the cluster's, else the broker's own
    a broker    the setting of this broker, else the cluster's, else its own

What it keeps true: what is unset is again what the process was started with.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any, Final

from tidelog.broker.config import FIELDS as OF_A_BROKER
from tidelog.broker.config import BrokerConfig
from tidelog.protocol.settings import BROKER, DEFAULT, SETTINGS, TOPIC, Settings, configured, find
from tidelog.storage.config import LogConfig

FIELDS: Final[Mapping[str, str]] = {field.name.replace("_", "."): field.name for field in fields(LogConfig)}
"""Settings of topics that are settings of their logs, by their names with dots."""


class LogSettings:
    """The settings of the cluster as logs see them. `changed` must be called when they have."""

    def __init__(self, base: LogConfig, settings: Settings) -> None:
        self._base = base
        self._settings = settings
        self._known: dict[str, LogConfig] = {}

    def of(self, topic: str) -> LogConfig:
        """What that topic's logs go by."""
        known = self._known.get(topic)
        if known is None:
            known = self._known[topic] = self._found(topic)
        return known

    def changed(self) -> None:
        """Something was set, or is set no more."""
        self._known.clear()

    def _found(self, topic: str) -> LogConfig:
        changes: dict[str, Any] = {}
        for key, name in FIELDS.items():
            found = find(self._settings, TOPIC, topic, key)
            if found.source != DEFAULT and found.value is not None:
                changes[name] = _typed(found.value, getattr(self._base, name))
        return replace(self._base, **changes) if changes else self._base


def live(config: BrokerConfig, settings: Settings) -> BrokerConfig:
    """The broker's config with what is set for it now, of all that may be changed while it runs."""
    said = {}
    for key in OF_A_BROKER:
        if SETTINGS[key].of == BROKER and SETTINGS[key].dynamic:
            found = find(settings, BROKER, str(config.broker_id), key)
            if found.source != DEFAULT and found.value is not None:
                said[key] = found.value
    return configured(config, OF_A_BROKER, said)


def started_with(config: BrokerConfig) -> Settings:
    """The broker's own settings where they are not the defaults."""
    own = {}
    for key, (path, *_) in OF_A_BROKER.items():
        value = attrgetter(path)(config)
        text = str(value).lower() if isinstance(value, bool) else None if value is None else str(value)
        if BROKER in SETTINGS[key].levels and text != SETTINGS[key].default:
            own[BROKER, str(config.broker_id), key] = text
    return own


def _typed(value: str, like: object) -> object:
    if isinstance(like, float):
        return float(value)
    return int(value) if isinstance(like, int) else value
