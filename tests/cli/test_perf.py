"""`tidelog perf`: figures that users can take themselves."""

import json

from tests.cli.conftest import Tidelog
from tidelog.testing.failover import percentile


def test_a_percentile_is_the_smallest_that_so_many_are_not_above() -> None:
    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile(range(1, 21), 0.95) == 19
    assert percentile([7], 0.95) == 7


def test_failover_kills_real_processes_and_tells_each(tidelog: Tidelog) -> None:
    ran = tidelog("perf", "failover", "--kills", "1", "--controller-kills", "1", "-o", "json")
    assert ran.code == 0, ran
    kills = [json.loads(line) for line in ran.out.splitlines()]
    assert [line["type"] for line in kills] == ["kill", "kill", "failover", "failover"]
    assert [line["node"].split()[0] for line in kills[:2]] == ["broker", "controller"]
    for kill, told in zip(kills[:2], kills[2:], strict=True):
        assert told["kills"] == 1
        assert 0 < kill["ms"] == told["median_ms"] == told["p95_ms"] == told["longest_ms"]


def test_failover_shows_people_a_table(tidelog: Tidelog) -> None:
    ran = tidelog("perf", "failover", "--kills", "1", "--controller-kills", "0")
    assert ran.code == 0, ran
    head, line = ran.out.splitlines()
    assert head.split() == ["KILLED", "KILLS", "MEDIAN", "95", "%", "LONGEST"]
    assert line.startswith("leader of a partition")
    assert "killed broker" in ran.err
