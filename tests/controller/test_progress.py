"""How far behind who follows the metadata log is said to be."""

from tidelog.controller.progress import Progress


def test_before_it_has_fetched_it_is_behind_since_the_epoch_began() -> None:
    progress = Progress(1000)
    assert (progress.end_offset, progress.silent_ms(1700), progress.behind_ms(5, 1700)) == (-1, 700, 700)


def test_at_the_end_it_is_not_behind_however_long_nothing_is_written() -> None:
    progress = Progress(0)
    progress.fetched(10, 10, 100)
    assert (progress.behind_ms(10, 9000), progress.silent_ms(9000)) == (0, 8900)
    assert progress.behind_ms(11, 9000) == 8900, "now there is something that it has not asked for since"


def test_who_keeps_up_is_never_at_the_end_under_load_and_behind_by_a_fetch_only() -> None:
    progress = Progress(0)
    for round_ in range(1, 100):
        progress.fetched(100 * round_, 100 * (round_ + 1), 50 * round_)
    assert progress.behind_ms(1 << 40, 50 * 99) == 50


def test_who_does_not_keep_up_is_behind_since_it_did() -> None:
    progress = Progress(0)
    progress.fetched(10, 10, 100)
    for round_ in range(1, 50):
        progress.fetched(10 + round_, 10 + 100 * round_, 100 + 50 * round_)
    assert progress.behind_ms(1 << 40, 3000) == 2900


def test_the_first_fetch_says_nothing_about_what_it_had_before() -> None:
    progress = Progress(0)
    progress.fetched(3, 10, 100)
    assert progress.behind_ms(10, 150) == 150
    progress.fetched(10, 12, 200)
    assert progress.behind_ms(12, 250) == 150, (
        "it had everything at its first fetch's end, when that was answered"
    )


def test_loading_a_snapshot_is_no_progress() -> None:
    progress = Progress(0)
    progress.fetched(-1, 10, 100)
    progress.fetched(-1, 10, 200)
    assert (progress.end_offset, progress.behind_ms(10, 300), progress.silent_ms(300)) == (-1, 300, 100)
