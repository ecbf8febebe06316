"""Settings of a running cluster: what a change of them leads to, and what holds (design 4.9; DECISIONS 4, 10, 22).

    AlterConfigs ──► checked, each resource by itself ──► ConfigChanged ──► partitions whose min_isr differs by it:
                                                                            a topic's at once, others in `unfinished`

What it keeps true:

* All settings of a resource are taken, or none; what is refused changes nothing.
* `min.insync.replicas` stands in the record of every partition, clamped to its replicas (D4, DECISIONS 10). The
  setting itself comes first: `unfinished` says what is missing then. The active controller carries that out in
  steps after a change for the cluster, which reaches all partitions that there are, and when it becomes active.
* `flush.mode` of a topic that exists cannot be changed: its logs do not say yet how they were written (ADR 73).

Functions: they are given an image and answer facts.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from tidelog.controller.batches import Answer, check_distinct, in_batches
from tidelog.controller.election import MIN_ISR_DEFAULT, configured_min_isr, set_min_isr
from tidelog.controller.facts import ConfigChanged, Fact, Place
from tidelog.controller.image import Image, PartitionState
from tidelog.controller.topics import OF_GROUPS, TopicDefaults
from tidelog.protocol.errors import (
    BrokerIdNotRegistered,
    InvalidConfig,
    InvalidRequest,
    PolicyViolation,
    TidelogError,
    UnknownTopicOrPartition,
)
from tidelog.protocol.messages import (
    AlterConfigs,
    AlterConfigsReply,
    ConfigDescribed,
    DescribeConfigs,
    DescribeConfigsReply,
    ResourceAlter,
    ResourceAltered,
    ResourceDescribed,
    ResourceQuery,
)
from tidelog.protocol.settings import (
    BROKER,
    CLEANUP_POLICY,
    CLUSTER,
    CONTROLLER,
    DEFAULT,
    FLUSH_MODE,
    LEVELS,
    MIN_ISR,
    SETTINGS,
    TOPIC,
    UNCLEAN_RECOVERY,
    Settings,
    canonical_key,
    changeable,
    checked,
    find,
    number,
    setting_of,
    unclean_recovery,
)
from tidelog.protocol.types import BrokerId

FOR_NEW_TOPICS: Final = "it holds for topics that are made from now on; those that exist keep theirs"


class Altered(NamedTuple):
    """What a change of one resource's settings leads to."""

    facts: list[Fact]
    """The settings first, then the partitions: every prefix is safe."""
    warning: str | None = None


# ── to change them ────────────────────────────────────────────────────────────────────────────────────


def alter_configs(image: Image, request: AlterConfigs) -> Answer[AlterConfigsReply]:
    """The settings of some resources, one after the other."""
    found = image
    named = [(entry.resource_type, entry.resource_name) for entry in request.resources]
    check_distinct(f"{level} {name}".rstrip() for level, name in named)
    units: list[list[Fact]] = []
    entries = []
    for entry in request.resources:
        try:
            facts, warning = alter(image, entry)
        except TidelogError as error:
            entries.append(ResourceAltered(entry.resource_type, entry.resource_name, error.code, str(error)))
            continue
        entries.append(ResourceAltered(entry.resource_type, entry.resource_name, warning=warning))
        units.append(facts)
        if facts and len(named) > 1:
            # What comes next may be about the same partitions: a topic, and the cluster.
            image = image.copy() if image is found else image
            for fact in facts:
                image.apply(fact)
    batches = [] if request.validate_only else in_batches(units)
    return Answer(batches, AlterConfigsReply(tuple(entries)))


def alter(image: Image, asked: ResourceAlter) -> Altered:
    """The settings of one resource; InvalidConfig says which of them cannot be."""
    level, name = asked.resource_type, asked.resource_name
    check_resource(image, level, name)
    wanted = _wanted(asked)
    settings: Settings = {**image.configs, **{(level, name, key): value for key, value in wanted.items()}}
    if level == TOPIC and name == OF_GROUPS and wanted.get(CLEANUP_POLICY, "compact") != "compact":
        raise PolicyViolation(
            f"{CLEANUP_POLICY} of {name} stays compact: else groups would be deleted by age"
        )
    if level == TOPIC and FLUSH_MODE in wanted:
        _check_flush_mode(image, settings, name)
    facts: list[Fact] = [
        ConfigChanged(level, name, key, value)
        for key, value in wanted.items()
        if image.configs.get((level, name, key)) != value
    ]
    warnings = [f"{FLUSH_MODE}: {FOR_NEW_TOPICS}"] if level == CLUSTER and FLUSH_MODE in wanted else []
    if MIN_ISR in wanted:
        if level == TOPIC:
            facts += _set_min_isr(image, name, settings)
        warnings += _clamped(image, settings, level, name)
    return Altered(facts, "; ".join(warnings) or None)


def check_resource(image: Image, level: str, name: str) -> None:
    """There is such a topic, broker or cluster."""
    if level == TOPIC:
        if name not in image.topic_ids:
            raise UnknownTopicOrPartition(f"there is no topic {name!r}")
    elif level == BROKER:
        if not name.isdecimal() or BrokerId(int(name)) not in image.brokers or name != str(int(name)):
            known = ", ".join(str(broker) for broker in sorted(image.brokers)) or "none"
            raise BrokerIdNotRegistered(f"there is no broker {name!r}; registered: {known}")
    elif level == CLUSTER:
        if name:
            raise InvalidRequest(f"there is one cluster, and it has no name here: {name!r}")
    else:
        raise InvalidRequest(f"{level!r} has no settings: it must be one of {', '.join(LEVELS)}")


def _wanted(asked: ResourceAlter) -> dict[str, str | None]:
    """What is to be set, in the one spelling that is kept."""
    wanted: dict[str, str | None] = {}
    for entry in asked.configs:
        value: str | None = None
        if entry.value is None:
            key = changeable(asked.resource_type, entry.key).key
        else:
            key, value = checked(asked.resource_type, entry.key, entry.value)
        if key in wanted:
            raise InvalidConfig(f"{key}: it is given twice")
        wanted[key] = value
    return wanted


def _check_flush_mode(image: Image, settings: Settings, topic: str) -> None:
    partitions = image.partitions_of(image.topic_ids[topic])
    now = flush_mode_of(partitions)
    then = find(settings, TOPIC, topic, FLUSH_MODE).value
    if now is not None and then != now:
        raise InvalidConfig(
            f"{FLUSH_MODE}={then}: {topic} was made with {FLUSH_MODE}={now}, and only that is accepted: what its "
            f"replicas have on their disks was written so. Make another topic with {FLUSH_MODE}={then}"
        )


def flush_mode_of(partitions: Iterable[PartitionState]) -> str | None:
    """How the records of a topic are flushed, whatever is configured by now; None: it has no partitions."""
    return next(("group" if p.flush_group else "async" for p in partitions), None)


def _set_min_isr(image: Image, topic: str, settings: Settings) -> list[Fact]:
    configured = int(find(settings, TOPIC, topic, MIN_ISR).value or 0)
    facts: list[Fact] = []
    for p in image.partitions_of(image.topic_ids[topic]):
        if p.min_isr != least_of(p, configured):
            facts += set_min_isr(image, p.place, configured)
    return facts


def least_of(p: PartitionState, configured: int) -> int:
    """What `min.insync.replicas` comes to for this partition: who is still to come does not count (4.9)."""
    return min(configured, max(1, len(p.replicas) - len(p.adding)))


def _clamped(image: Image, settings: Settings, level: str, name: str) -> list[str]:
    """A warning where a topic has fewer replicas than are to be in sync."""
    if level != TOPIC:
        return []
    configured = int(find(settings, TOPIC, name, MIN_ISR).value or 0)
    fewest = min(
        (least_of(p, configured) for p in image.partitions_of(image.topic_ids[name])), default=configured
    )
    return (
        [f"{MIN_ISR}={configured}: {name} has {fewest} replicas, so it is {fewest}"]
        if fewest < configured
        else []
    )


def reaches_partitions(request: AlterConfigs) -> bool:
    """Whether it leaves something to be done that `unfinished` tells of."""
    return not request.validate_only and any(
        entry.resource_type == CLUSTER and any(canonical_key(each.key) == MIN_ISR for each in entry.configs)
        for entry in request.resources
    )


def unfinished(image: Image, places: Iterable[Place] | None = None) -> list[list[Fact]]:
    """What a change of `min.insync.replicas` has left undone, of all partitions or of those of these that there are."""
    known = image.partitions
    looked_at = known.values() if places is None else (known[place] for place in places if place in known)
    behind = (
        (p.place, configured)
        for p in looked_at
        if p.min_isr != least_of(p, configured := configured_min_isr(image, p))
    )
    return in_batches(set_min_isr(image, place, configured) for place, configured in behind)


def topic_defaults(image: Image, own: TopicDefaults) -> TopicDefaults:
    """What a new topic has that does not say, by what the cluster is told now; `own` where it is not told.

    `min.insync.replicas` has no default of a controller's own: `unfinished` measures every partition by what is
    committed, so whoever wants another one for the cluster sets it.
    """
    partitions = image.configs.get((CLUSTER, "", "num.partitions"))
    factor = image.configs.get((CLUSTER, "", "default.replication.factor"))
    return replace(
        own,
        partitions=int(partitions) if partitions else own.partitions,
        replication_factor=int(factor) if factor else own.replication_factor,
        min_isr=number(image.configs, CLUSTER, "", MIN_ISR) or MIN_ISR_DEFAULT,
    )


# ── to know them ──────────────────────────────────────────────────────────────────────────────────────


def describe_configs(
    image: Image, request: DescribeConfigs, own: Mapping[str, str] | None = None
) -> DescribeConfigsReply:
    """What holds, and where it stands; `own` are the controller's defaults where they are not the table's."""
    entries = []
    for query in request.resources:
        try:
            found = describe(image, query, own)
        except TidelogError as error:
            failed = ResourceDescribed(query.resource_type, query.resource_name, error.code, str(error))
            entries.append(failed)
        else:
            entries.append(ResourceDescribed(query.resource_type, query.resource_name, configs=tuple(found)))
    return DescribeConfigsReply(tuple(entries))


def describe(
    image: Image, query: ResourceQuery, own: Mapping[str, str] | None = None
) -> list[ConfigDescribed]:
    """The settings of one resource, by name."""
    level, name = query.resource_type, query.resource_name
    check_resource(image, level, name)
    asked = [setting_of(level, key) for key in query.keys] or [
        setting for setting in SETTINGS.values() if level in setting.levels
    ]
    entries = []
    for setting in sorted(asked, key=lambda setting: setting.key):
        value, source = find(image.configs, level, name, setting.key, own)
        if source == DEFAULT and value != setting.default:
            source = CONTROLLER
        effective = _effective(image, level, name, setting.key, value)
        entries.append(
            ConfigDescribed(
                setting.key,
                value,
                source,
                effective if effective != value else None,
                read_only=not setting.dynamic,
                documentation=setting.sentence,
            )
        )
    return entries


def _effective(image: Image, level: str, name: str, key: str, configured: str | None) -> str | None:
    """What holds in truth, of settings that are decided with more than themselves."""
    if level != TOPIC:
        return configured
    partitions = image.partitions_of(image.topic_ids[name])
    if key == MIN_ISR and partitions:
        return str(min(p.min_isr for p in partitions))
    if key == FLUSH_MODE and partitions:
        return flush_mode_of(partitions)
    if key == UNCLEAN_RECOVERY:
        return unclean_recovery(image.configs, name)
    return configured
