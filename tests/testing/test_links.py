"""Who hears whom: every direction of every pair by itself."""

from tidelog.protocol.messages import Hello, Metadata, encode_head
from tidelog.testing.links import CLIENTS, GOOD, Links, both_ways, node_name
from tidelog.testing.proxying import who_says


def test_a_cut_is_of_one_direction_and_healed_by_itself() -> None:
    links = Links()
    links.cut([("b1", "b2")], "drop")
    assert links.between("b1", "b2").dropped
    assert links.between("b2", "b1") is GOOD
    links.heal([("b1", "b2")])
    assert links.between("b1", "b2") is GOOD


def test_a_cut_keeps_the_delay_and_a_delay_the_cut() -> None:
    links = Links()
    links.delay([("b1", "b2")], 0.5)
    links.cut([("b1", "b2")], "reset")
    assert (links.between("b1", "b2").delay_s, links.between("b1", "b2").cut) == (0.5, "reset")


def test_a_reset_of_one_direction_forbids_the_connection() -> None:
    links = Links()
    links.cut([("b1", "b2")], "reset")
    assert links.are_reset("b2", "b1")
    assert links.are_reset("b1", "b2")
    assert not links.are_reset("b1", "b3")


def test_watchers_hear_of_every_change_until_they_stop() -> None:
    links, heard = Links(), []
    stop = links.watch(lambda: heard.append(len(links.to_values())))
    links.cut(both_ways([("b1", CLIENTS)]), "drop")
    links.heal()
    stop()
    links.delay([("b1", "b2")], 1)
    assert heard == [2, 0]


def test_a_table_reaches_another_process_as_it_is() -> None:
    links, others = Links(), Links()
    others.cut([("b3", "b1")], "drop")
    links.cut([("b1", "b2")], "reset")
    links.delay([("c1", "b2")], 0.25)
    others.set_values(links.to_values())
    assert others.to_values() == links.to_values()


def test_nodes_are_named_by_role_and_number() -> None:
    assert [node_name(1), node_name("b2"), node_name("c1"), node_name(CLIENTS)] == [
        "b1",
        "b2",
        "c1",
        "clients",
    ]


def opening(message: Hello | Metadata) -> bytes:
    head = encode_head(1, message)
    return b"TIDE\x01" + (len(head) + 4).to_bytes(4, "big") + len(head).to_bytes(4, "big") + head


def test_who_calls_is_heard_from_the_first_frame_and_not_before_it_is_whole() -> None:
    said = opening(Hello(client_id="broker-12"))
    assert [who_says(said[:size]) for size in range(len(said))] == [None] * len(said)
    assert who_says(said) == who_says(said + b"more") == "b12"
    assert who_says(opening(Hello(client_id="controller-3"))) == "c3"


def test_whoever_is_no_node_is_a_client() -> None:
    assert who_says(opening(Hello(client_id="broker-x"))) == CLIENTS
    assert who_says(opening(Hello(client_id="an app"))) == CLIENTS
    assert who_says(opening(Metadata())) == CLIENTS
    assert who_says(b"GET / HTTP/1.1\r\n") == CLIENTS
    assert who_says(b"TIDE\x01" + b"\xff" * 8) == CLIENTS
