"""The pool gives out memory that nobody else looks at."""

from hypothesis import given
from hypothesis import strategies as st

from tidelog.protocol.buffers import BufferPool, capacity_of


@given(st.integers(0, 2**31))
def test_a_capacity_holds_its_size_and_little_more(size: int) -> None:
    assert size <= capacity_of(size) <= max(size * 1.25, size + 4096)
    assert capacity_of(capacity_of(size)) == capacity_of(size)


def test_a_buffer_that_was_given_back_is_given_out_again() -> None:
    pool = BufferPool(1_000_000)
    buffer = pool.take(100_000)
    pool.give_back(buffer)
    assert pool.take(99_000) is buffer
    assert pool.pooled_bytes == 0


def test_a_buffer_that_somebody_still_looks_at_is_not_given_out_again() -> None:
    pool = BufferPool(1_000_000)
    buffer = pool.take(100_000)
    view = memoryview(buffer)[5:10]
    pool.give_back(buffer)
    assert pool.take(100_000) is not buffer
    assert pool.pooled_bytes == 0
    assert len(view) == 5


def test_the_pool_keeps_no_more_than_its_bound() -> None:
    pool = BufferPool(300_000)
    for buffer in [pool.take(100_000) for _ in range(5)]:
        pool.give_back(buffer)
        assert pool.pooled_bytes <= 300_000


def test_a_buffer_above_the_bound_is_not_kept() -> None:
    pool = BufferPool(1000)
    pool.give_back(pool.take(100_000))
    assert pool.pooled_bytes == 0


@given(st.lists(st.integers(1, 200_000), max_size=30))
def test_the_pool_counts_what_it_holds(sizes: list[int]) -> None:
    pool = BufferPool(500_000)
    taken: list[bytearray] = []
    for size in sizes:
        taken.append(pool.take(size))
        if size % 2:
            pool.give_back(taken.pop())
    held = sum(map(len, pool._returned)) + sum(len(b) for free in pool._free.values() for b in free)
    assert pool.pooled_bytes == held <= 500_000
