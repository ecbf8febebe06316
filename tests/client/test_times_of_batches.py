"""When records were written that a consumer was given: told for any place, without looking at the others."""

import pytest

from tidelog.client.records import batch_from
from tidelog.protocol.records import decode, encode
from tidelog.protocol.types import NO_TIMESTAMP

TIMES = [1_000, 1_500, 1_200, 9_000, 9_000]


def test_a_record_is_before_the_next_offset() -> None:
    batch = batch_from("orders", 0, decode(encode([b"v"] * 5, timestamps=TIMES)), 0)
    assert batch is not None
    assert [batch.time_before(offset) for offset in range(7)] == [NO_TIMESTAMP, *TIMES, TIMES[-1]]
    some, rest = batch.split(2)
    assert rest is not None
    assert [some.time_before(offset) for offset in range(4)] == [NO_TIMESTAMP, 1_000, 1_500, 1_500]
    assert [rest.time_before(offset) for offset in range(2, 5)] == [NO_TIMESTAMP, 1_200, 9_000]


@pytest.mark.parametrize("times", [TIMES, [5] * 5, None])
def test_a_time_is_that_of_its_place(times: list[int] | None) -> None:
    columns = decode(encode([b"v"] * 5, timestamps=times, now_ms=77))
    assert [columns.time_at(place) for place in range(5)] == columns.timestamps
