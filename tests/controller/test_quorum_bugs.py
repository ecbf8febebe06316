"""Each rule of the quorum, broken on purpose: a sentence notices it, or a life of a fixed seed does."""

from functools import partial
from typing import NamedTuple

import pytest

from tests.controller import quorum_nodes, test_quorum, test_quorum_leader
from tests.controller.planted import Bug, fails, planted
from tests.controller.quorum_life import live
from tidelog.controller import quorum

SENTENCES = (*test_quorum.rule, *test_quorum_leader.rule)

BUGS = (
    Bug("a vote is given twice", "voted in {(NO_BROKER, None), candidate}", "True"),
    Bug("a disk is no part of a vote", "voted_id=request.candidate_id, voted_directory_id=request.candidate_directory_id", "voted_id=request.candidate_id"),
    Bug("an epoch with a leader is voted in", "self.state.leader_id == NO_BROKER and voted", "voted"),
    Bug("who stands has not voted", "self.epoch + 1, NO_BROKER, self.me, self._directory_id", "self.epoch + 1"),
    Bug("a vote is forgotten for a leader", "self.state = self.state._replace(leader_id=leader_id)", "self.state = QuorumState(self.epoch, leader_id)"),
    Bug("a vote does not compare the logs", "and LogEnd(request.last_epoch, request.end_offset) >= log", ""),
    Bug("a vote compares lengths", "and LogEnd(request.last_epoch, request.end_offset) >= log", "and request.end_offset >= log.end_offset"),
    Bug("an old epoch is voted for", "            request.epoch == self.epoch\n            and self.is_voter", "            self.is_voter"),
    Bug("another disk votes", "self.directories.get(self.me) == self._directory_id", "True"),
    Bug("another disk is voted for", "if known is not None and known.get(request.candidate_id) != request.candidate_directory_id:", "if False:"),
    Bug("another disk is not told who leads", "InvalidVoterKey.code, why, self.epoch, self.leader_id,", "InvalidVoterKey.code, why,"),
    Bug("a majority is one less", "return len(self.voters) // 2 + 1", "return max(len(self.voters) // 2, 1)"),
    Bug("a majority is one more", "return len(self.voters) // 2 + 1", "return min(len(self.voters) // 2 + 2, len(self.voters))"),
    Bug("a majority founds", "return len(self.voters) if self.directories is None else self._majority()", "return self._majority()"),
    Bug("every leader founds", "founding = None if self.directories is not None else", "founding ="),
    Bug("nobody is asked first", "return self._count(now_ms, log) or self._votes(log, pre_vote=True)", "return self._stand(now_ms, log)"),
    Bug("to be asked costs the vote", "if granted and not request.pre_vote:", "if granted:"),
    Bug("who hears the leader favours", "return now_ms >= by", "return True"),
    Bug("who never fetched does not favour", "fetch_by_ms=by, has_fetched=True)", "fetch_by_ms=by)"),
    Bug("who leads favours", "            case Leader():\n                return False", "            case Leader():\n                return True"),
    Bug("one that hears the leader is enough", "if isinstance(role, Prospective) and known and leader not", "if False and leader not"),
    Bug("what others say is forgotten", "            and self.role.others_follow\n", "            and False\n"),
    Bug("who does not answer is waited for", "        return self._counted(asked, now_ms, log, granted=False, directory_id=None)", "        return []"),
    Bug("what others have not noticed counts", "self.epoch not in {self._ended, self._gone}\n", "self.epoch != self._ended\n"),
    Bug("it follows itself", "not in {NO_BROKER, self.me, asked.voter_id}", "not in {NO_BROKER, asked.voter_id}"),
    Bug("the leader itself is not believed", "not in {NO_BROKER, self.me, asked.voter_id}", "not in {NO_BROKER, self.me}"),
    Bug("favour is a vote", "            or type(role) is not kind\n", ""),
    Bug("old answers count", "            or asked.epoch != self.epoch\n", ""),
    Bug("a refusal with an error is a vote", "granted = reply.granted and not reply.error", "granted = reply.granted or bool(reply.error)"),
    Bug("it stands in its old epoch", "QuorumState(self.epoch + 1, NO_BROKER, self.me", "QuorumState(self.epoch, NO_BROKER, self.me"),
    Bug("it asks again at once", "            self.role = Unattached(now_ms + self._rng.uniform(0, pause_ms))", "            self.role = Unattached(now_ms)"),
    Bug("its patience does not grow", "BACK_OFF_MS << min(self._failed, 10)", "BACK_OFF_MAX_MS"),
    Bug("epochs go back", "        if epoch > self.epoch:\n            self.state", "        if epoch != self.epoch:\n            self.state"),
    Bug("every epoch puts the election off", "role.election_at_ms if isinstance(role, Unattached) else", ""),
    Bug("it leads its old epoch after a restart", "self.role: Role = Unattached(now_ms + first_ms)", "self.role = Leader({v: Progress(now_ms) for v in self.voters if v != me}, now_ms) if state.leader_id == me else Unattached(now_ms + first_ms)"),
    Bug("a quorum of one waits", "first_ms = 0 if self.voters == (me,) else", "first_ms ="),
    Bug("to be told is to be answered", "if not isinstance(self.role, Follower) and epoch", "if epoch"),
    Bug("a resignation is undone", "epoch not in {self._ended, self._gone, self._silent}:", "epoch not in {self._gone, self._silent}:"),
    Bug("hearsay brings back a leader that is gone", "epoch not in {self._ended, self._gone, self._silent}:", "epoch not in {self._ended, self._silent}:"),
    Bug("a leader that is there after all is not believed", "        if from_itself:\n", "        if False:\n"),
    Bug("successors are ignored", "now_ms + rank * FIRST_ELECTION_MS", "now_ms + FIRST_ELECTION_MS"),
    Bug("successors by their id", "key=lambda voter: -role.voters[voter].end_offset", "key=lambda voter: voter"),
    Bug("anybody may end an epoch", "        self._check_leader(request.leader_id)\n", ""),
    Bug("two may lead an epoch", "if known not in {NO_BROKER, leader_id}:", "if False:"),
    Bug("strangers vote and lead", "if controller not in self.voters:", "if False:"),
    Bug("the cluster does not matter", "if cluster_id and self.cluster_id and cluster_id", "if False and cluster_id"),
    Bug("anybody is addressed", "if voter_id != self.me or directory_id not in {None, self._directory_id}:", "if False:"),
    Bug("the configuration has other voters", "if named is not None and {*named} != {*self.voters}:", "if False:"),
    Bug("all who miss it ask at once", "self._silent = self.epoch  # if all who miss it ask at once, each votes for itself\n                self.role = Unattached(now_ms + self._rng.uniform(0, FIRST_ELECTION_MS))\n                return []", "return self._ask(now_ms, log)"),
    Bug("hearsay brings back a leader that was missed", "epoch not in {self._ended, self._gone, self._silent}:", "epoch not in {self._ended, self._gone}:"),
    Bug("who leads is told once", "return [Send(voter, self._begin(voter)) for voter in self._untold(role)]", "return []"),
    Bug("a leader never gives up", "return [latest[others - 1] + self._config.check_quorum_ms] if others else []", "return []"),
    Bug("one follower keeps a leader", "latest[others - 1]", "latest[0]"),
    Bug("a leader that slept goes on", "            return False  # it gives up", "            pass  # it gives up"),
    Bug("a lease begins with the election", "followed = sum(progress.followed_ms >= since_ms", "followed = sum(progress.heard_ms >= since_ms"),
    Bug("a lease is twice as long", "since_ms = now_ms - self._config.fetch_timeout_ms", "since_ms = now_ms - 2 * self._config.fetch_timeout_ms"),
    Bug("a lease needs one less", "return followed + 1 >= self._majority()", "return followed + 2 >= self._majority()"),
    Bug("observers count", "or voter not in role.voters or known.get(voter) != directory_id:", "or voter not in role.voters:"),
    Bug("older epochs are committed by counting", "reached <= max(role.begins, self.high_watermark)", "reached <= self.high_watermark"),
    Bug("the first record is not counted", "reached <= max(role.begins, self.high_watermark)", "reached <= max(role.begins - 1, self.high_watermark)"),
    Bug("committed before it has begun", "role.begins == NO_OFFSET or reached", "reached"),
    Bug("the high watermark of a leader goes back", "reached <= max(role.begins, self.high_watermark)", "reached <= role.begins"),
    Bug("the high watermark of a follower goes back", "max(self.high_watermark, min(high_watermark, end_offset))", "min(high_watermark, end_offset)"),
    Bug("committed beyond the log", "max(self.high_watermark, min(high_watermark, end_offset))", "max(self.high_watermark, high_watermark)"),
    Bug("another epoch's answer", "if epoch == self.epoch and isinstance(self.role, Follower):", "if isinstance(self.role, Follower):"),
)  # fmt: skip


class InALife(NamedTuple):
    """A bug that a life of that seed runs into."""

    bug: Bug
    seed: int

    def __str__(self) -> str:
        return self.bug.name


MACHINES = {
    "a vote is given twice": 6,
    "a vote does not compare the logs": 3,
    "another disk is not told who leads": 291,
    "a majority is one less": 0,
    "a majority is one more": 3,
    "a majority founds": 0,
    "every leader founds": 0,
    "nobody is asked first": 9,
    "who hears the leader favours": 34,
    "who never fetched does not favour": 33,
    "a refusal with an error is a vote": 33,
    "it stands in its old epoch": 0,
    "epochs go back": 1,
    "it leads its old epoch after a restart": 2,
    "anybody is addressed": 0,
    "who leads is told once": 0,
    "a leader never gives up": 1,
    "a lease begins with the election": 0,
    "a lease is twice as long": 13,
    "a lease needs one less": 0,
    "observers count": 0,
    "older epochs are committed by counting": 3,
    "the first record is not counted": 5,
    "the high watermark of a leader goes back": 213,
    "the high watermark of a follower goes back": 24,
    "committed beyond the log": 2,
}
"""Bugs of the machine that lives notice as well, and the seed of one."""

CARRIERS = (
    InALife(Bug("an answer leaves before its promise is durable", "        self.keep()\n        self.world.witness.answers", "        self.world.witness.answers"), 0),
    InALife(Bug("what was promised is never written", "        self.disk.state = self.quorum.state\n", ""), 0),
    InALife(Bug("promises are forgotten at a start", "disk.state = self.remembered()", "disk.state = QuorumState(max(disk.epochs.latest, 0))"), 11),
    InALife(Bug("a follower's log counts before it is flushed", " or self.disk.durable < self.disk.end_offset:\n            return", ":\n            return"), 0),
    InALife(Bug("the leader's log counts before it is flushed", "self.quorum.flushed(self.disk.durable)", "self.quorum.flushed(self.disk.end_offset)"), 2),
    InALife(Bug("cut to the high watermark", "self.truncate(divergence(self.disk.epochs, end, answer.parting))", "self.truncate(self.quorum.high_watermark)"), 8),
    InALife(Bug("cut below the high watermark", "self.truncate(divergence(self.disk.epochs, end, answer.parting))", "self.truncate(max(self.quorum.high_watermark - 1, 0))"), 8),
    InALife(Bug("a fetch counts before the logs are compared", "if parting is not None:", "if False:"), 24),
    InALife(Bug("a leader hears other epochs", "            check_leader_epoch(asked.epoch, self.quorum.epoch, must_say=True)\n", "            pass\n"), 0),
    InALife(Bug("an answer counts for another fetch", "answer.asked != Fetch(self.quorum.epoch, end, last_epoch) or", ""), 3),
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_broken_rule_is_noticed_by_a_sentence(bug: Bug) -> None:
    module = planted(quorum, bug)
    assert any(fails(partial(sentence, module)) for sentence in SENTENCES)


@pytest.mark.parametrize("name", MACHINES)
def test_a_broken_rule_is_noticed_in_a_life(name: str) -> None:
    (bug,) = (one for one in BUGS if one.name == name)
    live(MACHINES[name])
    assert fails(partial(live, MACHINES[name], planted(quorum, bug)))


@pytest.mark.parametrize("case", CARRIERS, ids=str)
def test_a_broken_carrier_is_noticed_in_a_life(case: InALife) -> None:
    live(case.seed)
    assert fails(partial(live, case.seed, quorum, planted(quorum_nodes, case.bug).Node))
