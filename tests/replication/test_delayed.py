"""Answers that wait: the sentences of design 2.11, random interleavings against a naive model, planted bugs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.planted import assert_caught
from tidelog.protocol.errors import DamagedLog, TidelogError
from tidelog.replication import delayed as module
from tidelog.replication.delayed import Delayed


@dataclass(eq=False)
class Answer:
    """Ready when the test says so; writes down what became of it."""

    log: list[str] = field(default_factory=list)
    name: str = "a"
    ready: bool = False
    then: Callable[[], object] = lambda: None

    def try_complete(self) -> bool:
        assert not self.log, f"{self.name} is over"
        if self.ready:
            self.log.append("completed")
            self.then()
        return self.ready

    def give_up(self) -> None:
        assert not self.log, f"{self.name} is over"
        self.log.append("given up")
        self.then()

    def fail(self, error: TidelogError) -> None:
        self.log.append(f"failed: {error.code}")


# ── the sentences ─────────────────────────────────────────────────────────────────────────────────────


def test_what_can_be_answered_now_does_not_wait() -> None:
    delayed, answer = Delayed(), Answer(ready=True)
    assert not delayed.wait(answer, ["p"], 100)
    assert (answer.log, len(delayed), delayed.deadline_ms) == (["completed"], 0, None)


def test_a_change_between_the_first_look_and_the_waiting_is_not_missed() -> None:
    """2.11: the caller has looked in vain, then the change came; waiting looks once more by itself."""
    delayed, answer = Delayed(), Answer()
    assert not answer.try_complete()
    answer.ready = True
    assert not delayed.touched("p")
    assert not delayed.wait(answer, ["p"], 100)


def test_a_change_while_it_looks_for_the_last_time_is_not_missed() -> None:
    """It is registered before it looks."""
    delayed, answer = Delayed(), Answer()
    answer.try_complete = lambda: delayed.touched("p") and False  # type: ignore[method-assign]
    assert delayed.wait(answer, ["p"], 100)
    assert delayed._marked == {"p": None}


def test_nothing_is_answered_inside_the_change() -> None:
    """KAFKA-8334, KAFKA-13254."""
    delayed, answer = Delayed(), Answer()
    delayed.wait(answer, ["p"], 100)
    answer.ready = True
    assert delayed.touched("p")
    assert answer.log == []
    delayed.run()
    assert answer.log == ["completed"]


def test_a_burst_of_changes_makes_one_run_due() -> None:
    """DECISIONS 17."""
    delayed = Delayed()
    delayed.wait(Answer(), ["p", "q"], 100)
    assert [delayed.touched(key) for key in "ppqp"] == [True, False, False, False]
    delayed.run()
    assert delayed.touched("p")


def test_a_change_that_nobody_waits_for_makes_no_run_due() -> None:
    assert not Delayed().touched("p")


def test_a_change_inside_a_run_makes_another_run_due() -> None:
    delayed, due = Delayed(), list[bool]()
    second = Answer(name="b")
    first = Answer(ready=False, then=lambda: due.append(delayed.touched("q")))
    delayed.wait(first, ["p"], 100)
    delayed.wait(second, ["q"], 100)
    first.ready = second.ready = True
    delayed.touched("p")
    delayed.run()
    assert (due, second.log) == ([True], [])
    delayed.run()
    assert second.log == ["completed"]


def test_a_run_looks_once_at_what_waits_for_many_changes() -> None:
    delayed, looks = Delayed(), list[int]()
    answer = Answer()
    answer.try_complete = lambda: looks.append(1) is not None  # type: ignore[method-assign, func-returns-value]
    delayed.wait(answer, "pqr", 100)
    for key in "pqr":
        delayed.touched(key)
    delayed.run()
    assert len(looks) == 2


def test_what_is_over_is_forgotten_under_every_key() -> None:
    delayed, answer = Delayed(), Answer()
    delayed.wait(answer, ["p", "q"], 100)
    answer.ready = True
    delayed.touched("q")
    delayed.run()
    assert (len(delayed), delayed.touched("p"), delayed.deadline_ms) == (0, False, None)


def test_at_its_deadline_it_is_given_up_and_not_before() -> None:
    delayed, answer = Delayed(), Answer()
    delayed.wait(answer, ["p"], 100)
    delayed.expire(99)
    assert (answer.log, delayed.deadline_ms) == ([], 100)
    delayed.expire(100)
    assert (answer.log, len(delayed), delayed.deadline_ms) == (["given up"], 0, None)


def test_the_next_deadline_is_that_of_the_living() -> None:
    delayed, early, late = Delayed(), Answer(), Answer()
    delayed.wait(late, ["q"], 200)
    delayed.wait(early, ["p"], 100)
    early.ready = True
    delayed.touched("p")
    delayed.run()
    assert delayed.deadline_ms == 200


def test_one_that_gives_up_may_let_another_one_wait() -> None:
    delayed, again = Delayed(), Answer(name="b")
    delayed.wait(Answer(then=lambda: delayed.wait(again, ["p"], 150)), ["p"], 100)
    delayed.expire(120)
    assert (again.log, delayed.deadline_ms) == ([], 150)


def answer_many(delayed: Delayed) -> None:
    kept = Answer(name="kept")
    delayed.wait(kept, ["k"], 10**9)
    for _ in range(2000):
        answer = Answer()
        delayed.wait(answer, ["p"], 10**9)
        answer.ready = True
        delayed.touched("p")
        delayed.run()
    assert len(delayed._deadlines) < 200
    delayed.expire(10**9)
    assert kept.log == ["given up"]


def test_answered_requests_do_not_pile_up_until_their_deadlines() -> None:
    answer_many(Delayed())


def test_a_fault_in_one_answer_loses_no_wake_up_of_another() -> None:
    """A bug in one answer must not let all others wait for their deadlines."""
    delayed, bad, good = Delayed(), Answer(then=lambda: 1 // 0), Answer(name="b")
    delayed.wait(bad, ["p"], 100)
    delayed.wait(good, ["q"], 100)
    bad.ready = good.ready = True
    delayed.touched("p")
    delayed.touched("q")
    with pytest.raises(ZeroDivisionError):
        delayed.run()
    assert delayed.touched("q")
    delayed.run()
    assert (bad.log[0], good.log) == ("completed", ["completed"])


@pytest.mark.parametrize(("error", "code"), [(DamagedLog("planted"), DamagedLog.code), (OSError(5), -1)])
@pytest.mark.parametrize("until", ["touched", "deadline"])
def test_whoever_waits_is_told_of_the_fault_that_ended_its_waiting(
    error: Exception, code: int, until: str
) -> None:
    delayed, answer = Delayed(), Answer()

    def fails() -> bool:
        raise error

    delayed.wait(answer, ["p"], 100)
    answer.try_complete = answer.give_up = fails  # type: ignore[method-assign, assignment]
    delayed.touched("p")
    with pytest.raises(type(error)):
        delayed.run() if until == "touched" else delayed.expire(100)
    assert (answer.log, len(delayed)) == ([f"failed: {code}"], 0)


def test_who_has_just_looked_is_not_asked_again_before_something_changes() -> None:
    delayed, answer = Delayed(), Answer(ready=True)
    assert delayed.wait(answer, ["p"], 100, looked=True)
    assert (answer.log, delayed.deadline_ms) == ([], 100)
    assert delayed.touched("p")
    delayed.run()
    assert (answer.log, len(delayed), delayed.deadline_ms) == (["completed"], 0, None)


def test_a_fault_while_it_is_first_looked_at_leaves_nothing_behind() -> None:
    delayed, bad = Delayed(), Answer(ready=True, then=lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        delayed.wait(bad, ["p"], 100)
    assert (len(delayed), delayed.deadline_ms) == (0, None)


# ── random interleavings ──────────────────────────────────────────────────────────────────────────────

KEYS = "pqr"
Step = tuple[str, str, int]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.sampled_from(["p", "q", "pq", "qr", "pqr"]), st.integers(0, 9)),
        st.tuples(st.just("change"), st.sampled_from(KEYS), st.integers(1, 3)),
        st.tuples(st.just("loop"), st.just(""), st.just(0)),
        st.tuples(st.just("time"), st.just(""), st.integers(1, 6)),
    ),
    max_size=40,
)
"""An answer waits until the sum of its keys' values has grown by so much; its deadline is 10 later."""


@dataclass
class Clock:
    now: int = 0
    inside_change: bool = False


@dataclass(eq=False)
class Sum:
    values: dict[str, int]
    keys: str
    wanted: int
    deadline: int
    clock: "Clock"
    over: str = ""

    def try_complete(self) -> bool:
        assert not self.over
        assert not self.clock.inside_change
        if sum(self.values[key] for key in self.keys) >= self.wanted:
            self.over = "completed"
        return bool(self.over)

    def give_up(self) -> None:
        assert not self.over
        assert self.deadline <= self.clock.now
        assert sum(self.values[key] for key in self.keys) < self.wanted, "could have been answered"
        self.over = "given up"

    def fail(self, error: TidelogError) -> None:
        raise error


def check_life(steps: list[Step], make: Callable[[], Delayed] = Delayed, repeat: int = 1) -> None:
    """The naive model looks at every answer after every turn of the loop."""
    delayed, clock, due = make(), Clock(), False
    values = dict.fromkeys(KEYS, 0)
    answers: list[Sum] = []
    for kind, keys, amount in steps * repeat:
        if kind == "wait":
            wanted = sum(values[key] for key in keys) + amount
            answers.append(Sum(values, keys, wanted, clock.now + 10, clock))
            assert delayed.wait(answers[-1], keys, clock.now + 10) == (not answers[-1].over)
        elif kind == "change":
            clock.inside_change = True
            values[keys] += amount
            due = delayed.touched(keys) or due
            clock.inside_change = False
        else:
            if due:
                due = False
                delayed.run()
            if kind == "time":
                clock.now += amount
                delayed.expire(clock.now)
            for answer in answers:
                possible = sum(values[key] for key in answer.keys) >= answer.wanted
                assert answer.over or (not possible and answer.deadline > clock.now)
        living = [answer for answer in answers if not answer.over]
        assert delayed.deadline_ms == min((answer.deadline for answer in living), default=None)
        assert len(delayed) == len({key for answer in living for key in answer.keys})
        assert len(delayed._deadlines) <= 2 * len(living) + 70


@given(STEPS)
def test_every_answer_is_given_once_as_soon_as_it_can_be_and_never_inside_a_change(steps: list[Step]) -> None:
    check_life(steps)


@given(STEPS)
def test_nothing_is_kept_of_what_is_over(steps: list[Step]) -> None:
    check_life(steps, repeat=20)


class AnswersInsideTheChange(Delayed):
    """As Kafka once did, under its locks."""

    def touched(self, key: object) -> bool:
        super().touched(key)
        self.run()
        return False


class DoesNotLookAgainBeforeItWaits(Delayed):
    def wait(
        self, operation: module.Operation, keys: object, deadline_ms: int, *, looked: bool = False
    ) -> bool:
        class Sleepy:
            def __init__(self) -> None:
                self.looks = 0

            def try_complete(self) -> bool:
                self.looks += 1
                return self.looks > 1 and operation.try_complete()

            give_up = operation.give_up
            fail = operation.fail

        return super().wait(Sleepy(), keys, deadline_ms)  # type: ignore[arg-type]


class TriesTheFirstKeyOnly(Delayed):
    def run(self) -> None:
        for key in list(self._marked)[1:]:
            del self._marked[key]
        super().run()


class ForgetsUnderTheFirstKeyOnly(Delayed):
    def _forget(self, waiting: module._Waiting) -> None:
        waiting.keys = waiting.keys[:1]
        super()._forget(waiting)


class TriesWhatIsOverAgain(Delayed):
    def _forget(self, waiting: module._Waiting) -> None:
        operation = waiting.operation
        super()._forget(waiting)
        waiting.operation = operation


class NeverMakesARunDueAgain(Delayed):
    def run(self) -> None:
        super().run()
        self._due = True


class ExpiresALittleEarly(Delayed):
    def expire(self, now_ms: int) -> None:
        super().expire(now_ms + 1)


class KeepsTheDeadlinesOfWhatIsOver(Delayed):
    def run(self) -> None:
        super().run()
        self._over = 0


class LosesADeadline(Delayed):
    """Rebuilds the heap from those whose time is not over, and one less."""

    def run(self) -> None:
        super().run()
        if len(self._deadlines) > 2:
            self._deadlines = self._deadlines[:-1]
            heapify(self._deadlines)


BUGS = [
    AnswersInsideTheChange,
    DoesNotLookAgainBeforeItWaits,
    TriesTheFirstKeyOnly,
    ForgetsUnderTheFirstKeyOnly,
    TriesWhatIsOverAgain,
    NeverMakesARunDueAgain,
    ExpiresALittleEarly,
    LosesADeadline,
]


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_caught(bug: Callable[[], Delayed]) -> None:
    assert_caught(partial(check_life, make=bug), STEPS)


def test_a_heap_that_grows_is_caught() -> None:
    with pytest.raises(AssertionError):
        answer_many(KeepsTheDeadlinesOfWhatIsOver())
