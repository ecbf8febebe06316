"""Curves are pictures that say what was measured: drawn from kept runs, readable as text, the same every time."""

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from scripts.benches import evidence, front_page, growth
from scripts.benches.all import BENCHES
from scripts.benches.picture import HEIGHT, WIDTH, Axis, Line, draw, words

ROOT = Path(__file__).resolve().parents[1]
SVG = "{http://www.w3.org/2000/svg}"


def picture(*lines: Line, log: bool = True) -> ET.Element:
    return parsed(draw("A title", Axis("partitions"), Axis("MB/s", log), lines, "a caption"))


def parsed(content: str) -> ET.Element:
    return ET.fromstring(content)  # noqa: S314 -- our own


def texts(drawn: ET.Element) -> list[str]:
    return [each.text or "" for each in drawn.iter(f"{SVG}text")]


# ── drawing ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_picture_says_what_it_shows() -> None:
    drawn = picture(Line("produced", ((10, 3), (1000, 40))), Line("the goal", ((10, 20), (1000, 20)), True))
    said = texts(drawn)
    assert {"A title", "partitions", "MB/s", "produced", "the goal", "a caption"} <= set(said)
    assert {"10", "100", "1k"} <= set(said)


def test_equal_factors_are_equal_steps_on_a_logarithmic_axis() -> None:
    drawn = picture(Line("produced", ((1, 5), (10, 6), (100, 7))))
    at = [float(x) for x in re.findall(r"[ML]([\d.]+) ", _path(drawn, "line", 1))]
    assert at[1] - at[0] == pytest.approx(at[2] - at[1], abs=0.2)


def test_equal_differences_are_equal_steps_on_a_linear_axis_that_begins_at_zero() -> None:
    drawn = picture(Line("idle", ((1, 1), (10, 2), (100, 3))), log=False)
    up = [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", _path(drawn, "line", 1))]
    assert up[0] - up[1] == pytest.approx(up[1] - up[2], abs=0.2)
    assert "0" in texts(drawn)


def _path(drawn: ET.Element, kind: str, number: int) -> str:
    """The legend's come first."""
    return [each.get("d", "") for each in drawn.iter(f"{SVG}path") if each.get("class") == kind][number]


@pytest.mark.parametrize("value", [1e-3, 0.7, 1, 3, 999, 1e6])
@pytest.mark.parametrize("factor", [1, 1.01, 30, 1e7])
def test_every_point_is_within_the_frame(value: float, factor: float) -> None:
    drawn = picture(Line("a", ((value, value), (value * factor, value * factor))))
    for x, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", _path(drawn, "line", 1)):
        assert 0 < float(x) < WIDTH
        assert 0 < float(y) < HEIGHT


def test_lines_have_markers_of_their_own_and_references_are_dashed() -> None:
    drawn = picture(
        Line("a", ((1, 1),)), Line("b", ((1, 2),)), Line("c", ((1, 3),)), Line("r", ((1, 1), (2, 1)), True)
    )
    marks = [
        re.sub(r"[\d.]+", "", path.get("d", ""))
        for path in drawn.iter(f"{SVG}path")
        if path.get("class") == "mark"
    ]
    assert len(set(marks)) == 3
    assert (
        sum(path.get("class") == "line dash" for path in drawn.iter(f"{SVG}path")) == 2
    )  # the legend's as well


def test_it_has_colours_for_light_pages_and_for_dark_ones() -> None:
    light, dark = draw("t", Axis("x"), Axis("y"), [Line("a", ((1, 1),))], "").split(
        "@media (prefers-color-scheme: dark)"
    )
    for number in range(6):
        name = f".c{number} .line {{ stroke: #"
        assert light.count(name) == dark.count(name) == 1


def test_the_same_curves_give_the_same_bytes_and_words_cannot_break_them() -> None:
    def drawn() -> str:
        return draw("<a> & b", Axis("x"), Axis("y"), [Line('"1" < 2', ((1, 1), (2, 2)))], "c > d")

    assert drawn() == drawn()
    assert "<a> & b" in texts(parsed(drawn()))


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="0 has no place on a logarithmic axis"):
        picture(Line("a", ((1, 0),)))
    with pytest.raises(ValueError, match="from 1 to 6 lines"):
        picture()


def test_numbers_at_an_axis_are_short() -> None:
    assert [words(value) for value in (0.5, 1, 100, 1000, 2500, 1e6, 1e9)] == [
        "0.5", "1", "100", "1k", "2.5k", "1M", "1G",
    ]  # fmt: skip


# ── what is drawn ─────────────────────────────────────────────────────────────────────────────────────


def kept_run(scale: float = 1.0) -> dict[str, Any]:
    """As if every section had measured its rows; none of the figures is of a machine."""
    benches = {
        bench.name: {
            "foreign_cores": [0.5],
            "rows": [
                {
                    "name": row.name,
                    "unit": row.unit,
                    "median": scale * number,
                    "reference": {"median": 2.0 * number},
                }
                for number, row in enumerate(bench.rows, 1)
            ],
        }
        for bench in BENCHES
        if bench.part_of == "growth"
    }
    return {"date": "2026-11-18T22:00Z", "commit": "c0ffee00", "machine": {"cores": 2}, "benches": benches}


def test_every_section_has_pictures_whose_points_are_rows_of_its_bench() -> None:
    sections = {bench.name for bench in BENCHES if bench.part_of == "growth"}
    assert {plot.section for plot in growth.PLOTS} == sections
    drawn = dict(growth.pictures([kept_run()]))
    assert list(drawn) == [plot.file for plot in growth.PLOTS]
    for content in drawn.values():
        [caption] = [text for text in texts(parsed(content)) if text.startswith("scripts/bench")]
        assert caption.endswith(", 2026-11-18, commit c0ffee00, 0.5 of 2 cores busy with others")


def test_the_last_run_of_a_section_is_drawn_and_a_section_without_one_is_not() -> None:
    first, last = kept_run(), kept_run(3.0)
    del last["benches"]["growth-log"]
    drawn = dict(growth.pictures([first, last]))
    assert drawn["producers.svg"] == dict(growth.pictures([last]))["producers.svg"]
    assert drawn["log-opening.svg"] == dict(growth.pictures([first]))["log-opening.svg"]
    assert "log-opening.svg" not in dict(growth.pictures([last]))


def test_the_pictures_in_docs_are_those_of_the_kept_runs() -> None:
    """`scripts/bench --pages` draws them."""
    directory = ROOT / "docs/growth"
    there = {file.name: file.read_text("utf-8") for file in sorted(directory.glob("*.svg"))}
    assert there == dict(growth.pictures(evidence.entries(ROOT / "docs/evidence/bench.json")))


def test_the_front_page_names_the_pictures_that_there_are() -> None:
    page = f"before {front_page.BEGIN}old{front_page.END} after"
    assert "docs/growth" not in front_page.written(page, [])
    written = front_page.written(page, [kept_run()])
    assert [f"docs/growth/{plot.file}" in written for plot in growth.PLOTS] == [True] * len(growth.PLOTS)
    assert front_page.written(written, [kept_run()]) == written


def test_pictures_are_written_where_they_belong(tmp_path: Path) -> None:
    assert growth.write_pictures([], tmp_path / "growth") == []
    assert not (tmp_path / "growth").exists()
    run = json.loads(json.dumps(kept_run()))
    names = growth.write_pictures([run], tmp_path / "growth")
    assert sorted(names) == sorted(file.name for file in (tmp_path / "growth").iterdir())
