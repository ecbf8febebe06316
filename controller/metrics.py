"""What a controller tells whoever watches it: every metric with its sentence, and its value when it is asked for."""

from collections.abc import Iterator
from typing import Final

from tidelog.controller.controller import Controller
from tidelog.controller.quorum import Leader
from tidelog.protocol.metrics import Sample, counter, gauge

# fmt: off
ROLE: Final = gauge("tidelog_controller_role", "1 for what this controller is now: leader, follower, candidate or another step of an election.", "role")
ACTIVE: Final = gauge("tidelog_controller_active", "1 if it decides for the cluster, else 0.")
EPOCH: Final = gauge("tidelog_controller_epoch", "The quorum's epoch, as far as this controller knows; every election begins a new one.")
LEADER: Final = gauge("tidelog_controller_leader_id", "The controller that leads the quorum; -1: none that it hears.")
WON: Final = counter("tidelog_controller_elections_won_total", "Elections that this controller has won since its start.")
HIGH_WATERMARK: Final = gauge("tidelog_controller_high_watermark", "How far the metadata log is committed.")
LOG_END: Final = gauge("tidelog_controller_log_end", "How far it is written here.")
LOG_START: Final = gauge("tidelog_controller_log_start", "Where it begins here: before that there is a snapshot.")
DURABLE: Final = gauge("tidelog_controller_durable_offset", "How far it is on stable storage here.")
LAG: Final = gauge("tidelog_controller_voter_lag_records", "How far a voter is behind the leader, which alone tells it.", "voter")
SILENT: Final = gauge("tidelog_controller_voter_silent_seconds", "How long a voter has not asked the leader, which alone tells it.", "voter")
REGISTERED: Final = gauge("tidelog_controller_brokers_registered", "Brokers that are registered.")
ALIVE: Final = gauge("tidelog_controller_brokers_active", "Brokers that are alive: neither fenced nor stopping.")
FENCED: Final = gauge("tidelog_controller_brokers_fenced", "Brokers that are registered and not counted among the living.")
LOW_SPACE: Final = gauge("tidelog_controller_brokers_low_on_space", "Brokers that refuse records for want of room on a disk.")
RESERVE: Final = gauge("tidelog_controller_disk_reserve_bytes", "Space that is kept for the metadata log and promises, and not given out for want of room.")
FENCED_FAST: Final = counter("tidelog_controller_brokers_fenced_fast_total", "Brokers that were fenced because their port refused, since the start.")
TOPICS: Final = gauge("tidelog_controller_topics", "Topics of the cluster.")
PARTITIONS: Final = gauge("tidelog_controller_partitions", "Partitions of the cluster.")
OFFLINE: Final = gauge("tidelog_controller_partitions_offline", "Partitions without a leader.")
RECOVERING: Final = gauge("tidelog_controller_partitions_recovering", "Partitions whose leader was elected uncleanly and is not up yet.")
UNCLEAN: Final = gauge("tidelog_controller_partitions_unclean", "Partitions led by whoever may have lacked committed records when it was elected.")
MOVING: Final = gauge("tidelog_controller_partitions_moving", "Partitions whose replicas are being moved.")
NOT_PREFERRED: Final = gauge("tidelog_controller_partitions_not_preferred", "Partitions that another than their preferred replica leads.")
CONNECTIONS: Final = gauge("tidelog_controller_connections", "Connections that others have opened to this controller.")
# fmt: on


def collect(controller: Controller, now_ms: float) -> Iterator[Sample]:
    """Every metric of a controller whose log is open. `now_ms` is of the clock that its quorum goes by."""
    quorum, metadata = controller.quorum, controller.metadata
    yield ROLE.at(1, type(quorum.role).__name__.lower())
    yield ACTIVE.at(controller.active is not None)
    yield EPOCH.at(quorum.epoch)
    yield LEADER.at(quorum.leader_id)
    yield WON.at(controller.elections_won)
    yield HIGH_WATERMARK.at(quorum.high_watermark)
    yield LOG_END.at(metadata.log.end_offset)
    yield LOG_START.at(metadata.log.log_start)
    yield DURABLE.at(metadata.log.durable_offset)
    yield RESERVE.at(controller.reserve.held if controller.reserve is not None else 0)
    yield FENCED_FAST.at(sum(controller.fenced_fast.values()))
    yield CONNECTIONS.at(controller.bounds.connections)
    if isinstance(quorum.role, Leader):
        for voter, progress in sorted(quorum.role.voters.items()):
            yield LAG.at(metadata.log.end_offset - max(progress.end_offset, 0), voter)
            yield SILENT.at(progress.silent_ms(now_ms) / 1000, voter)
    yield from _cluster(controller)


def _cluster(controller: Controller) -> Iterator[Sample]:
    """What its log says of the cluster."""
    image = controller.working
    brokers, partitions = image.brokers.values(), image.partitions.values()
    yield REGISTERED.at(len(brokers))
    yield ALIVE.at(sum(not (broker.fenced or broker.shutting_down) for broker in brokers))
    yield FENCED.at(sum(broker.fenced for broker in brokers))
    yield LOW_SPACE.at(sum(broker.low_space for broker in brokers))
    yield TOPICS.at(len(image.topics))
    yield PARTITIONS.at(len(partitions))
    yield OFFLINE.at(len(image.indexes.leaderless))
    yield RECOVERING.at(sum(state.recovering for state in partitions))
    yield UNCLEAN.at(sum(state.unclean_epoch == state.leader_epoch for state in partitions))
    yield MOVING.at(sum(bool(state.adding or state.removing) for state in partitions))
    yield NOT_PREFERRED.at(sum(state.leader != state.replicas[0] for state in partitions))
