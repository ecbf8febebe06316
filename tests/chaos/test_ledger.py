"""The judge of chaos runs, judged: each kind of lie is told once, and condemned for what it is."""

import pytest

from tests.chaos.ledger import (
    CHANGED,
    FOREIGN,
    LOST,
    MISPLACED,
    ORDER,
    REFUSED_YET_THERE,
    TWICE,
    UNREAD,
    Ledger,
)

SIZE = 40


class Run:
    """Two producers of partition 3, whose records stand in the log in turns; one consumer has read all of it."""

    def __init__(self, *, unsafe: bool = False) -> None:
        self.ledger = Ledger()
        self.ours = self.ledger.stream(3, unsafe=unsafe)
        self.theirs = self.ledger.stream(3)
        self.log: list[bytes] = []
        for number in range(5):
            for stream in (self.ours, self.theirs):
                self.log.append(stream.next_value(SIZE))
                stream.acknowledged(number, len(self.log) - 1, 1)
        self.reads = self.ledger.reader("reader", 3)

    def read_all(self) -> None:
        for offset, value in enumerate(self.log):
            self.reads.saw(offset, value)

    def judged(self, log: dict[int, bytes] | None = None) -> dict[str, int]:
        self.ledger.judge(3, (log or dict(enumerate(self.log))).items())
        return dict(self.ledger.verdict.counts)


def test_a_run_in_which_nothing_happened_is_innocent() -> None:
    run = Run()
    run.read_all()
    assert run.judged() == {}
    assert (run.ledger.acknowledged, run.ledger.unknown, run.ledger.seen) == (10, 0, 10)


def test_an_acknowledged_record_that_is_not_there_is_lost() -> None:
    run = Run()
    assert run.judged(dict(list(enumerate(run.log))[:-1])) == {LOST: 1}
    assert "record 4 of stream 1, partition 3, acknowledged at 9" in str(run.ledger.verdict)


def test_one_that_was_sent_with_acks_1_may_be_lost_but_not_if_it_was_read() -> None:
    run = Run(unsafe=True)
    without = {offset: value for offset, value in enumerate(run.log) if offset != 8}
    assert run.judged(without) == {}
    run = Run(unsafe=True)
    run.read_all()
    assert run.judged(without) == {UNREAD: 1}


def test_one_that_was_sent_with_acks_1_may_be_there_twice() -> None:
    run = Run(unsafe=True)
    assert run.judged({**dict(enumerate(run.log)), 10: run.log[8]}) == {}


def test_a_record_that_is_there_twice_is_seen() -> None:
    run = Run()
    assert run.judged({**dict(enumerate(run.log)), 10: run.log[9]}) == {TWICE: 1}


def test_records_of_one_stream_stand_in_the_order_in_which_they_were_sent() -> None:
    ledger = Ledger()
    stream = ledger.stream(0)
    one, other = stream.next_value(SIZE), stream.next_value(SIZE)
    ledger.judge(0, [(0, other), (1, one)])
    assert dict(ledger.verdict.counts) == {ORDER: 1}


def test_what_nobody_was_told_of_may_be_there_or_not() -> None:
    ledger = Ledger()
    stream = ledger.stream(0)
    _, there = stream.next_value(SIZE), stream.next_value(SIZE)
    ledger.judge(0, [(0, there)])
    assert ledger.verdict.is_innocent
    assert ledger.unknown == 2


def test_what_was_refused_must_not_be_there() -> None:
    ledger = Ledger()
    stream = ledger.stream(0)
    value = stream.next_value(SIZE)
    stream.refused(0, 1)
    ledger.judge(0, [(0, value)])
    assert dict(ledger.verdict.counts) == {REFUSED_YET_THERE: 1}
    ledger = Ledger()
    stream = ledger.stream(0)
    stream.next_value(SIZE)
    stream.refused(0, 1)
    ledger.judge(0, [])
    assert ledger.verdict.is_innocent


def test_an_acknowledgement_that_names_another_offset_is_a_lie() -> None:
    run = Run()
    run.theirs.acknowledged(4, 12, 1)
    assert run.judged() == {MISPLACED: 1}


def test_a_read_that_the_log_does_not_confirm_is_condemned() -> None:
    run = Run()
    run.reads.saw(0, run.log[1])
    assert run.judged() == {CHANGED: 1}


def test_a_consumer_never_goes_back() -> None:
    run = Run()
    run.reads.saw(1, run.log[1])
    run.reads.saw(1, run.log[1])
    assert run.judged() == {TWICE: 1}


@pytest.mark.parametrize("harm", [b"", b"tide", b"x" * SIZE])
def test_what_no_producer_has_sent_is_foreign(harm: bytes) -> None:
    run = Run()
    assert run.judged({**dict(enumerate(run.log)), 10: harm}) == {FOREIGN: 1}


def test_a_record_of_another_partition_is_foreign() -> None:
    run = Run()
    stray = run.ledger.stream(4).next_value(SIZE)
    assert run.judged({**dict(enumerate(run.log)), 10: stray}) == {FOREIGN: 1}


def test_what_was_acknowledged_without_a_place_may_stand_anywhere_but_must_be_there() -> None:
    run = Run()
    run.theirs.acknowledged(4, -1, 1)
    assert run.judged() == {}
    run = Run()
    run.theirs.acknowledged(4, -1, 1)
    assert run.judged(dict(list(enumerate(run.log))[:-1])) == {LOST: 1}
