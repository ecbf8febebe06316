"""What the nodes of a cluster are told when they start: each setting goes to whoever obeys it."""

from collections.abc import Mapping
from typing import Any

from tidelog.broker.config import FIELDS as OF_BROKERS
from tidelog.controller.config import FIELDS as OF_CONTROLLERS
from tidelog.protocol.errors import InvalidConfig
from tidelog.protocol.settings import CLUSTER, SETTINGS, canonical_key, setting_of
from tidelog.testing.nodes import replication_factors


def settings_for(settings: Mapping[str, Any], brokers: int) -> dict[str, dict[str, str]]:
    """For brokers (`b`) and for controllers (`c`), checked. Topics get as many replicas as there may be (DECISIONS 19)."""
    told = replication_factors(brokers)
    for key, value in settings.items():
        name = canonical_key(key)
        setting = SETTINGS.get(name) or setting_of(CLUSTER, key)
        text = str(value).lower() if isinstance(value, bool) else str(value)
        canonical = setting.kind.canonical(text.strip())
        if canonical is None:
            raise InvalidConfig(f"{name}={text}: it must be {setting.kind.accepted}")
        if name not in OF_BROKERS and name not in OF_CONTROLLERS:
            raise InvalidConfig(
                f"{name}: no process reads it when it starts; set it through `client.admin.alter_configs`"
            )
        for kind, fields in (("b", OF_BROKERS), ("c", OF_CONTROLLERS)):
            if name in fields:
                told[kind][name] = canonical
    return told
