"""One partition of the log of groups, coordinated: from requests and time to records and answers, and no I/O.

    LOADING ──loaded, and all of it is committed──► ACTIVE           whoever unloads it throws it away

    decide    heartbeat, commit, tick … ──► Decision(records, reply)   from what was written, committed or not
    written   the log has taken the records: they hold                 refused: nothing has happened
    committed the high watermark has passed: `committed` follows, and replies that rest on it may leave

What it keeps true (I-57 to I-60, D14):

* Nothing is answered that rests on what is not committed: an answer waits for all that was written of its group.
* Questions are answered from what is committed.
* It serves nothing before all that it has loaded is committed, and what it serves is the replay of the log.
* Where nothing changes nothing is written: a heartbeat is then a time stamp.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from tidelog.broker import offsets
from tidelog.broker.groups.deadlines import REVOCATION, SESSION, SHARING, Deadlines
from tidelog.broker.groups.draft import Decision, Draft
from tidelog.broker.groups.heartbeats import Moment, heartbeat, put_out, share_out
from tidelog.broker.groups.image import NEW, Group, Groups
from tidelog.broker.groups.records import (
    CurrentKey,
    CurrentState,
    GroupKey,
    MemberKey,
    Record,
    places_of,
)
from tidelog.broker.groups.settings import GroupSettings
from tidelog.broker.groups.topics import Topics
from tidelog.protocol.errors import UnsupportedFormat
from tidelog.protocol.messages import (
    LEAVE,
    DeleteGroupOffsets,
    GroupHeartbeat,
    GroupHeartbeatReply,
    OffsetCommit,
    OffsetFetch,
    OffsetFetchReply,
)
from tidelog.protocol.types import Offset


class Shard:
    """See the module. One decision at a time: decide, write, and say that it is `written`, before the next."""

    def __init__(self, settings: GroupSettings, topics: Topics) -> None:
        self.settings = settings
        self.topics = topics
        self.committed = Groups()
        """What replicas can lose no more."""
        self.current = self.committed
        """With what was written and may yet be lost."""
        self.is_active = False
        self.deadlines = Deadlines()
        self.heard: dict[tuple[str, str], int] = {}
        """Of members, by group: the highest number of a heartbeat, also where nothing was written of it (docs/adr/0094)."""
        self._pending: deque[tuple[Offset, tuple[Record, ...]]] = deque()
        self._written: dict[str, Offset] = {}
        """Of each group with something uncommitted: the end of it."""
        self._seen: dict[str, int] = {}
        """Of each group: as of which version it has looked at the topics."""
        self._shared_ms: dict[str, int] = {}
        """Of each group: when its partitions were shared out last."""

    # ── to load ───────────────────────────────────────────────────────────────────────────────────

    def load(self, records: Iterable[Record]) -> None:
        """The log says this, and more may follow."""
        assert not self.is_active
        self.committed.replay(records)

    def check_loaded(self) -> None:
        """Everything was read: what contradicts itself is not served; whoever wrote it is not this tidelog."""
        for group in self.committed.by_id.values():
            flaw = group.flaw()
            if flaw:
                raise UnsupportedFormat(f"the log of groups contradicts itself: {flaw}")

    def activate(self, now_ms: int) -> None:
        """All is loaded and committed: everybody has a whole session from now on."""
        assert not self.is_active
        self.is_active = True
        self.current = self.committed.copy()
        for group in self.current.by_id.values():
            for member, state in group.members.items():
                self.deadlines.set(SESSION, group.id, member, now_ms + state.session_timeout_ms)
                self._await_revocation(group, member, now_ms)
            if not _is_shared_out(group):
                self.deadlines.set(SHARING, group.id, "", now_ms)

    # ── to decide ─────────────────────────────────────────────────────────────────────────────────

    def heartbeat(
        self, request: GroupHeartbeat, now_ms: int, wall_ms: int, client_id: str = "", host: str = ""
    ) -> Decision:
        """A member says something."""
        assert self.is_active
        group = self.current.get(request.group_id)
        at = replace(
            self._moment(request.group_id, group, now_ms, wall_ms),
            client_id=client_id,
            host=host,
            heard=self.heard.get((request.group_id, request.member_id), 0),
        )
        decision = heartbeat(group, request, at)
        assert isinstance(decision.reply, GroupHeartbeatReply)
        if not decision.reply.error:
            self._heard(decision, request, now_ms)
        return decision

    def _heard(self, decision: Decision, request: GroupHeartbeat, now_ms: int) -> None:
        """Whatever becomes of the decision, the member lives."""
        group = self.current.get(decision.group_id)
        known = group.members.get(request.member_id) if group is not None else None
        if known is not None and request.member_epoch != LEAVE:
            due = now_ms + known.session_timeout_ms
            self.deadlines.set(SESSION, decision.group_id, request.member_id, due)
            key = decision.group_id, request.member_id
            self.heard[key] = max(request.sequence, self.heard.get(key, 0))
        if decision.has_looked and not decision.records:
            self._seen[decision.group_id] = self.topics.version

    def commit(self, request: OffsetCommit, wall_ms: int) -> Decision:
        """Somebody says how far the group has come."""
        assert self.is_active
        at = Moment(self.settings, self.topics, wall_ms)
        return offsets.commit(self.current.get(request.group_id), request, at)

    def delete_group(self, group_id: str) -> Decision:
        """An operator wants a group to be forgotten."""
        assert self.is_active
        return offsets.delete_group(self.current.get(group_id), group_id)

    def delete_offsets(self, request: DeleteGroupOffsets) -> Decision:
        """An operator wants offsets to be forgotten."""
        assert self.is_active
        return offsets.delete_offsets(self.current.get(request.group_id), request, self.topics)

    def tick(self, now_ms: int, wall_ms: int) -> Iterator[Decision]:
        """What follows from the passing of time, group by group: each is to be written before the next is asked for."""
        assert self.is_active
        silent: dict[str, list[str]] = {}
        for kind, group_id, member in self.deadlines.passed(now_ms):
            members = silent.setdefault(group_id, [])
            group = self.current.get(group_id)
            if kind != SHARING and group is not None and member in group.members and member not in members:
                members.append(member)
        for group_id, members in silent.items():
            group = self.current.get(group_id)
            if group is None:
                continue
            draft = Draft(group)
            at = self._moment(group_id, group, now_ms, wall_ms)
            if members:
                put_out(draft, members, at)
            elif at.may_share_out and group.members:
                share_out(draft, at)
            if draft.records:
                yield draft.decision()
            self._retry_soon(group_id, members, now_ms)

    def _retry_soon(self, group_id: str, members: list[str], now_ms: int) -> None:
        """What was decided may have been refused by the log: then those who are silent, or hold on, are looked at again."""
        group = self.current.get(group_id)
        if group is None:
            return
        for member in members:
            if member in group.members:
                self.deadlines.begin(SESSION, group_id, member, now_ms + 1000)
                if group.current(member).pending:  # holding on, it says nothing that begins this anew
                    self.deadlines.begin(REVOCATION, group_id, member, now_ms + 1000)
        if not _is_shared_out(group):
            self.deadlines.begin(SHARING, group_id, "", now_ms + self._pause_ms(group))

    def expire(self, wall_ms: int) -> Iterator[Decision]:
        """What is too old, group by group: each is to be written before the next is asked for."""
        assert self.is_active
        for group in list(self.current.by_id.values()):
            decision = offsets.expire(group, self.topics, self.settings, wall_ms)
            if decision.records:
                yield decision

    # ── what became of it ─────────────────────────────────────────────────────────────────────────

    def written(self, decision: Decision, end_offset: Offset, now_ms: int) -> None:
        """The log has taken the decision's records, and ends there now."""
        assert self.is_active
        group_id = decision.group_id
        before = self.current.get(group_id)
        asked = {
            record.key.member: before.current(record.key.member)
            for record in decision.records
            if before is not None and isinstance(record.key, CurrentKey)
        }
        self.current.replay(decision.records)
        self._pending.append((end_offset, decision.records))
        self._written[group_id] = end_offset
        group = self.current.get(group_id)
        if group is None:
            for table in (self._seen, self._shared_ms):
                table.pop(group_id, None)
            self.deadlines.end(SHARING, group_id, "")
        for record in decision.records:
            self._follow(record, group, asked, now_ms)
        if group is not None and not _is_shared_out(group):
            self.deadlines.begin(SHARING, group_id, "", now_ms + self._pause_ms(group))

    def _follow(
        self, record: Record, group: Group | None, before: Mapping[str, CurrentState], now_ms: int
    ) -> None:
        """What one record means for whoever is waited for; `before`: what everybody had."""
        key, value = record
        if isinstance(key, MemberKey):
            if group is None or key.member not in group.members:
                self.deadlines.end(SESSION, key.group, key.member)
                self.deadlines.end(REVOCATION, key.group, key.member)
                self.heard.pop((key.group, key.member), None)
            else:
                timeout_ms = group.members[key.member].session_timeout_ms
                self.deadlines.set(SESSION, key.group, key.member, now_ms + timeout_ms)
        elif isinstance(key, CurrentKey) and isinstance(value, CurrentState) and group is not None:
            if value.pending != before.get(key.member, NEW).pending:  # what is asked for now has its own time
                self.deadlines.end(REVOCATION, key.group, key.member)
            self._await_revocation(group, key.member, now_ms)
        elif isinstance(key, GroupKey) and group is not None and _is_shared_out(group):
            self.deadlines.end(SHARING, key.group, "")
            self._shared_ms[key.group] = now_ms
            self._seen[key.group] = self.topics.version

    def _await_revocation(self, group: Group, member: str, now_ms: int) -> None:
        if group.current(member).pending and member in group.members:
            due = now_ms + group.members[member].rebalance_timeout_ms
            self.deadlines.begin(REVOCATION, group.id, member, due)

    def commit_to(self, high_watermark: Offset) -> None:
        """Everything below is committed."""
        while self._pending and self._pending[0][0] <= high_watermark:
            self.committed.replay(self._pending.popleft()[1])
        if self._written:
            self._written = {name: end for name, end in self._written.items() if end > high_watermark}

    def rests_on(self, group_id: str) -> Offset:
        """The high watermark without which nothing is answered about that group; 0: any will do."""
        return self._written.get(group_id, 0)

    # ── to ask ────────────────────────────────────────────────────────────────────────────────────

    def fetch(self, request: OffsetFetch) -> OffsetFetchReply:
        """How far a group has come."""
        assert self.is_active
        return offsets.committed(self.committed.get(request.group_id), request)

    def silent_ms(self, group_id: str, member: str, now_ms: int) -> int:
        """For how long the member has not been heard, or has not been listened to."""
        due = self.deadlines.due_ms(SESSION, group_id, member)
        group = self.current.get(group_id)
        known = group.members.get(member) if group is not None else None
        if due is None or known is None:
            return 0
        return max(now_ms - (due - known.session_timeout_ms), 0)

    def heartbeat_interval_ms(self, group_id: str, member: str) -> int:
        """How often a member that there is heartbeats."""
        group = self.current.by_id[group_id]
        return self.settings.heartbeat_interval_ms(group.members[member].session_timeout_ms)

    def has_news(self, group_id: str, member: str) -> bool:
        """Whether a heartbeat of this member would be answered with more than that there is nothing new."""
        group = self.current.get(group_id)
        if group is None or member not in group.members:
            return True
        if not _is_shared_out(group):
            return False  # it will be, and then there are
        if self._seen.get(group_id) != self.topics.version:
            return True
        current = group.current(member)
        if current.pending:
            return False
        if current.epoch != group.state.assignment_epoch:
            return True
        target = group.target(member)
        if current.assigned == target:
            return False
        return any(place not in group.held for place in places_of(target) - places_of(current.assigned))

    # ── what it rests on ──────────────────────────────────────────────────────────────────────────

    def _moment(self, group_id: str, group: Group | None, now_ms: int, wall_ms: int) -> Moment:
        last = self._shared_ms.get(group_id)
        may = last is None or group is None or now_ms - last >= self._pause_ms(group)
        news = self._seen.get(group_id) != self.topics.version
        return Moment(self.settings, self.topics, wall_ms, may, news)

    def _pause_ms(self, group: Group) -> int:
        """How long partitions are left alone when they were shared out: nothing in a small group (docs/adr/0096)."""
        return min(1000, (len(group.members) + len(group.held)) // 20)


def _is_shared_out(group: Group) -> bool:
    """Whether every member has the target that belongs to the group's epoch."""
    return not group.members or group.state.epoch == group.state.assignment_epoch
