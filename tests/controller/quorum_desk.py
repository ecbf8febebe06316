"""One controller's part in the quorum on a desk: what others might send to it, and what it does by itself."""

from collections.abc import Callable
from random import Random
from typing import Any, TypeAlias

from tidelog.protocol.messages import BeginEpoch, EndEpoch, Vote, VoteReply
from tidelog.protocol.types import BrokerId, Epoch

ELECTION_MS, FETCH_MS, CHECK_MS, FIRST_MS = 1000, 2000, 3000, 150
FULL, EMPTY = (4, 10), (-1, 0)
"""The ends of logs: the epoch of the last batch, and the next offset."""

Rule: TypeAlias = Callable[[Any], None]


class Rules(list[Rule]):
    """Sentences about the module that they are given, so that they can be asked of one with a bug."""

    def __call__(self, holds: Rule) -> Rule:
        """Write it down."""
        self.append(holds)
        return holds


def disk(number: int) -> bytes:
    return bytes([number]) * 16


class Desk:
    """Controller 1 with its machine, at a time, with a log; and what the others might send to it."""

    def __init__(self, module: Any, of: int = 3, *, named: bool = True, **more: Any) -> None:
        self.module = module
        self.voters = tuple(BrokerId(n) for n in range(1, of + 1))
        self.now_ms = float(more.pop("now_ms", 0))
        self.log = module.LogEnd(*more.pop("log", FULL if named else EMPTY))
        state = module.QuorumState(**more.pop("state", {"epoch": 4}))
        self.q = module.Quorum(
            BrokerId(more.pop("me", 1)),
            more.pop("disk", disk(1)),
            self.voters,
            state,
            config=module.QuorumConfig(),
            rng=more.pop("rng", Random(1)),
            now_ms=self.now_ms,
            directories={v: disk(v) for v in self.voters} if named else None,
            **more,
        )

    # ── time ──────────────────────────────────────────────────────────────────────────────────────

    def tick(self, after_ms: float = 0) -> list[Any]:
        self.now_ms += after_ms
        return self.q.tick(self.now_ms, self.log)  # type: ignore[no-any-return]

    def due(self) -> list[Any]:
        """The next thing that it does by itself; before its time it does nothing."""
        deadline = self.q.deadline_ms()
        assert deadline is not None
        if deadline > self.now_ms:
            self.now_ms = deadline - 0.001
            before = self.q.role
            assert (self.tick(), self.q.role) == ([], before)
            self.now_ms = deadline
        return self.tick()

    def missing(self) -> list[Any]:
        """The leader is silent: what is asked of the others, a little later."""
        assert (self.role, self.due(), self.role) == ("Follower", [], "Unattached")
        return self.due()

    @property
    def role(self) -> str:
        return type(self.q.role).__name__

    # ── what others send ──────────────────────────────────────────────────────────────────────────

    def vote(self, candidate: int = 2, epoch: int = 5, **more: Any) -> VoteReply:
        last_epoch, end_offset = more.pop("log", self.log)
        fields = {
            "cluster_id": "",
            "voter_id": self.q.me,
            "voter_directory_id": None,
            "candidate_directory_id": disk(candidate),
        } | more
        request = Vote(
            epoch=Epoch(epoch),
            candidate_id=BrokerId(candidate),
            last_epoch=last_epoch,
            end_offset=end_offset,
            **fields,
        )
        return self.q.on_vote(request, self.now_ms, self.log)  # type: ignore[no-any-return]

    def grants(self, candidate: int = 2, epoch: int = 5, **more: Any) -> bool:
        return self.vote(candidate, epoch, **more).granted

    def would_grant(self, candidate: int = 2, **more: Any) -> bool:
        return self.grants(candidate, self.q.epoch, pre_vote=True, **more)

    def begins(self, leader: int = 2, epoch: int = 5, cluster_id: str = "") -> Any:
        return self.q.on_begin(BeginEpoch(cluster_id, self.q.me, Epoch(epoch), BrokerId(leader)), self.now_ms)

    def ends(self, leader: int = 2, epoch: int = 5, *successors: int) -> Any:
        order = tuple(BrokerId(s) for s in successors)
        return self.q.on_end(EndEpoch("", self.q.me, Epoch(epoch), BrokerId(leader), order), self.now_ms)

    def follows(self, leader: int = 2, epoch: int = 5, *, high_watermark: int = -1) -> "Desk":
        self.begins(leader, epoch)
        self.fetched(high_watermark)
        return self

    def fetched(self, high_watermark: int = -1) -> None:
        self.q.fetched(self.q.epoch, high_watermark, self.log.end_offset, self.now_ms)

    def fetches(self, voter: int = 2, offset: int = 10, **more: Any) -> bool:
        directory_id = more.get("disk", disk(voter))
        end = max(self.log.end_offset, offset)
        return self.q.on_fetch(BrokerId(voter), directory_id, offset, end, self.now_ms)  # type: ignore[no-any-return]

    # ── elections ─────────────────────────────────────────────────────────────────────────────────

    def replies(self, steps: list[Any], *voters: int, granted: bool = True, **more: Any) -> list[Any]:
        """Those voters answer what was asked; what it does then."""
        assert all(isinstance(step, self.module.Send) for step in steps)
        result: list[Any] = []
        for step in [s for s in steps if s.to in voters]:
            reply = VoteReply(epoch=self.q.epoch, granted=granted, **{"directory_id": disk(step.to)} | more)
            result += self.q.on_vote_reply(step.request, reply, self.now_ms, self.log)
        return result

    def stands(self, *voters: int) -> list[Any]:
        """Until it asks for votes, those voters being in favour."""
        asked = self.due()
        assert all(isinstance(s, self.module.Send) and s.request.pre_vote for s in asked)
        return self.replies(asked, *(voters or self.voters))

    def wins(self, *voters: int) -> list[Any]:
        steps = self.replies(self.stands(*voters), *(voters or self.voters))
        assert self.q.leads
        return steps

    def leads(self, begins: int = 10) -> "Desk":
        """It has won, and written its first record, which is not flushed."""
        steps = self.wins() if len(self.voters) > 1 else self.due()
        if steps[0].founding is not None:
            self.q.directories = dict(steps[0].founding)
        self.q.began(begins)
        self.log = self.module.LogEnd(self.q.epoch, begins + 1)
        return self
