"""The sentences of 4.7, 4.8 and 4.11 about one partition, each as a change and what must become of it.

`check` takes the module that is to obey them, so that a module with a planted bug can be shown to fail.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from tests.controller.book import ids, partition
from tidelog.controller.image import PartitionState, flaw_of
from tidelog.protocol.types import BrokerId


class Case(NamedTuple):
    """A partition, the ISR that it is to have, who is alive, and what must become of it."""

    sentence: str
    before: PartitionState
    target: tuple[int, ...]
    alive: tuple[int, ...]
    expected: dict[str, Any]
    how: Callable[[Any], dict[str, Any]] = lambda _: {}
    """Further arguments of `change`, made with the module that is checked."""

    def __str__(self) -> str:
        return self.sentence.replace(" ", "_")


def loses(broker: int, *, everything: bool = False) -> Callable[[Any], dict[str, Any]]:
    return lambda election: {"loss": election.Loss(BrokerId(broker), everything)}


def moves(
    replicas: tuple[int, ...], adding: tuple[int, ...] = (), removing: tuple[int, ...] = (), **more: Any
) -> Callable[[Any], dict[str, Any]]:
    return lambda election: {
        "assignment": election.Assignment(ids(*replicas), ids(*adding), ids(*removing)),
        **more,
    }


def given(**arguments: Any) -> Callable[[Any], dict[str, Any]]:
    return lambda _: arguments


ALL = (1, 2, 3)
SAME_LEADER: Final = {"leader": 1, "leader_epoch": 5}
MOVING = partition((1, 2), replicas=(1, 2, 3, 4), adding=(4,), removing=(2,))

CASES: Final = (
    # ── who is in sync, and who is guaranteed to have everything
    Case("nothing differs", partition((1, 2)), (1, 2), ALL, {"partition_epoch": 9, **SAME_LEADER}),
    Case(
        "the isr grows in the same leader epoch",
        partition((1, 2)),
        (1, 2, 3),
        ALL,
        {"isr": ALL, **SAME_LEADER},
    ),
    Case("the isr keeps the order it is given", partition((3, 1)), (3, 1, 2), ALL, {"isr": (3, 1, 2)}),
    Case(
        "who leaves a full isr leaves no trace", partition((1, 2, 3)), (1, 2), ALL, {"elr": (), **SAME_LEADER}
    ),
    Case(
        "who leaves an isr that is too small then is in the elr", partition((1, 2)), (1,), ALL, {"elr": (2,)}
    ),
    Case("who was in the elr stays there", partition((1,), (2,)), (), (3,), {"isr": (), "elr": (1, 2)}),
    Case("who joins the isr leaves the elr", partition((1,), (2, 3), min_isr=3), (1, 2), ALL, {"elr": (3,)}),
    Case("a full isr leaves no elr", partition((1,), (2,)), (1, 3), ALL, {"elr": (), "isr": (1, 3)}),
    Case(
        "a full isr leaves nobody to ask",
        partition((1,), last_known=(2,)),
        (1, 3),
        ALL,
        {"last_known_elr": ()},
    ),
    Case(
        "who lost data is not in the elr but worth asking",
        partition((1, 2)),
        (1,),
        ALL,
        {"elr": (), "last_known_elr": (2,)},
        loses(2),
    ),
    Case(
        "who lost data leaves the elr",
        partition((1,), (2, 3), min_isr=3),
        (1,),
        ALL,
        {"elr": (3,), "last_known_elr": (2,)},
        loses(2),
    ),
    Case(
        "who was not complete when it lost data is not worth asking",
        partition((1,), (2,)),
        (1,),
        ALL,
        {"last_known_elr": (), "partition_epoch": 9},
        loses(3),
    ),
    Case(
        "who has another disk is not worth asking",
        partition((1, 2), last_known=()),
        (1,),
        ALL,
        {"elr": (), "last_known_elr": ()},
        loses(2, everything=True),
    ),
    Case(
        "who was worth asking stays so",
        partition((1,), (), last_known=(2,)),
        (),
        (),
        {"elr": (1,), "last_known_elr": (2,)},
    ),
    # ── who leads
    Case("the leader stays while it is in sync", partition((1, 2), leader=2), (1, 2), ALL, {"leader": 2}),
    Case(
        "when the leader leaves the first replica in sync follows",
        partition((3, 2, 1), leader=3),
        (2, 1),
        ALL,
        {"leader": 1, "leader_epoch": 6, "isr": (2, 1)},
    ),
    Case("who is not alive is not elected", partition((3, 1, 2)), (1, 2), (2, 3), {"leader": 2}),
    Case("nobody leads when nobody is there", partition((1,)), (), (), {"leader": -1, "leader_epoch": 6}),
    Case(
        "the isr goes before the elr",
        partition((3, 2), (1,), min_isr=3),
        (2,),
        ALL,
        {"leader": 2, "elr": (1, 3)},
    ),
    Case(
        "an empty isr lets the elr lead",
        partition((1,), (2, 3), min_isr=3),
        (),
        (2, 3),
        {"leader": 2, "isr": (2,), "elr": (1, 3), "leader_epoch": 6},
    ),
    Case(
        "who is in the elr and not alive is not elected",
        partition((1,), (2, 3), min_isr=3),
        (),
        (3,),
        {"leader": 3, "isr": (3,), "elr": (1, 2)},
    ),
    Case(
        "who is only worth asking is not elected",
        partition((1,), last_known=(2,)),
        (),
        (2, 3),
        {"leader": -1, "isr": (), "elr": (1,)},
    ),
    Case(
        "the election of the elr may fill the isr",
        partition((), (1, 2), min_isr=1),
        (),
        (1,),
        {"isr": (1,), "elr": (), "leader": 1},
    ),
    Case(
        "the last one in sync leads on while it shuts down",
        partition((1,), (2,)),
        (1,),
        (),
        {"leader": 1, "leader_epoch": 5, "min_isr": 1, "elr": ()},
        given(min_isr=1),
    ),
    Case(
        "the first replica leads when it is preferred",
        partition((2, 1), leader=2),
        (2, 1),
        ALL,
        {"leader": 1, "leader_epoch": 6},
        given(preferred=True),
    ),
    Case(
        "the first replica is not preferred out of sync",
        partition((2, 3), leader=3),
        (2, 3),
        ALL,
        {"leader": 3, "partition_epoch": 9},
        given(preferred=True),
    ),
    Case(
        "the first replica is not preferred when it is not alive",
        partition((2, 1), leader=2),
        (2, 1),
        (2, 3),
        {"leader": 2},
        given(preferred=True),
    ),
    # ── how many must be in sync
    Case(
        "less to be in sync empties the elr", partition((1,), (2,)), (1,), ALL, {"elr": ()}, given(min_isr=1)
    ),
    Case(
        "more to be in sync elects nobody",
        partition((1, 2)),
        (1, 2),
        ALL,
        {"min_isr": 3, **SAME_LEADER},
        given(min_isr=3),
    ),
    Case(
        "there are never more than replicas", partition((1, 2)), (1, 2), ALL, {"min_isr": 3}, given(min_isr=7)
    ),
    # ── unclean elections
    Case(
        "the leader confirms that it is up",
        partition((1,), min_isr=1, recovering=True),
        (1,),
        ALL,
        {"recovering": False, **SAME_LEADER},
        given(recovered=True),
    ),
    Case(
        "until then it is recovering",
        partition((1,), min_isr=1, recovering=True),
        (1, 2),
        ALL,
        {"recovering": True},
    ),
    # ── reassignment
    Case(
        "replicas that come do not count until they are there",
        partition((1,), replicas=(1,), min_isr=1),
        (1,),
        ALL,
        {"replicas": ALL, "adding": (2, 3), "min_isr": 1, **SAME_LEADER},
        moves(ALL, adding=(2, 3), min_isr=2),
    ),
    Case(
        "it is not complete while somebody who comes is behind",
        MOVING,
        (1, 2, 3),
        (1, 2, 3, 4),
        {"replicas": (1, 2, 3, 4), "adding": (4,), "removing": (2,), **SAME_LEADER},
    ),
    Case(
        "it is complete when all who are to stay are in sync",
        MOVING,
        (1, 2, 3, 4),
        (1, 2, 3, 4),
        {"replicas": (1, 3, 4), "isr": (1, 3, 4), "adding": (), "removing": (), "leader_epoch": 6},
    ),
    Case(
        "its end takes the lead from who leaves",
        replace(MOVING, leader=BrokerId(2)),
        (1, 2, 3, 4),
        (1, 2, 3, 4),
        {"leader": 1, "leader_epoch": 6, "partition_epoch": 10},
    ),
    Case(
        "with fewer replicas fewer must be in sync",
        partition((1, 2), replicas=(1, 2), removing=(2,)),
        (1, 2),
        ALL,
        {"replicas": (1,), "isr": (1,), "min_isr": 1},
    ),
    Case(
        "who is no replica any more is in no isr and no elr",
        partition((1,), (2, 3), min_isr=3),
        (1, 2),
        (1, 2, 3, 4),
        {"replicas": (1, 4), "isr": (1,), "elr": (), "leader_epoch": 6, "min_isr": 2},
        moves((1, 4)),
    ),
)


def check(election: ModuleType | Any, case: Case) -> PartitionState:
    """The change leads to what is expected, and to nothing that contradicts itself."""
    before = case.before
    then: PartitionState = election.change(
        before, ids(*case.target), lambda broker: broker in case.alive, **case.how(election)
    )
    for name, value in case.expected.items():
        assert getattr(then, name) == value, f"{case.sentence}: {name} of {then}"
    assert then.partition_epoch == before.partition_epoch + (then != before)
    assert flaw_of(then) is None, f"{case.sentence}: {flaw_of(then)}"
    return then
