"""Groups in storms: messages lost, repeated and late, members that die, coordinators that move, topics that grow."""

import pytest

from tests.broker.groups_world import storm


@pytest.mark.parametrize("seed", range(40))
def test_a_group_keeps_its_promises_in_a_storm_and_is_content_after_it(seed: int) -> None:
    storm(seed)


@pytest.mark.parametrize("seed", range(15))
def test_second_processes_of_an_instance_do_no_harm_in_a_storm(seed: int) -> None:
    world = storm(seed, twins=True)
    assert world.commits_taken
