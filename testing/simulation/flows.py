"""One direction of a connection: what one kernel sends, the way holds, and the other kernel has ready to be read.

What it keeps true:

* What is read is a prefix of what was written, in order: nothing is lost in the middle, doubled or reordered.
* The sender's kernel takes only what its buffer has room for, and the receiver's accepts only what it has room
  for: who does not read stops who writes.
* What cannot arrive waits, and its sender fails with ETIMEDOUT when it has waited too long; so does a sender whose
  acknowledgements cannot come back. Who has forgotten the connection repeats nothing, resets included.
"""

import errno
from collections import deque
from typing import Literal, Protocol, TypeAlias
from zlib import crc32

from tidelog.testing.simulation.links import Links
from tidelog.testing.simulation.timeline import Timeline

Kind: TypeAlias = Literal["data", "end", "reset"]


class Station(Protocol):
    """What a flow needs to know of the hosts at its ends."""

    powered: bool
    """Whether it has power."""
    name: str
    """What links call it."""


class End(Protocol):
    """What a flow needs to know of the sockets at its ends."""

    closed: bool
    """Whether the kernel has forgotten the connection, or will say no more on it."""

    @property
    def machine(self) -> Station:
        """Its host."""
        ...

    def on_room(self) -> None:
        """There is room to send again."""

    def on_arrival(self) -> None:
        """There is something to be read, or the end."""

    def fail(self, error: OSError) -> None:
        """The connection is broken."""

    def refuse(self) -> None:
        """Something arrived for a connection that nobody knows here."""


class Flow:
    """From one end of a connection to the other."""

    __slots__ = (
        "_abandoned",
        "_back",
        "_ending",
        "_expected",
        "_free_at",
        "_last_arrival",
        "_links",
        "_lost_acks",
        "_patience",
        "_sender",
        "_taker",
        "_timeline",
        "_way",
        "ended",
        "held",
        "in_flight",
        "number",
        "receive_room",
        "received",
        "send_room",
        "source",
        "stalled",
        "target",
        "unacknowledged",
    )

    def __init__(self, number: int, source: End, target: End, timeline: Timeline, links: Links) -> None:
        self.number = number
        self.source = source
        self.target = target
        self._sender = source.machine
        self._taker = target.machine
        self._way = (self._sender.name, self._taker.name)
        self._back = (self._taker.name, self._sender.name)
        self.in_flight: deque[tuple[float, bytes, Kind]] = deque()
        self.received = bytearray()
        self.ended = False
        """Whether the receiver knows that nothing more will come."""
        self.held = False
        """Whether the way holds what is on it, for as long as a test likes."""
        self.stalled = False
        self.unacknowledged = 0
        self.send_room = timeline.rng.choice(links.conditions.send_buffer_bytes)
        self.receive_room = timeline.rng.choice(links.conditions.receive_buffer_bytes)
        self._timeline = timeline
        self._links = links
        self._abandoned = False
        self._ending = False
        self._expected = False
        self._free_at = self._last_arrival = timeline.now
        self._lost_acks = 0
        self._patience = 0

    # ── the sender's side ──────────────────────────────────────────────────────────────────────────

    def send(self, data: memoryview) -> int:
        """Take what there is room for, and tell how much that was."""
        size = min(self.send_room - self.unacknowledged, len(data))
        if size <= 0:
            return 0
        rng, cut = self._timeline.rng, self._links.conditions.cut_probability
        at = 0
        while at < size:
            end = size
            if size - at > 1 and rng.random() < cut:
                end = at + rng.randrange(1, size - at)
            self._put(bytes(data[at:end]), "data")
            at = end
        self.unacknowledged += size
        return size

    def finish(self) -> None:
        """Nothing will be sent behind what was sent."""
        if not self._ending:
            self._ending = True
            self._put(b"", "end")

    def reset(self) -> None:
        """The sender forgets the connection: of what is under way some arrives, then a reset, if the way is free."""
        if not self._abandoned:
            self.abandon()
            self._ending = True
            self._put(b"", "reset")

    def deny(self) -> None:
        """Say that there is no such connection; who forgot it says so as often as it is asked."""
        if not self.in_flight:
            self._put(b"", "reset")

    def abandon(self) -> None:
        """The sender repeats nothing any more, and of what is under way some arrives; what is held, all."""
        self._abandoned = True
        if not self.held:
            kept = self._timeline.rng.randint(0, len(self.in_flight))
            while len(self.in_flight) > kept:
                self.in_flight.pop()

    def lose(self) -> None:
        """Nothing of what is under way will arrive."""
        self.in_flight.clear()
        self._patience += 1
        self.stalled = False

    def not_before(self, when: float) -> None:
        """Let nothing arrive before that."""
        self._last_arrival = max(self._last_arrival, when)

    def _put(self, payload: bytes, kind: Kind) -> None:
        timeline = self._timeline
        delay, occupied = self._links.delay(self._way, len(payload))
        self._free_at = max(self._free_at, timeline.now) + occupied
        self._last_arrival = max(self._last_arrival, self._free_at + delay)
        self.in_flight.append((self._last_arrival, payload, kind))
        self.poke()

    # ── the receiver's side ────────────────────────────────────────────────────────────────────────

    def take(self, most: int) -> memoryview:
        """What a read of so many bytes returns: all there is, or, as chance has it, less."""
        size = min(most, len(self.received))
        if size > 1 and self._timeline.rng.random() < self._links.conditions.cut_probability:
            size = self._timeline.rng.randrange(1, size)
        taken = memoryview(bytes(self.received[:size]))
        del self.received[:size]
        self.poke()
        return taken

    # ── the way ────────────────────────────────────────────────────────────────────────────────────

    @property
    def blocked(self) -> bool:
        """Whether nothing arrives now."""
        return self.held or not self._taker.powered or self._way in self._links.cuts

    def poke(self) -> None:
        """Plan the next arrival."""
        if self.in_flight and not self._expected:
            self._expected = True
            self._timeline.at(self.in_flight[0][0], self._arrive)

    def resume(self) -> None:
        """The way may be free again, in this direction or for the acknowledgements."""
        if self._lost_acks and not self._acknowledgements_lost():
            self._acknowledge(0)
        if self.blocked:
            return
        if not self._lost_acks:
            self._patience += 1
            self.stalled = False
        if self.in_flight:
            again = self._timeline.now + self._links.retransmission()
            self.in_flight = deque((max(at, again), payload, kind) for at, payload, kind in self.in_flight)
            self.not_before(self.in_flight[-1][0])
            self.poke()

    def _arrive(self) -> None:
        self._expected = False
        while self.in_flight:
            arrival, payload, kind = self.in_flight[0]
            if arrival > self._timeline.now:
                self.poke()
                return
            if self.blocked:
                self._stall()
                return
            full = len(self.received) >= self.receive_room
            if kind == "data" and full and not self.target.closed:
                # A closed window: `take` plans the next arrival.
                return
            self.in_flight.popleft()
            self._tell(payload, kind)
            self._deliver(payload, kind)

    def _tell(self, payload: bytes, kind: Kind) -> None:
        """Note it: data, of which there is most, as figures."""
        timeline, details = self._timeline, (self.number, len(payload), crc32(payload))
        if kind != "data":
            timeline.note(self._taker.name, kind, *details)
            return
        timeline.trace.numbers.extend((timeline.now, *details))
        timeline.trace.last.append((timeline.now, self._taker.name, kind, details))

    def _deliver(self, payload: bytes, kind: Kind) -> None:
        target = self.target
        if target.closed:
            # A reset is never answered, or two that have both forgotten the connection would go on for ever; and the
            # end of a connection that this side has closed as well is no news.
            if not self._abandoned and kind != "reset" and not (kind == "end" and self.source.closed):
                target.refuse()
        elif kind == "reset":
            target.fail(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
        elif kind == "end":
            self.ended = True
            target.on_arrival()
        else:
            self.received += payload
            self._acknowledge(len(payload))
            target.on_arrival()

    def _acknowledgements_lost(self) -> bool:
        return not self._sender.powered or self._back in self._links.cuts

    def _acknowledge(self, size: int) -> None:
        self._lost_acks += size
        if self._acknowledgements_lost():
            self._stall()
            return
        self.unacknowledged -= self._lost_acks
        self._lost_acks = 0
        self.source.on_room()

    def _stall(self) -> None:
        if self.held:
            return
        if self._abandoned:
            self.in_flight.clear()
        elif not self.stalled:
            self.stalled = True
            patience = self._timeline.rng.uniform(*self._links.conditions.give_up_s)
            self._timeline.at(self._timeline.now + patience, self._give_up, self._patience)

    def _give_up(self, patience: int) -> None:
        """Too long without an acknowledgement."""
        if patience != self._patience:
            return
        self.lose()
        self._abandoned = True
        self.source.fail(TimeoutError(errno.ETIMEDOUT, "Connection timed out"))
