"""What a node is told when it starts: from where, under which name, and what is refused (DECISIONS 22)."""

from typing import get_args

import pytest
from scripts.docs import CONFIGURATION_PAGE, configuration_page

from tidelog.broker.config import FIELDS as BROKER_FIELDS
from tidelog.broker.config import BrokerConfig
from tidelog.cli.node.settings import (
    PLACES,
    fields,
    of_environment,
    of_file,
    of_flags,
    parse_address,
    parse_listeners,
    parse_voters,
    settle,
)
from tidelog.cli.options import Address
from tidelog.controller.config import FIELDS as CONTROLLER_FIELDS
from tidelog.controller.config import ControllerConfig, told
from tidelog.protocol.errors import InvalidConfig
from tidelog.protocol.settings import SETTINGS, configured
from tidelog.protocol.types import BrokerId
from tidelog.storage.identity import Role

BROKER = BrokerConfig(broker_id=BrokerId(1), controllers=((1, "127.0.0.1", 9192),))
CONTROLLER = ControllerConfig(node_id=BrokerId(1), voters=((1, "127.0.0.1", 9192),))


def values(role: Role, *sources) -> dict[str, str]:  # type: ignore[no-untyped-def]
    return {key: said.value for key, said in settle(role, *sources).items()}


def refused(role: Role, *sources) -> str:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidConfig) as raised:
        settle(role, *sources)
    return str(raised.value)


# ── where it is said ──────────────────────────────────────────────────────────────────────────────────


def test_tables_in_a_file_are_names_with_dots() -> None:
    text = 'node.id = 7\n[replica.lag.time]\nmax.ms = 5000\n[broker]\nrack = "b"\n[log]\ndir = "/x"\n'
    assert values("broker", of_file(text, "f")) == {
        "node.id": "7",
        "replica.lag.time.max.ms": "5000",
        "broker.rack": "b",
        "log.dir": "/x",
    }


def test_variables_have_underscores_for_dots() -> None:
    environment = {"TIDELOG_REPLICA_LAG_TIME_MAX_MS": "5000", "HOME": "/", "TIDELOG_BOOTSTRAP": "h:1"}
    assert values("broker", of_environment(environment)) == {"replica.lag.time.max.ms": "5000"}


def test_underscores_are_taken_everywhere() -> None:
    assert values("broker", of_flags("broker", {}, ["segment_bytes=4096"])) == {"segment.bytes": "4096"}


def test_a_list_in_a_file_is_one_text() -> None:
    text = 'controller.quorum.voters = ["1@a:1", "2@b:2"]'
    assert values("controller", of_file(text, "f")) == {"controller.quorum.voters": "1@a:1,2@b:2"}


def test_flags_win_over_the_environment_and_that_over_the_file() -> None:
    file = "segment.bytes = 1024\nflush.ms = 1\nsegment.ms = 1"
    environment = {"TIDELOG_SEGMENT_BYTES": "2048", "TIDELOG_FLUSH_MS": "2"}
    sources = (
        of_flags("broker", {}, ["segment.bytes=4096"]),
        of_environment(environment),
        of_file(file, "f"),
    )
    assert values("broker", *sources) == {"segment.bytes": "4096", "flush.ms": "2", "segment.ms": "1"}


def test_a_flag_and_its_setting_are_one_name() -> None:
    why = refused("broker", of_flags("broker", {"node.id": "1"}, ["node.id=2"]))
    assert why == "--id and -X node.id both say node.id: say it once"


# ── what is refused ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("source", "where"),
    [
        (of_file("replica.lag.tme.max.ms = 1", "b.toml"), "b.toml: replica.lag.tme.max.ms"),
        (of_environment({"TIDELOG_REPLICA_LAG_TME_MAX_MS": "1"}), "TIDELOG_REPLICA_LAG_TME_MAX_MS: "),
        (of_flags("broker", {}, ["replica.lag.tme.max.ms=1"]), "-X replica.lag.tme.max.ms: "),
    ],
)
def test_an_unknown_name_is_refused_with_its_place_and_the_nearest(source, where: str) -> None:  # type: ignore[no-untyped-def]
    why = refused("broker", source)
    assert why.startswith(where)
    assert why.endswith("there is no such setting; the nearest is replica.lag.time.max.ms")


def test_a_name_like_no_other_is_refused_as_well() -> None:
    assert "there is no such setting; the nearest is" in refused("broker", of_file("zzz = 1", "f"))


def test_what_belongs_to_the_other_role_is_refused() -> None:
    assert "this is for a controller" in refused("broker", of_file("quorum.fetch.timeout.ms = 1", "f"))
    assert "this is for a broker" in refused("controller", of_file('broker.rack = "a"', "f"))


def test_what_is_not_obeyed_at_the_start_is_refused_with_the_way_to_set_it() -> None:
    why = refused("broker", of_file("retention.ms = 1", "f"))
    assert why.endswith("set it while the cluster runs, with `tidelog config set topic`")


def test_every_setting_is_obeyed_or_refused() -> None:
    for role in get_args(Role):
        for key, setting in SETTINGS.items():
            said = setting.default or "1"
            if key in fields(role):
                assert values(role, of_flags(role, {}, [f"{key}={said}"])) == {key: said}
            else:
                refused(role, of_flags(role, {}, [f"{key}={said}"]))


@pytest.mark.parametrize("said", ["0", "x", "", "1.5", "99999999999"])
def test_a_value_is_what_the_table_of_settings_accepts(said: str) -> None:
    why = refused("broker", of_flags("broker", {}, [f"replica.lag.time.max.ms={said}"]))
    assert why == (
        f"-X replica.lag.time.max.ms: replica.lag.time.max.ms={said}: it must be a whole number from 1 to 2147483647"
    )


def test_two_spellings_in_one_source_are_refused() -> None:
    why = refused("broker", of_file("segment.bytes = 1024\nsegment_bytes = 1024", "b.toml"))
    assert why == "b.toml: segment.bytes and segment_bytes are both segment.bytes: say it once"
    twice = refused("broker", of_flags("broker", {}, ["segment.bytes=1024", "segment_bytes=1024"]))
    assert twice == "-X segment.bytes and -X segment_bytes both say segment.bytes: say it once"


def test_a_broken_file_is_refused_with_its_line() -> None:
    assert "b.toml is not TOML" in (why := refused("broker", of_file("a = 1\nb = = 2", "b.toml")))
    assert "line 2" in why


@pytest.mark.parametrize("value", ["2026-01-01", "[[1]]", "[{a = 1}]"])
def test_a_value_that_is_no_text_number_or_truth_is_refused(value: str) -> None:
    assert "it must be a text, a number, true or false" in refused(
        "broker", of_file(f"segment.bytes = {value}", "f")
    )


@pytest.mark.parametrize("pair", ["segment.bytes", "=1", ""])
def test_a_pair_is_a_key_and_a_value(pair: str) -> None:
    assert "it must be key=value" in refused("broker", of_flags("broker", {}, [pair]))


# ── what becomes of it ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("config", "table"),
    [(BROKER, BROKER_FIELDS), (CONTROLLER, CONTROLLER_FIELDS)],
    ids=["broker", "controller"],
)
def test_every_field_has_the_default_that_the_table_says(config, table) -> None:  # type: ignore[no-untyped-def]
    for key, paths in table.items():
        for path in paths:
            value = config
            for name in path.split("."):
                value = getattr(value, name)
            text = str(value).lower() if isinstance(value, bool) else None if value is None else str(value)
            assert text == SETTINGS[key].default, (key, path)


@pytest.mark.parametrize(
    ("config", "table"),
    [(BROKER, BROKER_FIELDS), (CONTROLLER, CONTROLLER_FIELDS)],
    ids=["broker", "controller"],
)
def test_every_setting_reaches_its_fields(config, table) -> None:  # type: ignore[no-untyped-def]
    others = {"flush.mode": "group", "broker.session.timeout.ms": "12000", "true": "false", "false": "true"}
    for key in table:
        default = SETTINGS[key].default
        said = others.get(key) or others.get(str(default))
        said = said or (str(int(default) - 1) if default not in {None, "1"} else "2")
        changed = configured(config, table, {key: said})
        for path in table[key]:
            value = changed
            for name in path.split("."):
                value = getattr(value, name)
            assert str(value).lower() == said, (key, path)


def test_what_belongs_together_is_checked_together() -> None:
    both = {"broker.heartbeat.interval.ms": "4000", "broker.session.timeout.ms": "12000"}
    assert configured(BROKER, BROKER_FIELDS, both).broker_session_timeout_ms == 12_000
    with pytest.raises(InvalidConfig, match="three of them must fit"):
        configured(BROKER, BROKER_FIELDS, {"broker.heartbeat.interval.ms": "4000"})


def test_a_controller_is_as_patient_in_all_as_its_fetch_timeout() -> None:
    following = told(CONTROLLER, {"quorum.fetch.timeout.ms": "800"}).following
    assert (following.fetch_timeout_ms, following.connect_timeout_ms, following.fetch_max_wait_ms) == (
        800,
        400,
        200,
    )


# ── addresses ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:0", Address("127.0.0.1", 0)),
        ("[::1]:9092", Address("::1", 9092)),
        ("broker-1.example:65535", Address("broker-1.example", 65535)),
        ("::1:9092", None),
        ("host", None),
        (":9092", None),
        ("host:65536", None),
        ("host:x", None),
    ],
)
def test_addresses(text: str, address: Address | None) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["1@a:1,1@b:2", "a:1", "x@a:1", "1@a", ""])
def test_controllers_need_an_id_of_their_own_and_an_address(text: str) -> None:
    assert parse_voters(text) is None


def test_the_listeners_of_a_broker_have_names_but_for_the_first() -> None:
    inside, outside = Address("0.0.0.0", 9092), Address("::1", 0)  # noqa: S104 -- compared, not opened
    assert parse_listeners("0.0.0.0:9092, HOST://[::1]:0") == (("", inside), ("host", outside))
    assert parse_listeners("inside://0.0.0.0:9092") == (("inside", inside),)
    said = of_flags("broker", {"listeners": "0.0.0.0:9092 , HOST://[::1]:0"}, ())
    assert values("broker", said) == {"listeners": "0.0.0.0:9092,host://[::1]:0"}


@pytest.mark.parametrize(
    "text", ["", "h", "h:1,h:2", "a://h:1,h:2", "a://h:1,A://h:2", "://h:1", "a b://h:1", "h:1,a://h", "h:1,"]
)
def test_listeners_need_a_name_of_their_own_and_an_address(text: str) -> None:
    assert parse_listeners(text) is None


def test_a_controller_listens_on_one_address() -> None:
    assert "it must be HOST:PORT" in refused(
        "controller", of_flags("controller", {"listeners": "h:1,a://h:2"}, ())
    )


def test_every_place_has_a_flag() -> None:
    assert all(place.flags for place in PLACES.values())
    assert not PLACES.keys() & SETTINGS.keys()


def test_the_page_of_settings_is_what_the_tables_say() -> None:
    assert CONFIGURATION_PAGE.read_text(encoding="utf-8") == configuration_page(), "run scripts/docs"
