"""docker-compose.yml, Dockerfile and .dockerignore: the cluster that they describe, as processes of this machine."""

import fnmatch
import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from importlib.metadata import distribution
from typing import Any

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.cli.node_processes import clean_environment, command
from tests.compose_file import DATA, FILE, ROOT, Local, read, seconds
from tidelog.broker.config import BrokerConfig
from tidelog.protocol.types import BrokerId

COMPOSE = read(FILE.read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
CONTROLLERS = ["controller-1", "controller-2", "controller-3"]
BROKERS = ["broker-1", "broker-2", "broker-3"]
INSIDE, OUTSIDE = 9092, 19092
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


# ── the file ──────────────────────────────────────────────────────────────────────────────────────────


def test_the_reader_reads_what_it_understands_and_refuses_the_rest() -> None:
    text = 'a: &x\n  k: [CMD, "y: 1, 2"]\n  l: 5s\nb:\n  <<: *x\n  l:\n    - --q=1@h:1\n    - "z"\nc:\n'
    above = {"k": ["CMD", "y: 1, 2"], "l": "5s"}
    assert read(text) == {"a": above, "b": {**above, "l": ["--q=1@h:1", "z"]}, "c": None}
    for wrong in (
        "a: {b: c}",
        "a: 'b'",
        "a: |",
        "a: b # c",
        "a:\n    b: c\n  d: e",
        "a: 1\na: 2",
        "a: b: c",
        "a: *x",
        "a:\n  - - b",
    ):
        with pytest.raises((AssertionError, KeyError)):
            read(wrong + "\n")


def test_there_are_three_controllers_and_three_brokers_in_three_racks() -> None:
    assert [*SERVICES] == CONTROLLERS + BROKERS
    racks = [word for name in BROKERS for word in SERVICES[name]["command"] if word.startswith("--rack=")]
    assert len({*racks}) == len(racks) == 3
    assert [name for name in SERVICES if f"--id={name[-1]}" not in SERVICES[name]["command"]] == []


def test_every_node_has_a_volume_a_health_check_and_comes_back() -> None:
    assert [*COMPOSE["volumes"]] == [*SERVICES]
    for name, service in SERVICES.items():
        assert service["volumes"] == [f"{name}:{DATA}"]
        assert f"--data={DATA}" in service["command"]
        assert "/readyz" in service["healthcheck"]["test"][-1]
        assert service["restart"] == "unless-stopped"


def test_brokers_have_the_time_to_hand_over_and_are_stopped_before_the_controllers() -> None:
    config = BrokerConfig(broker_id=BrokerId(1), controllers=((1, "h", 1),))
    for name in BROKERS:
        assert seconds(SERVICES[name]["stop_grace_period"]) * 1000 > config.controlled_shutdown_max_ms
        assert SERVICES[name]["depends_on"] == CONTROLLERS


def test_only_loopback_addresses_of_the_host_are_published_and_those_are_advertised() -> None:
    published = {port: name for name, service in SERVICES.items() for port in service.get("ports", ())}
    assert published == {f"127.0.0.1:{9091 + int(name[-1])}:{OUTSIDE}": name for name in BROKERS}
    for port, name in published.items():
        host_side = port.rpartition(":")[0]
        assert f"--advertise={name}:{INSIDE},host://{host_side}" in SERVICES[name]["command"]


def test_the_client_of_the_container_engine_accepts_the_file() -> None:
    compose = next((each for each in (["docker", "compose"], ["docker-compose"]) if _works(each)), None)
    if compose is None:
        pytest.skip("no docker compose here: the file was read by the tests' own reader only")
    done = subprocess.run(
        [*compose, "-f", FILE, "config", "--format", "json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)["services"]
    assert {name: service["command"] for name, service in told.items()} == {
        name: service["command"] for name, service in SERVICES.items()
    }


def _works(compose: list[str]) -> bool:
    if shutil.which(compose[0]) is None:
        return False
    return subprocess.run([*compose, "version"], capture_output=True, timeout=60, check=False).returncode == 0


# ── the image ─────────────────────────────────────────────────────────────────────────────────────────


def test_the_image_is_tidelog_not_as_root_and_is_stopped_in_order() -> None:
    last = DOCKERFILE.rpartition("\nFROM ")[2]
    assert 'ENTRYPOINT ["tidelog"]' in last
    assert "STOPSIGNAL SIGTERM" in last
    assert re.search(r"^USER [1-9]\d+$", last, re.MULTILINE)
    assert f"install -d -o tidelog -g tidelog {DATA}" in last
    assert not re.search(r"apt-get|gcc|curl", DOCKERFILE)


def test_what_the_image_installs_is_locked() -> None:
    download = "--require-hashes --only-binary :all: --dest /wheels --requirement requirements-image.lock"
    assert download in DOCKERFILE
    _, index_is_asked, locked = DOCKERFILE.partition("ENV PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels")
    assert index_is_asked
    assert [line for line in locked.splitlines() if "pip download" in line] == []


IMAGE = {key: str(value) for key, value in default_environment().items()}
IMAGE |= {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
IMAGE |= {"python_version": "3.13", "python_full_version": "3.13.0", "implementation_name": "cpython"}


def locked(name: str) -> dict[str, str]:
    """What stands in that lock, hashes included, by the name of the package."""
    entries = re.split(r"^(?=\S)", (ROOT / name).read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return {entry.partition("==")[0]: entry for entry in entries}


def applies(requirement: Requirement) -> bool:
    """Whether the image needs it: what is for extras, for older Pythons and for other systems is not."""
    return requirement.marker is None or requirement.marker.evaluate({**IMAGE, "extra": ""})


def test_the_image_downloads_what_tidelog_and_its_build_need_and_no_more() -> None:
    """Above all nothing of Spark: pyspark has no wheel, and the Dockerfile takes wheels only."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    left = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    needed: set[str] = set()
    while left:
        requirement = Requirement(left.pop())
        name = canonicalize_name(requirement.name)
        if applies(requirement) and name not in needed:
            needed.add(name)
            left += distribution(name).requires or ()
    image, everything = locked("requirements-image.lock"), locked("requirements.lock")
    assert {
        name for name, entry in image.items() if applies(Requirement(entry.partition(" \\")[0]))
    } == needed
    assert {name: everything.get(name) for name in image} == image, "run scripts/lock"
    assert all("--hash=sha256:" in entry for entry in image.values())


def test_the_image_is_built_from_all_that_the_wheel_is_made_of() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert lines[1] == "*"
    let_in = {line[1:] for line in lines if line.startswith("!")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]
    needed = {path.partition("/")[0] for path in wheel} | {"pyproject.toml", "requirements-image.lock"}
    needed |= {project["project"]["readme"], *project["project"]["license-files"]}
    assert let_in == needed
    assert [path for path in let_in if not (ROOT / path).exists() or fnmatch.fnmatch(path, "*.py[cod]")] == []


# ── the cluster ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """All of it, healthy by its own checks; brokers are started first, for which any order is good."""
    with Local(SERVICES, tmp_path_factory.mktemp("compose")) as local:
        assert not local.is_healthy("broker-1"), "a check that cannot fail"
        for name in BROKERS + CONTROLLERS:
            local.start(name)
        for name in SERVICES:
            local.until_healthy(name)
        yield local


def tidelog(at: str, *words: str, says: str = "") -> str:
    """What the command line prints, asked there."""
    done = subprocess.run(
        command("-b", at, *words),
        env=clean_environment(),
        input=says,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


def side(cluster: Local, port: int) -> list[str]:
    """Where the brokers are, as somebody on that side has to be told."""
    return [cluster.address(name, port) for name in BROKERS]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("port", "other"), [(INSIDE, OUTSIDE), (OUTSIDE, INSIDE)], ids=["inside", "from the host"]
)
def test_each_side_is_told_its_addresses_and_reads_what_the_other_writes(
    cluster: Local, port: int, other: int
) -> None:
    topic = f"orders-{port}"
    for at in side(cluster, port):
        told = [json.loads(line) for line in tidelog(at, "broker", "list", "-o", "json").splitlines()]
        assert [f"{broker['host']}:{broker['port']}" for broker in told] == side(cluster, port)
        assert [broker["rack"] for broker in told] == ["a", "b", "c"]
    here, there = side(cluster, port)[0], side(cluster, other)[1]
    tidelog(here, "topic", "create", topic, "-p", "3", "-r", "3")
    lines = [f"{topic} {number}" for number in range(300)]
    tidelog(here, "produce", topic, says="".join(f"{line}\n" for line in lines))
    for at in (here, there):
        assert sorted(tidelog(at, "consume", topic, "-o", "start", "--exit").splitlines()) == sorted(lines)


@pytest.mark.slow
def test_the_host_is_told_what_is_published(cluster: Local) -> None:
    assert [*cluster.published.values()] == side(cluster, OUTSIDE)
    assert next(iter(cluster.published)) == "127.0.0.1:9092", "where the command line looks by default"


@pytest.mark.slow
def test_all_stop_in_order_in_the_time_that_they_have(cluster: Local) -> None:
    assert cluster.stop(BROKERS) == dict.fromkeys(BROKERS, 0)
    assert cluster.stop(CONTROLLERS) == dict.fromkeys(CONTROLLERS, 0)
