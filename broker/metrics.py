"""What a broker tells whoever watches it: every metric with its sentence, and its value at the moment it is asked for.

Nothing is counted twice for this: values are read from the broker's own state, or from its `Tally`.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from tidelog.broker.broker import Broker
from tidelog.broker.partition import Partition
from tidelog.protocol.metrics import Sample, counter, gauge
from tidelog.protocol.types import BrokerId
from tidelog.storage.data_directories import DataDirectories

# fmt: off
LED: Final = gauge("tidelog_broker_partitions_led", "Partitions that this broker leads.")
FOLLOWED: Final = gauge("tidelog_broker_partitions_followed", "Partitions that this broker follows.")
UNDER_REPLICATED: Final = gauge("tidelog_broker_partitions_under_replicated", "Partitions led here of which a replica is not in sync.")
UNDER_MIN_ISR: Final = gauge("tidelog_broker_partitions_under_min_isr", "Partitions led here that take no acks=all write: fewer than min.insync.replicas are in sync.")
AT_MIN_ISR: Final = gauge("tidelog_broker_partitions_at_min_isr", "Partitions led here that would take no acks=all write if one more replica were lost.")
OFFLINE: Final = gauge("tidelog_broker_partitions_offline", "Replicas here that cannot be served because of their disk.")
DAMAGED: Final = gauge("tidelog_broker_logs_damaged", "Logs in which the last start has found damage.")
STRAYS: Final = gauge("tidelog_broker_stray_logs", "Logs on the disk that the cluster does not place here: removed after stray.delete.delay.ms, those that nobody can place by an operator.")
STRAY_BYTES: Final = gauge("tidelog_broker_stray_bytes", "What they take of the disk.")
DAMAGED_NOW: Final = gauge("tidelog_broker_replicas_damaged", "Replicas here whose log is damaged and not mended yet. One that stays has nobody else in sync.")
DAMAGE_FOUND: Final = counter("tidelog_broker_damage_found_total", "Segments that were found damaged, by scrubbing or by whoever read them.")
REPAIRS: Final = counter("tidelog_broker_repairs_total", "Replicas that were cut at their damage, to be fetched again from there.")
SCRUBBED: Final = counter("tidelog_broker_scrubbed_bytes_total", "Bytes of logs that were read again in search of damage.")
SCRUB_ROUNDS: Final = counter("tidelog_broker_scrub_rounds_total", "Rounds through all logs here in search of damage.")
UNCLEAN: Final = gauge("tidelog_broker_unclean_losses", "How often committed records of a replica here were taken by an unclean election since the start.")
LEADERSHIPS_BEGUN: Final = counter("tidelog_broker_leaderships_begun_total", "Partitions that this broker began to lead.")
LEADERSHIPS_ENDED: Final = counter("tidelog_broker_leaderships_ended_total", "Partitions that this broker ceased to lead.")
SHRINKS: Final = counter("tidelog_broker_isr_shrinks_total", "Replicas that left the ISR of a partition led here.")
EXPANDS: Final = counter("tidelog_broker_isr_expands_total", "Replicas that came into the ISR of a partition led here.")
UNCOMMITTED: Final = gauge("tidelog_broker_uncommitted_records_max", "Records from the high watermark to the log's end, in the partition led here that has most.")
LAG: Final = gauge("tidelog_broker_follower_lag_records_max", "How far a follower is behind this leader, in the partition where it is furthest.", "follower")
BEHIND: Final = gauge("tidelog_broker_replica_uncommitted_records_max", "Records above the high watermark that this broker knows, in the partition followed here that has most.")
REQUESTS: Final = counter("tidelog_broker_requests_total", "Requests that were served.", "request")
REFUSED: Final = counter("tidelog_broker_requests_refused_total", "Requests that were refused as a whole; those refused for some partitions are not among them.", "request")
RECEIVED: Final = counter("tidelog_broker_received_bytes_total", "Bytes that clients and other brokers have sent here.")
SENT: Final = counter("tidelog_broker_sent_bytes_total", "Bytes that were sent to those who connected here.")
CONNECTIONS: Final = gauge("tidelog_broker_connections", "Connections that others have opened to this broker.")
HELD: Final = gauge("tidelog_broker_request_memory_bytes", "Bytes of requests that wait for their answers, beyond each connection's allowance.")
UNSENT: Final = gauge("tidelog_broker_unsent_bytes", "Bytes of answers that their readers have not taken yet.")
WAITING: Final = gauge("tidelog_broker_delayed_keys", "Partitions and replicas for which a produce or fetch request waits.")
SESSIONS: Final = gauge("tidelog_broker_fetch_sessions", "Fetch sessions that are open.")
CONNECTED: Final = gauge("tidelog_broker_controller_connected", "1 if the active controller is connected, else 0.")
LEASE: Final = gauge("tidelog_broker_lease", "1 if this broker may lead: the controller counts it among the living; else 0.")
CONTROLLER: Final = gauge("tidelog_broker_controller_id", "The controller that is believed to lead; -1: none.")
QUORUM_EPOCH: Final = gauge("tidelog_broker_controller_epoch", "The newest epoch of the quorum that this broker has heard of.")
EPOCH: Final = gauge("tidelog_broker_epoch", "The number of this registration; it grows with every start.")
METADATA: Final = gauge("tidelog_broker_metadata_offset", "How far the metadata log was read.")
FLUSHES: Final = counter("tidelog_broker_flushes_total", "Times that a log was forced to the disk.")
FLUSH_TIME: Final = counter("tidelog_broker_flush_seconds_total", "How long that took, flushes at the same time counted once.")
FLUSH_LONGEST: Final = gauge("tidelog_broker_flush_longest_seconds", "The longest of them since the start.")
OPEN_SEGMENTS: Final = gauge("tidelog_broker_open_segments", "Files of logs that are open.")
INDEXES: Final = gauge("tidelog_broker_index_memory_bytes", "What indexes take in memory.")
FREE: Final = gauge("tidelog_broker_disk_free_bytes", "Free space where the data directory is; of several, the one with the least.")
LOW_SPACE: Final = gauge("tidelog_broker_low_space", "1 if records are refused for want of room on a disk, else 0.")
RESERVE: Final = gauge("tidelog_broker_disk_reserve_bytes", "Space that is kept for the metadata log and checkpoints, and not given out for want of room.")
DIRECTORIES_FAILED: Final = gauge("tidelog_broker_directories_failed", "Data directories that have failed since the broker started: what lies there is offline.")
GROUP_MEMBERS: Final = gauge("tidelog_group_members", "Members of a consumer group that this broker coordinates.", "group")
GROUP_LAG: Final = gauge("tidelog_group_lag_records", "Records of a topic that a group has not committed yet, as of at most ten seconds ago; from the second look on, if looks are less than ten minutes apart.", "group", "topic")
GROUP_LAG_TIME: Final = gauge("tidelog_group_lag_seconds", "How long a group is behind in a topic, at most: the age of the last record that it has committed, which is far more where records are rare; absent where it is not known, after a seek say.", "group", "topic")
GROUP_UNKNOWN: Final = gauge("tidelog_group_lag_unknown_partitions", "Partitions of a topic of which a group's lag is not known: they are in no sum.", "group", "topic")
LAST_END: Final = gauge("tidelog_broker_last_end", "How earlier processes ended at worst since the last registration: 0 new, 1 in order, 2 killed, 3 with the machine, 4 with damage.")
# fmt: on


def collect(broker: Broker) -> Iterator[Sample]:
    """Every metric of a broker whose logs are open; those of its roles once it serves."""
    observer, bounds, data = broker.observer, broker.bounds, broker.data
    yield CONNECTED.at(observer.connected)
    yield CONTROLLER.at(observer.controller_id)
    yield QUORUM_EPOCH.at(observer.quorum_epoch)
    yield EPOCH.at(broker.epoch)
    yield METADATA.at(observer.caught_up_to)
    yield CONNECTIONS.at(bounds.connections)
    yield RECEIVED.at(broker.listener.received_bytes)
    yield SENT.at(broker.listener.sent_bytes)
    yield HELD.at(bounds.used_bytes)
    yield UNSENT.at(bounds.unsent_bytes)
    yield OPEN_SEGMENTS.at(len(data.first.open_segments))
    yield INDEXES.at(data.first.open_segments.index_memory)
    yield FREE.at(_free(data))
    yield LOW_SPACE.at(any(each.room.low for each in data.all))
    yield RESERVE.at(sum(each.reserve.held for each in data.all if each.reserve is not None))
    yield DIRECTORIES_FAILED.at(len(data.all) - len(data.serving))
    yield LAST_END.at(broker.worst_end)
    yield DAMAGED.at(sum(bool(found.damage) for found in data.report.found.values()))
    yield LEASE.at(broker.not_ready() is None)
    yield from _counted(broker)
    if broker.serving:
        yield from _roles(broker)
        yield from _groups(broker)


def _free(data: DataDirectories) -> int:
    """Where there is least; a disk that does not answer is for others to notice."""
    free = []
    for each in data.serving:
        with suppress(OSError):
            free.append(each.directory.free_space())
    return min(free, default=0)


def _counted(broker: Broker) -> Iterator[Sample]:
    tally = broker.tally
    yield LEADERSHIPS_BEGUN.at(tally.leaderships_begun)
    yield LEADERSHIPS_ENDED.at(tally.leaderships_ended)
    yield SHRINKS.at(tally.isr_shrinks)
    yield EXPANDS.at(tally.isr_expands)
    for request, count in sorted(tally.requests.items(), key=lambda item: item[0].__name__):
        yield REQUESTS.at(count, request.__name__)
    for request, count in sorted(tally.refused.items(), key=lambda item: item[0].__name__):
        yield REFUSED.at(count, request.__name__)


def _roles(broker: Broker) -> Iterator[Sample]:
    replicas, flusher = broker.replicas, broker.flusher
    partitions = list(replicas.partitions.values())
    led = [partition for partition in partitions if partition.leadership is not None]
    followed = [partition for partition in partitions if partition.followership is not None]
    states = [partition.state for partition in led if partition.state is not None]
    yield LED.at(len(led))
    yield FOLLOWED.at(len(followed))
    yield UNDER_REPLICATED.at(sum(len(state.isr) < len(state.replicas) for state in states))
    yield UNDER_MIN_ISR.at(sum(len(state.isr) < state.min_isr for state in states))
    yield AT_MIN_ISR.at(sum(len(state.isr) == state.min_isr < len(state.replicas) for state in states))
    yield OFFLINE.at(len(replicas.offline()))
    yield DAMAGED_NOW.at(sum(partition.damage is not None for partition in partitions))
    yield DAMAGE_FOUND.at(broker.scrubbing.found)
    yield REPAIRS.at(broker.scrubbing.repairs)
    yield SCRUBBED.at(broker.scrubbing.scrubbed_bytes)
    yield SCRUB_ROUNDS.at(broker.scrubbing.rounds)
    yield UNCLEAN.at(sum(len(partition.losses) for partition in partitions))
    yield STRAYS.at(broker.strays.count)
    yield STRAY_BYTES.at(broker.strays.bytes)
    yield UNCOMMITTED.at(_uncommitted(led))
    yield BEHIND.at(_uncommitted(followed))
    for follower, lag in sorted(_lags(led).items()):
        yield LAG.at(lag, follower)
    yield WAITING.at(len(replicas.delayed))
    yield SESSIONS.at(len(replicas.sessions))
    yield FLUSHES.at(flusher.flushes)
    yield FLUSH_TIME.at(flusher.flush_s)
    yield FLUSH_LONGEST.at(flusher.flush_longest_s)


def _groups(broker: Broker) -> Iterator[Sample]:
    for group, lags in broker.groups.coordinator.watched():
        yield GROUP_MEMBERS.at(len(group.members), group.id)
        for each in lags:
            names = each.group, each.topic
            yield GROUP_UNKNOWN.at(each.unknown, *names)
            if each.lag.records >= 0:
                yield GROUP_LAG.at(each.lag.records, *names)
            if each.lag.ms >= 0:
                yield GROUP_LAG_TIME.at(each.lag.ms / 1000, *names)


def _uncommitted(partitions: list[Partition]) -> int:
    return max((partition.log.end_offset - partition.high_watermark for partition in partitions), default=0)


def _lags(led: list[Partition]) -> dict[BrokerId, int]:
    """How far each follower is behind, where it is furthest; one that has not fetched yet lacks everything."""
    lags: dict[BrokerId, int] = {}
    for partition in led:
        assert partition.leadership is not None
        log = partition.log
        for follower, told in partition.leadership.followers.items():
            lag = log.end_offset - max(told.fetch_offset, log.log_start)
            lags[follower] = max(lags.get(follower, 0), lag)
    return lags
