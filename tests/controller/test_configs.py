"""Settings of a running cluster: what may change, what a change leads to, what holds (design 4.9; DECISIONS 4, 10, 22)."""

import pytest

from tests.controller.book import OTHER, TOPIC, Book, partition
from tests.controller.planted import Bug
from tests.controller.sentences import noticed
from tidelog.controller import configs
from tidelog.controller.config import FIELDS
from tidelog.controller.configs import (
    alter_configs,
    describe_configs,
    reaches_partitions,
    topic_defaults,
    unfinished,
)
from tidelog.controller.election import MIN_ISR_DEFAULT
from tidelog.controller.facts import ConfigChanged, PartitionChanged, TopicCreated
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
    ConfigAlter,
    DescribeConfigs,
    ResourceAlter,
    ResourceAltered,
    ResourceQuery,
)
from tidelog.protocol.settings import FLUSH_MODE, MIN_ISR, SETTINGS, UNCLEAN, UNCLEAN_RECOVERY
from tidelog.testing import Cluster

ORDERS = ("topic", "orders")
CLUSTER = ("cluster", "")


def asked(of: tuple[str, str], **values: str | None) -> ResourceAlter:
    return ResourceAlter(
        *of, tuple(ConfigAlter(key.replace("_", "."), value) for key, value in values.items())
    )


def alter(
    book: Book, *resources: ResourceAlter, validate_only: bool = False, finish: bool = True
) -> tuple[ResourceAltered, ...]:
    request = AlterConfigs(resources, validate_only)
    answer = alter_configs(book.image, request)
    for facts in answer.batches:
        book.carry_out(facts)
    if finish and reaches_partitions(request):
        for facts in unfinished(book.image):
            book.carry_out(facts)
    return answer.reply.resources


def holds(book: Book, of: tuple[str, str], key: str) -> tuple[str | None, str, str | None]:
    [entry] = describe_configs(book.image, DescribeConfigs((ResourceQuery(*of, (key,)),))).resources
    [found] = entry.configs
    return found.value, found.source, found.effective


# ── what a change leads to ────────────────────────────────────────────────────────────────────────────


def test_a_setting_is_set_and_is_not_set_any_more() -> None:
    book = Book(partition((1, 2)))
    alter(book, asked(ORDERS, retention_ms="5"))
    assert book.image.configs == {(*ORDERS, "retention.ms"): "5"}
    alter(book, asked(ORDERS, retention_ms=None))
    assert book.image.configs == {}


def test_all_settings_of_a_resource_are_taken_or_none() -> None:
    book = Book(partition((1, 2)))
    [entry] = alter(book, asked(ORDERS, retention_ms="5", segment_bytes="1"))
    assert (entry.error, book.image.configs) == (InvalidConfig.code, {})
    assert entry.message == "segment.bytes=1: it must be a whole number from 1024 to 2147483647"


def test_each_resource_is_decided_by_itself() -> None:
    book = Book(partition((1, 2)))
    entries = alter(book, asked(("topic", "nobody"), retention_ms="5"), asked(ORDERS, retention_ms="5"))
    assert [entry.error for entry in entries] == [UnknownTopicOrPartition.code, 0]
    assert book.image.configs == {(*ORDERS, "retention.ms"): "5"}


def test_what_is_only_validated_changes_nothing() -> None:
    book = Book(partition((1, 2)))
    before = book.image.to_bytes()
    good, bad = asked(ORDERS, min_insync_replicas="1"), asked(CLUSTER, min_insync_replicas="0")
    assert [entry.error for entry in alter(book, good, bad, validate_only=True)] == [0, InvalidConfig.code]
    assert book.image.to_bytes() == before


def test_what_is_set_already_is_no_fact() -> None:
    book = Book(partition((1, 2)))
    alter(book, asked(ORDERS, retention_ms="5", min_insync_replicas="1"))
    again = AlterConfigs((asked(ORDERS, retention_ms="05", min_insync_replicas="1"),))
    assert alter_configs(book.image, again).batches == []


def test_a_decision_changes_nothing() -> None:
    book = Book(partition((1, 2)))
    before = book.image.to_bytes()
    alter_configs(
        book.image,
        AlterConfigs((asked(CLUSTER, min_insync_replicas="3"), asked(ORDERS, min_insync_replicas="1"))),
    )
    assert book.image.to_bytes() == before


# ── min.insync.replicas ───────────────────────────────────────────────────────────────────────────────


def test_min_isr_reaches_the_record_of_every_partition_of_the_topic() -> None:
    book = Book(partition((1,), (2,)), partition((1, 2), index=1))
    alter(book, asked(ORDERS, min_insync_replicas="1"))
    assert [(p.min_isr, p.elr, p.leader_epoch) for p in book.image.partitions_of(TOPIC)] == [(1, (), 5)] * 2


def test_min_isr_of_the_cluster_reaches_the_topics_that_have_none_of_their_own() -> None:
    book = Book(partition((1, 2)))
    book.say(TopicCreated(OTHER, "invoices"), partition((1, 2), topic=OTHER).created())
    alter(book, asked(ORDERS, min_insync_replicas="3"))
    alter(book, asked(CLUSTER, min_insync_replicas="1"))
    assert (book.state().min_isr, book.image.partitions[OTHER, 0].min_isr) == (3, 1)


def test_a_topic_without_min_isr_of_its_own_has_the_clusters_again() -> None:
    book = Book(partition((1, 2)))
    alter(book, asked(CLUSTER, min_insync_replicas="1"), asked(ORDERS, min_insync_replicas="3"))
    assert book.state().min_isr == 3
    alter(book, asked(ORDERS, min_insync_replicas=None))
    assert book.state().min_isr == 1
    alter(book, asked(CLUSTER, min_insync_replicas=None))
    assert book.state().min_isr == MIN_ISR_DEFAULT == int(SETTINGS[MIN_ISR].default or 0)


def test_what_a_topic_and_the_cluster_are_given_at_once_follows_one_another() -> None:
    for order in (1, -1):
        book = Book(partition((1, 2)))
        alter(
            book, *[asked(CLUSTER, min_insync_replicas="3"), asked(ORDERS, min_insync_replicas="1")][::order]
        )
        assert book.state().min_isr == 1


def test_min_isr_is_clamped_to_the_replicas_and_the_answer_says_so() -> None:
    book = Book(partition((1, 2), replicas=(1, 2)))
    [entry] = alter(book, asked(ORDERS, min_insync_replicas="3"))
    assert entry.warning == "min.insync.replicas=3: orders has 2 replicas, so it is 2"
    assert book.state().min_isr == 2


def test_replicas_that_are_still_to_come_do_not_count_for_min_isr() -> None:
    book = Book(partition((1, 2), adding=(3,)))
    alter(book, asked(ORDERS, min_insync_replicas="3"))
    assert book.state().min_isr == 2


def test_what_a_controller_left_undone_is_known_to_the_next() -> None:
    book = Book(partition((1,), (2,)), partition((1, 2), index=1), partition((1, 2), index=2))
    [facts] = alter_configs(book.image, AlterConfigs((asked(CLUSTER, min_insync_replicas="1"),))).batches
    assert [type(fact) for fact in facts] == [ConfigChanged]
    book.carry_out(facts)
    [left] = unfinished(book.image)
    assert [p.min_isr for p in left if isinstance(p, PartitionChanged)] == [1, 1, 1]
    book.carry_out(left[:1])
    assert [p.min_isr for p in book.image.partitions_of(TOPIC)] == [1, 2, 2]
    assert unfinished(book.image) == [left[1:]]
    assert unfinished(book.image, [(TOPIC, 2), (TOPIC, 7)]) == [left[2:]]
    book.carry_out(left[1:])
    assert unfinished(book.image) == []


@pytest.mark.slow
def test_a_change_of_many_partitions_is_more_than_one_batch_and_every_prefix_is_safe() -> None:
    many = [partition((1, 2), index=index) for index in range(6000)]
    book = Book(*many)
    more = [partition((1,), (2,), index=index, topic=OTHER) for index in range(6000)]
    book.say(TopicCreated(OTHER, "invoices"), *(p.created() for p in more))
    alter(book, asked(CLUSTER, min_insync_replicas="1"), finish=False)
    batches = unfinished(book.image)
    assert [sum(map(len, batches)), len(batches) > 1] == [12_000, True]
    book.carry_out(batches[0])
    assert sum(map(len, unfinished(book.image))) == 12_000 - len(batches[0])
    for facts in batches[1:]:
        book.carry_out(facts)
    assert unfinished(book.image) == []


def test_a_new_topic_has_what_the_cluster_is_told_now() -> None:
    book, own = Book(), TopicDefaults(partitions=4, replication_factor=1, min_isr=1)
    assert topic_defaults(book.image, own) == TopicDefaults(partitions=4, replication_factor=1, min_isr=2)
    alter(book, asked(CLUSTER, num_partitions="7", default_replication_factor="2", min_insync_replicas="3"))
    assert topic_defaults(book.image, own) == TopicDefaults(partitions=7, replication_factor=2, min_isr=3)


def test_a_controller_is_not_started_with_a_min_isr_that_nobody_would_obey() -> None:
    assert MIN_ISR not in FIELDS


# ── flush.mode ────────────────────────────────────────────────────────────────────────────────────────


def test_the_flush_mode_of_a_topic_that_exists_cannot_be_changed() -> None:
    """ADR 73, "Open": what lies on its disks does not say yet how it was written."""
    book = Book(partition((1, 2)))
    [entry] = alter(book, asked(ORDERS, flush_mode="group"))
    assert entry.message == (
        "flush.mode=group: orders was made with flush.mode=async, and only that is accepted: what its replicas have "
        "on their disks was written so. Make another topic with flush.mode=group"
    )
    assert (book.state().flush_group, book.image.configs) == (False, {})


@pytest.mark.parametrize("policy", ["delete", "compact,delete", None])
def test_the_log_of_groups_stays_compacted(policy: str | None) -> None:
    book = Book(partition((1, 2)))
    book.say(TopicCreated(OTHER, OF_GROUPS), partition((1, 2), topic=OTHER).created())
    groups = "topic", OF_GROUPS
    assert alter(book, asked(groups, cleanup_policy="compact", retention_ms="1000"))[0].error == 0
    [entry] = alter(book, asked(groups, cleanup_policy=policy))
    assert entry.error == PolicyViolation.code
    assert "groups would be deleted" in (entry.message or "")
    assert book.image.configs["topic", OF_GROUPS, "cleanup.policy"] == "compact"


def test_a_topic_may_be_told_the_flush_mode_that_it_has() -> None:
    book = Book(partition((1, 2), flush_group=True))
    assert alter(book, asked(ORDERS, flush_mode="group"))[0].error == 0
    assert book.image.configs == {(*ORDERS, FLUSH_MODE): "group"}


def test_a_topic_does_not_lose_its_flush_mode_with_the_setting() -> None:
    book = Book(partition((1, 2), flush_group=True))
    alter(book, asked(ORDERS, flush_mode="group"))
    assert alter(book, asked(ORDERS, flush_mode=None))[0].error == InvalidConfig.code
    alter(book, asked(CLUSTER, flush_mode="group"))
    assert alter(book, asked(ORDERS, flush_mode=None))[0].error == 0


def test_a_topic_is_not_left_to_a_flush_mode_that_the_cluster_gets_before_it() -> None:
    book = Book(partition((1, 2)))
    entries = alter(book, asked(CLUSTER, flush_mode="group"), asked(ORDERS, flush_mode=None))
    assert [entry.error for entry in entries] == [0, InvalidConfig.code]


def test_the_flush_mode_of_the_cluster_holds_for_new_topics_and_the_answer_says_so() -> None:
    book = Book(partition((1, 2)))
    [entry] = alter(book, asked(CLUSTER, flush_mode="group"))
    assert "topics that are made from now on" in (entry.warning or "")
    assert not book.state().flush_group
    assert holds(book, ORDERS, FLUSH_MODE) == ("group", "cluster", "async")


# ── what is refused ───────────────────────────────────────────────────────────────────────────────────

IMPOSSIBLE: dict[str, tuple[ResourceAlter, type[TidelogError], str]] = {
    "a broker's min_isr": (asked(("broker", "1"), min_insync_replicas="2"), InvalidConfig, "topic or cluster, not for broker"),
    "a topic that is not there": (asked(("topic", "nobody")), UnknownTopicOrPartition, "no topic 'nobody'"),
    "a broker that is not there": (asked(("broker", "9")), BrokerIdNotRegistered, "no broker '9'; registered: 1, 2, 3"),
    "a broker without a number": (asked(("broker", "one")), BrokerIdNotRegistered, "no broker 'one'"),
    "a broker in another spelling": (asked(("broker", "01")), BrokerIdNotRegistered, "no broker '01'"),
    "a cluster with a name": (asked(("cluster", "mine")), InvalidRequest, "no name here: 'mine'"),
    "a group": (asked(("group", "mine")), InvalidRequest, "must be one of topic, broker, cluster"),
    "an unknown key": (asked(ORDERS, retention_msec="1"), InvalidConfig, "the nearest is retention.ms"),
    "an unknown key that is unset": (asked(ORDERS, retention_msec=None), InvalidConfig, "the nearest is retention.ms"),
    "a key twice": (ResourceAlter(*ORDERS, (ConfigAlter(MIN_ISR, "1"), ConfigAlter("min_insync_replicas", "1"))), InvalidConfig, "given twice"),
    "what is read at start": (asked(CLUSTER, replica_lag_time_max_ms="1"), InvalidConfig, "start it again"),
    "the throttle of moves": (asked(CLUSTER, reassignment_throttled_rate=None), InvalidConfig, "partition move --throttle"),
}  # fmt: skip


@pytest.mark.parametrize(("resource", "error", "told"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_what_is_not_possible_is_refused(
    resource: ResourceAlter, error: type[TidelogError], told: str
) -> None:
    book = Book(partition((1, 2)))
    [entry] = alter(book, resource)
    assert (entry.error, book.image.configs) == (error.code, {})
    assert told in (entry.message or "")


def test_a_resource_is_given_once() -> None:
    with pytest.raises(InvalidRequest, match="topic orders is named twice: once is accepted"):
        alter(Book(partition((1, 2))), asked(ORDERS), asked(ORDERS))


# ── what holds ────────────────────────────────────────────────────────────────────────────────────────


def test_a_setting_is_described_with_where_it_stands() -> None:
    book = Book(partition((1, 2)))
    assert holds(book, ORDERS, "retention_ms") == ("604800000", "default", None)
    alter(book, asked(CLUSTER, retention_ms="7"))
    assert holds(book, ORDERS, "retention.ms") == ("7", "cluster", None)
    alter(book, asked(ORDERS, retention_ms="8"))
    assert holds(book, ORDERS, "retention.ms") == ("8", "topic", None)


def test_what_is_configured_and_what_holds_may_differ() -> None:
    book = Book(partition((1, 2), replicas=(1, 2)))
    alter(book, asked(ORDERS, min_insync_replicas="3"))
    alter(book, asked(CLUSTER, unclean_leader_election_enable="true"))
    assert holds(book, ORDERS, MIN_ISR) == ("3", "topic", "2")
    assert holds(book, ORDERS, UNCLEAN_RECOVERY) == ("none", "default", "aggressive")
    assert holds(book, ORDERS, UNCLEAN) == ("true", "cluster", None)


@pytest.mark.parametrize("of", [ORDERS, ("broker", "1"), CLUSTER])
def test_whoever_names_no_setting_is_told_all_by_name(of: tuple[str, str]) -> None:
    book = Book(partition((1, 2)))
    [entry] = describe_configs(book.image, DescribeConfigs((ResourceQuery(*of),))).resources
    keys = [config.key for config in entry.configs]
    assert keys == sorted(key for key, setting in SETTINGS.items() if of[0] in setting.levels)
    assert all(config.documentation for config in entry.configs)


def test_what_cannot_be_set_through_the_cluster_is_told_as_such() -> None:
    query = DescribeConfigs((ResourceQuery(*CLUSTER, (MIN_ISR, "replica.lag.time.max.ms")),))
    [entry] = describe_configs(Book().image, query).resources
    assert [config.read_only for config in entry.configs] == [False, True]


def test_a_controllers_own_defaults_are_what_it_tells() -> None:
    keys = ("default.replication.factor", "flush.mode", MIN_ISR, "num.partitions")
    query = DescribeConfigs((ResourceQuery(*CLUSTER, keys),))
    own = TopicDefaults(replication_factor=1, min_isr=MIN_ISR_DEFAULT).by_key()
    [entry] = describe_configs(Book().image, query, own).resources
    found = {config.key: (config.value, config.source) for config in entry.configs}
    assert found == {
        "default.replication.factor": ("1", "controller"),
        "flush.mode": ("async", "default"),
        MIN_ISR: (str(MIN_ISR_DEFAULT), "default"),
        "num.partitions": ("1", "default"),
    }


async def test_a_cluster_tells_what_its_controllers_were_started_with() -> None:
    settings = {"default.replication.factor": 2, "num.partitions": 5}
    async with Cluster(3, settings=settings) as cluster, cluster.client() as client:
        found = await client.admin.describe_configs("cluster", keys=list(settings))
        assert {key: (one.value, one.source) for key, one in found.items()} == {
            "default.replication.factor": ("2", "controller"),
            "num.partitions": ("5", "controller"),
        }
        await client.admin.create_topics("t")
        [topic] = await client.admin.describe_topics("t")
        assert [len(each.replicas) for each in topic.partitions] == [2] * 5


def test_what_is_not_there_cannot_be_described() -> None:
    queries = (
        ResourceQuery("topic", "nobody"),
        ResourceQuery("broker", "9"),
        ResourceQuery(*CLUSTER, ("min.isr",)),
    )
    entries = describe_configs(Book().image, DescribeConfigs(queries)).resources
    assert [e.error for e in entries] == [
        c.code for c in (UnknownTopicOrPartition, BrokerIdNotRegistered, InvalidConfig)
    ]
    assert all(entry.message and not entry.configs for entry in entries)


BUGS = (
    Bug("the cluster goes before the topic", "find(settings, TOPIC, topic, MIN_ISR)", 'find(settings, CLUSTER, "", MIN_ISR)'),
    Bug("partitions before the setting", "    facts: list[Fact] = [\n        ConfigChanged(level", "    facts: list[Fact] = [] if MIN_ISR in wanted else [\n        ConfigChanged(level"),
    Bug("another flush mode", "if level == TOPIC and FLUSH_MODE in wanted:", "if False:"),
    Bug("no flush mode at all", "if now is not None and then != now:", "if then != now or then == 'group':"),
    Bug("one refused and the other taken", "        if key in wanted:", "        if False:"),
    Bug("set again", "if image.configs.get((level, name, key)) != value", "if True"),
    Bug("validated and done", "[] if request.validate_only else in_batches(units)", "in_batches(units)"),
    Bug("what comes next knows nothing", "            image = image.copy() if image is found else image\n            for fact in facts:\n                image.apply(fact)\n", "            pass\n"),
    Bug("what comes next changes the image", "            image = image.copy() if image is found else image\n            for fact in facts:", "            for fact in facts:"),
    Bug("nothing left undone", "for place, configured in behind)", "for place, configured in [*behind][:0])"),
    Bug("all is left undone", "    looked_at = known.values() if places is None else (", "    looked_at = known.values() if True else ("),
    Bug("what holds is what is configured", "return str(min(p.min_isr for p in partitions))", "return configured"),
    Bug("what holds is what new topics get", "return flush_mode_of(partitions)\n    if", "return configured\n    if"),
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_planted_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    assert noticed(globals(), configs, bug, monkeypatch)
