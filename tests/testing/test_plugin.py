"""The pytest plugin, in a pytest of its own: as tests of users' programs meet it."""

import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "TESTING.md"

pytest_plugins = ["pytester"]

USES = """
    import pytest

    {strict}
    async def test_what_was_sent_is_read(tidelog_cluster, tidelog_client):
        assert sorted(tidelog_cluster.nodes) == ["b1", "b2", "b3", "c1"]
        await tidelog_client.admin.create_topics("orders")
        async with tidelog_client.producer() as producer:
            done = await producer.send("orders", b"v")
        assert (done.partition, done.offset) == (0, 0)

    {strict}
    @pytest.mark.tidelog(brokers=1, settings={{"num.partitions": 2}})
    async def test_the_marker_says_what_cluster(tidelog_cluster):
        assert sorted(tidelog_cluster.nodes) == ["b1", "c1"]
"""


@pytest.fixture(autouse=True)
def only_what_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else is installed here has no say."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def run(pytester: pytest.Pytester, *words: str, asyncio: bool = True) -> pytest.RunResult:
    plugins = ["-p", "tidelog.testing.plugin", *(["-p", "pytest_asyncio.plugin"] if asyncio else [])]
    return pytester.runpytest_subprocess(*plugins, "--strict-markers", "-W", "error", *words)


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "strict"), [("auto", ""), ("strict", "@pytest.mark.asyncio")])
def test_the_fixtures_run_in_each_mode_of_pytest_asyncio(
    pytester: pytest.Pytester, mode: str, strict: str
) -> None:
    pytester.makepyfile(USES.format(strict=strict))
    scope = "asyncio_default_fixture_loop_scope=function"
    run(pytester, "-o", f"asyncio_mode={mode}", "-o", scope).assert_outcomes(passed=2)


@pytest.mark.slow
def test_the_example_of_the_page_runs_as_printed_in_the_mode_that_is_the_default(
    pytester: pytest.Pytester,
) -> None:
    section = PAGE.read_text(encoding="utf-8").split("## pytest\n")[1].split("\n# ")[0]
    pytester.makepyfile("\n".join(re.findall(r"^    (.*)$", section, re.MULTILINE)))
    scope = (
        "asyncio_default_fixture_loop_scope=function"  # whose want is a warning, and those are errors here
    )
    run(pytester, "-o", scope).assert_outcomes(passed=1)


def test_without_pytest_asyncio_a_test_that_needs_it_says_so(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_nothing(tidelog_cluster): ...")
    ran = run(pytester, asyncio=False)
    ran.assert_outcomes(errors=1)
    ran.stdout.fnmatch_lines(["*pip install pytest-asyncio*"])


def test_a_word_that_no_cluster_knows_is_named(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        @pytest.mark.tidelog(borkers=3)
        async def test_it(tidelog_cluster): ...
    """)
    ran = run(pytester, "-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function")
    ran.assert_outcomes(errors=1)
    ran.stdout.fnmatch_lines(["*pytest.mark.tidelog: *borkers*"])


def test_whoever_does_not_use_it_pays_next_to_nothing() -> None:
    heavy = {"asyncio", "msgspec", "uvloop", "pytest_asyncio"}
    program = (
        "import sys, pytest; before = set(sys.modules); import tidelog.testing.plugin; "
        "print(*(set(sys.modules) - before))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not heavy & set(ran.stdout.split())
    assert "tidelog.testing.plugin" in ran.stdout


def test_an_installed_tidelog_brings_it() -> None:
    (found,) = (point for point in entry_points(group="pytest11") if point.name == "tidelog")
    assert found.value == "tidelog.testing.plugin"
