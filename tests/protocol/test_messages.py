from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from tests.protocol.strategies import (
    CORRELATIONS,
    JUNK,
    MESSAGES,
    Message,
    from_a_newer_peer,
    from_an_older_peer,
    messages,
    plain,
    required_fields,
)
from tidelog.protocol.errors import MalformedFrame, UnsupportedVersion
from tidelog.protocol.messages import (
    CORRELATION_MAX,
    REPLIES,
    REQUESTS,
    EndWait,
    Entry,
    Fetch,
    Flushed,
    Hello,
    PartitionFetch,
    PartitionProduce,
    Produce,
    Refused,
    Reply,
    Request,
    decode_reply,
    decode_request,
    encode_head,
    split_attachment,
    tag_of,
)

TOPIC = bytes(range(16))
PRODUCE = Produce(-1, 1000, (PartitionProduce(TOPIC, 3, 100, 7),))
few = settings(max_examples=25)  # of each message: there are many, and fields of few kinds
every_message = pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)


def decode(cls: Message, head: bytes) -> tuple[int, Any]:
    return decode_request(head) if issubclass(cls, Request) else decode_reply(head)


def head_of(sent: object, correlation: object = 5) -> bytes:
    return msgspec.msgpack.encode([correlation, sent])


# ---------------------------------------------------------------------------- what is sent arrives


@every_message
@few
@given(data=st.data())
def test_every_message_comes_back_as_it_was_sent(cls: Message, data: st.DataObject) -> None:
    correlation, message = data.draw(CORRELATIONS), data.draw(messages(cls))
    assert decode(cls, encode_head(correlation, message)) == (correlation, message)


@every_message
@few
@given(data=st.data())
def test_an_older_peer_leaves_out_what_was_appended_later(cls: Message, data: st.DataObject) -> None:
    sent, expected = data.draw(from_an_older_peer(data.draw(messages(cls))))
    assert decode(cls, head_of(sent)) == (5, expected)


@pytest.mark.slow
@every_message
@few
@given(data=st.data())
def test_what_a_newer_peer_appended_is_ignored_at_every_level(cls: Message, data: st.DataObject) -> None:
    message, more = data.draw(messages(cls)), data.draw(JUNK)
    sent = data.draw(from_a_newer_peer(message))
    assert decode(cls, msgspec.msgpack.encode([5, sent, more])) == (5, message)


@every_message
@few
@given(data=st.data())
def test_a_message_without_a_field_that_it_always_had_is_refused(cls: Message, data: st.DataObject) -> None:
    fields = plain(data.draw(messages(cls)))
    needed = 1 + len(required_fields(cls))
    for known in range(1, needed):
        with pytest.raises(MalformedFrame, match=rf"^{cls.__name__}: "):
            decode(cls, head_of(fields[:known]))


@pytest.mark.parametrize(
    "cls", [cls for cls in MESSAGES if cls.__struct_fields__], ids=lambda cls: cls.__name__
)
@few
@given(data=st.data())
def test_a_field_of_the_wrong_type_is_named_with_its_path(cls: Message, data: st.DataObject) -> None:
    sent, name = data.draw(spoilt(data.draw(messages(cls)), cls.__name__))
    with pytest.raises(MalformedFrame) as refused:
        decode(cls, head_of(sent))
    assert str(refused.value).startswith(f"{name}: Expected ")
    assert refused.value.correlation == 5


def spoil(draw: st.DrawFn, value: Any, name: str) -> tuple[Any, str]:
    """The value with a map in place of something in it, and the name of what was replaced."""
    if isinstance(value, Struct):
        parts = [(f".{field}", getattr(value, field)) for field in value.__struct_fields__]
    else:
        parts = [(f"[{at}]", item) for at, item in enumerate(value)] if isinstance(value, tuple) else []
    if not parts or (name.count(".") and draw(st.booleans())):
        return {}, name
    at = draw(st.integers(0, len(parts) - 1))
    sent, (step, part) = plain(value), parts[at]
    sent[at - len(parts)], path = spoil(draw, part, name + step)
    return sent, path


spoilt = st.composite(spoil)


# ---------------------------------------------------------------------------- the table of messages


def test_every_request_and_every_reply_is_in_the_tables() -> None:
    assert set(Request.__subclasses__()) == set(REQUESTS.values())
    assert set(Reply.__subclasses__()) == set(REPLIES.values())


def test_a_reply_has_its_requests_tag() -> None:
    pairs = [(request, request.reply) for request in REQUESTS.values() if request.reply is not None]
    assert all(tag_of(request) == tag_of(reply) for request, reply in pairs)
    assert len(pairs) == len(REPLIES) - 1  # Refused answers any of them


def test_only_these_are_one_way() -> None:
    assert [request for request in REQUESTS.values() if request.reply is None] == [EndWait, Flushed]


def test_every_tag_is_one_byte_on_the_wire() -> None:
    assert all(0 <= tag <= 127 for tag in (*REQUESTS, *REPLIES))


@pytest.mark.parametrize("cls", [*MESSAGES, *Entry.__subclasses__()], ids=lambda cls: cls.__name__)
def test_messages_are_values(cls: type[Struct]) -> None:
    config = cls.__struct_config__
    assert config.frozen
    assert config.array_like
    assert not config.gc


# ---------------------------------------------------------------------------- heads


@pytest.mark.parametrize("correlation", [0, 1, CORRELATION_MAX])
def test_a_correlation_is_any_number_below_2_to_the_31(correlation: int) -> None:
    assert decode_request(encode_head(correlation, Hello())) == (correlation, Hello())


@pytest.mark.parametrize("correlation", [-1, 2**31, 2**64 - 1, None, "5", 5.0, True])
def test_anything_else_is_no_correlation(correlation: object) -> None:
    with pytest.raises(MalformedFrame, match=r"^correlation: ") as refused:
        decode_request(head_of(plain(Hello()), correlation))
    assert refused.value.correlation == 0


def test_we_never_send_a_correlation_that_is_none() -> None:
    with pytest.raises(AssertionError):
        encode_head(2**31, Hello())


def test_an_unknown_request_is_named_as_one_of_a_newer_peer() -> None:
    with pytest.raises(UnsupportedVersion, match=r"no request has the tag 127 .* newer tidelog") as refused:
        decode_request(head_of([127, 1, 2, [3]]))
    assert refused.value.correlation == 5


def test_an_unknown_reply_is_named_as_one_of_a_newer_peer() -> None:
    with pytest.raises(UnsupportedVersion, match="no reply has the tag 126 ") as refused:
        decode_reply(head_of([126]))
    assert refused.value.correlation == 5


def test_a_reply_is_no_request() -> None:
    with pytest.raises(UnsupportedVersion, match="no request has the tag 0 "):
        decode_request(encode_head(1, Refused(3)))


def test_an_unknown_message_that_is_cut_off_is_malformed() -> None:
    with pytest.raises(MalformedFrame) as refused:
        decode_request(head_of([127, 1, 2])[:-1])
    assert refused.value.correlation == 5


def test_a_head_that_is_cut_off_anywhere_is_refused() -> None:
    head = encode_head(7, PRODUCE)
    for size in range(len(head)):
        with pytest.raises(MalformedFrame) as refused:
            decode_request(head[:size])
        assert refused.value.correlation == (7 if size > 1 else 0)


def test_bytes_behind_a_head_are_refused() -> None:
    with pytest.raises(MalformedFrame, match="trailing") as refused:
        decode_request(encode_head(7, PRODUCE) + b"\0")
    assert refused.value.correlation == 7


HUGE = b"\xdd\xff\xff\xff\xff"
DEEP = b"\x91" * 100_000 + b"\xc0"


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xc1" * 9, id="no msgpack"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="another protocol"),
        pytest.param(HUGE, id="four billion heads"),
        pytest.param(b"\x92\x05" + HUGE, id="four billion fields"),
        pytest.param(b"\x92\x05\x94\x11\xff\x00" + HUGE, id="four billion entries"),
        pytest.param(b"\x92\x05\x95\x11\xff\x00\x90\xc0" + HUGE, id="four billion unknown fields"),
        pytest.param(b"\x92\x05\x94\x11\xff\x00\xdc\xff\xff", id="more entries than there are bytes"),
        pytest.param(b"\x92\x05\x92\x01\xdb\xff\xff\xff\xff", id="four billion letters"),
        pytest.param(DEEP, id="a deep head"),
        pytest.param(b"\x92\x05" + DEEP, id="a deep message"),
        pytest.param(b"\x92\x05\x92\x01" + DEEP, id="a deep field"),
        pytest.param(b"\x92\x05\x96\x11\xff\x00\x90\xc0" + DEEP, id="a deep unknown field"),
        pytest.param(b"\x92\x05\x92\x01\xa2\xff\xff", id="no UTF-8"),
        pytest.param(b"\x92\x05\x92\x01\xa3\xed\xa0\x80", id="half a surrogate pair"),
        pytest.param(b"\x92\x05\x90", id="no tag"),
        pytest.param(b"\x92\x05\x91\xa1a", id="a name for a tag"),
        pytest.param(b"\x92\x05\x91\xc0", id="nil for a tag"),
        pytest.param(b"\x92\x05\x80", id="a map for a message"),
        pytest.param(b"\x91\x05", id="no message"),
        pytest.param(b"\x92\x05\x92\x01\xd6\xff\x00\x00\x00\x00", id="a timestamp"),
        pytest.param(b"\x92\x05\x92\x01\xc7\x00\x2a", id="an extension"),
    ],
)
def test_whatever_is_no_head_is_refused(head: bytes) -> None:
    with pytest.raises(MalformedFrame) as refused:
        decode_request(head)
    assert refused.value.correlation == (5 if head.startswith((b"\x91\x05", b"\x92\x05")) else 0)


@given(st.binary(max_size=60) | st.builds(bytes.__add__, st.just(b"\x92\x05"), st.binary(max_size=60)))
def test_random_bytes_are_a_message_or_are_refused(head: bytes) -> None:
    for answer in (decode_request, decode_reply):
        try:
            correlation, _ = answer(head)
        except (MalformedFrame, UnsupportedVersion) as refused:
            correlation = refused.correlation
        assert 0 <= correlation <= CORRELATION_MAX


@every_message
@few
@given(data=st.data())
def test_a_damaged_head_is_a_message_or_is_refused(cls: Message, data: st.DataObject) -> None:
    head = bytearray(encode_head(5, data.draw(messages(cls))))
    head[data.draw(st.integers(0, len(head) - 1))] ^= data.draw(st.integers(1, 255))
    with suppress(MalformedFrame, UnsupportedVersion):
        correlation, message = decode(cls, bytes(head))
        assert decode(cls, encode_head(correlation, message)) == (correlation, message)


@pytest.mark.parametrize(
    ("message", "path"),
    [
        (Produce(-1, -1, ()), "Produce.timeout_ms"),
        (Produce(-(2**15) - 1, 0, ()), "Produce.acks"),
        (Produce(-1, 0, (PartitionProduce(TOPIC[1:], 0, 0),)), "Produce.partitions[0].topic_id"),
        (Produce(-1, 0, (PartitionProduce(TOPIC, -1, 0),)), "Produce.partitions[0].index"),
        (Produce(-1, 0, (PartitionProduce(TOPIC, 0, -1),)), "Produce.partitions[0].records_size"),
        (Produce(-1, 0, (PartitionProduce(TOPIC, 0, 0, -2),)), "Produce.partitions[0].leader_epoch"),
        (Fetch(0, 0, 0, (PartitionFetch(TOPIC, 0, -2, 0),)), "Fetch.partitions[0].fetch_offset"),
        (Fetch(0, 0, 0, (PartitionFetch(TOPIC, 0, 2**63, 0),)), "Fetch.partitions[0].fetch_offset"),
        (Fetch(0, 0, 0, (), isolation=2), "Fetch.isolation"),
        (Fetch(0, 0, 0, (PartitionFetch(TOPIC, 0, 0, 0),) * 65_537), "Fetch.partitions"),
        (Hello("x" * 1025), "Hello.client_id"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_value_that_could_hurt_is_refused(message: Request, path: str) -> None:
    with pytest.raises(MalformedFrame) as refused:
        decode_request(encode_head(1, message))
    assert str(refused.value).startswith(f"{path}: Expected ")


def test_a_head_is_read_from_any_buffer_and_keeps_nothing_of_it() -> None:
    buffer = bytearray(encode_head(1, PRODUCE))
    _, message = decode_request(memoryview(buffer))
    buffer[:] = bytes(len(buffer))
    assert message == PRODUCE


# ---------------------------------------------------------------------------- attachments


def entries(*sizes: int) -> list[PartitionProduce]:
    return [PartitionProduce(TOPIC, index, size) for index, size in enumerate(sizes)]


def test_an_attachment_is_split_in_the_order_of_the_entries() -> None:
    assert split_attachment(b"aabbb", entries(2, 0, 3)) == [b"aa", b"", b"bbb"]


@pytest.mark.parametrize("sizes", [(), (2,), (2, 2), (2, 4), (2**31 - 1,) * 3])
def test_sizes_that_do_not_add_up_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(
        MalformedFrame, match=rf"{len(sizes)} entries claim {sum(sizes)} bytes .* 5 are attached"
    ):
        split_attachment(b"aabbb", entries(*sizes))


def test_parts_of_an_attachment_are_views() -> None:
    attachment = bytearray(b"aabbb")
    first, _ = split_attachment(attachment, entries(2, 3))
    attachment[0] = ord("z")
    assert bytes(first) == b"za"
