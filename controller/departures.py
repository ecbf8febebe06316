"""Brokers that will not come back (design 4.1; ADR 76).

What it keeps true: a broker that is alive is not sent away: it would be gone from under its leaders; and one that
is a replica of something only if an operator says that what it has is given up. It is then neither in an ELR nor
worth asking, exactly as if its disk had been lost: if the id registers again, that is somebody without records.
"""

from tidelog.controller.batches import Answer, in_batches
from tidelog.controller.election import Loss, leave
from tidelog.controller.facts import BrokerUnregistered, ConfigChanged, Fact
from tidelog.controller.image import Image
from tidelog.protocol.errors import BrokerIdNotRegistered, InvalidRequest
from tidelog.protocol.messages import UnregisterBroker, UnregisterBrokerReply
from tidelog.protocol.settings import BROKER
from tidelog.protocol.types import BrokerId


def unregister_broker(image: Image, request: UnregisterBroker) -> Answer[UnregisterBrokerReply]:
    """The broker goes, and its settings with it. The last fact says so: every prefix is safe."""
    broker = request.broker_id
    known = image.brokers.get(broker)
    if known is None:
        raise BrokerIdNotRegistered(f"broker {broker} is not registered: {sorted(image.brokers)} are")
    if not known.fenced:
        raise InvalidRequest(
            f"broker {broker} is alive at {known.host}:{known.port} under epoch {known.epoch}: it must be stopped "
            f"first, and fenced"
        )
    kept = image.indexes.in_replicas.get(broker, set())
    if kept and not request.force:
        raise InvalidRequest(
            f"broker {broker} {_what_is_kept(image, broker)}: move them away first, or use force"
        )
    gone = Loss(broker, everything=True)
    facts = leave(image, broker, lambda _: gone)
    settings = [key for key in sorted(image.configs) if key[:2] == (BROKER, str(broker))]
    facts += [ConfigChanged(*key, None) for key in settings]
    units: list[list[Fact]] = [[*facts, BrokerUnregistered(broker, known.epoch)]]
    return Answer(in_batches(units), UnregisterBrokerReply())


def _what_is_kept(image: Image, broker: BrokerId) -> str:
    kept = [image.partitions[place] for place in sorted(image.indexes.in_replicas[broker])]
    alone = [p for p in kept if {*p.isr, *p.elr} <= {broker}]
    first = f"{image.topics[kept[0].topic_id].name}-{kept[0].index}"
    return (
        f"is a replica of {len(kept)} partitions, {first} first; of {len(alone)} nobody else has every record"
    )
