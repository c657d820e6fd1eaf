"""Charts are well-formed SVG that shows every point where it belongs."""

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from fdcnet.report.charts import Series, line_chart, number, swatch, ticks


def draw(*series: Series, **options: object) -> ElementTree.Element:
    return ElementTree.fromstring(line_chart(list(series), "Chart", **options))  # type: ignore[arg-type]


def texts(chart: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in chart.iter("text")]


def lines(chart: ElementTree.Element) -> list[str]:
    return [path.get("d", "") for path in chart.iter("path") if path.get("class") == "line"]


@pytest.mark.parametrize(
    ("low", "high", "about", "expected"),
    [
        (0, 100, 5, [0, 20, 40, 60, 80, 100]),
        (0, 1, 5, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (3, 7, 5, [3, 4, 5, 6, 7]),
        (-1, 1, 2, [-1, 0, 1]),
        (0.001, 0.0042, 3, [0.001, 0.002, 0.003, 0.004]),
    ],
)
def test_ticks_are_round(low: float, high: float, about: int, expected: list[float]) -> None:
    assert ticks(low, high, about) == expected


def test_numbers_are_short() -> None:
    assert [number(v) for v in (0, 0.05, 2.5, 80.0, -3, 12000)] == ["0", "0.05", "2.5", "80", "−3", "12k"]


def test_points_lie_where_their_values_are() -> None:
    chart = draw(Series("a", [(1, 0.0), (2, 100.0), (3, 50.0)]), y_range=(0, 100), width=400, height=200)
    (path,) = lines(chart)
    (x1, y1), (x2, y2), (x3, y3) = [tuple(map(float, pair)) for pair in re.findall(r"[ML]([\d.]+) ([\d.]+)", path)]
    assert x2 - x1 == pytest.approx(x3 - x2)
    assert y1 - y3 == pytest.approx(y3 - y2)  # 50 is half-way from 0 to 100
    assert y1 > y2


def test_a_missing_value_interrupts_the_line() -> None:
    (path,) = lines(draw(Series("a", [(1, 1.0), (2, 2.0), (3, None), (4, 3.0), (5, float("nan")), (6, 2.0)])))
    assert [step[0] for step in re.findall(r"[ML][^ML]+", path)] == ["M", "L", "M", "M"]


def test_a_lonely_point_is_visible_without_markers() -> None:
    chart = draw(Series("a", [(1, 1.0), (2, None), (3, 2.0), (4, 2.5)]), markers=False)
    assert len([path for path in chart.iter("path") if path.get("class") != "line"]) == 1


def test_series_differ_in_colour_dash_and_marker() -> None:
    chart = draw(*(Series(name, [(1, 1.0), (2, 2.0)], i) for i, name in enumerate("abc")))
    strokes = {(path.get("style"), path.get("stroke-dasharray")) for path in chart.iter("path") if path.get("class")}
    markers = {path.get("d") for path in chart.iter("path") if not path.get("class")}
    assert len(strokes) == 3
    assert len(markers) == 3
    assert all("var(--series-" in (style or "") for style, _ in strokes)


def test_legend_and_labels_are_written_and_escaped() -> None:
    hostile = '</svg><script>alert("x")</script>'
    chart = draw(Series(hostile, [(1, 10.0)], 0), Series("b", [(1, 20.0)], 1), x_label="task", end_values=True)
    assert {"b", "task", "10.0", "20.0"} <= set(texts(chart))
    assert hostile in texts(chart)
    assert not list(chart.iter("script"))


def test_a_long_legend_takes_more_rows() -> None:
    short = draw(*(Series("ab", [(1, 1.0)], i) for i in range(2)))
    long = draw(*(Series("a rather long name of a run", [(1, 1.0)], i) for i in range(4)))
    rows = [len({t.get("y") for t in chart.iter("text") if t.get("class") == "key"}) for chart in (short, long)]
    assert rows == [1, 2]


def test_end_values_do_not_overlap() -> None:
    close = [Series(str(i), [(1, 50.0), (2, 50.0 + i / 10)], i) for i in range(4)]
    chart = draw(*close, y_range=(0, 100), end_values=True)
    heights = sorted(float(t.get("y", 0)) for t in chart.iter("text") if t.get("class") == "end")
    assert all(lower - upper >= 13.9 for upper, lower in pairwise(heights))


def test_only_end_values_that_collide_are_moved() -> None:
    series = [Series(str(i), [(1, 0.0), (2, y)], i) for i, y in enumerate((100.0, 1.0, 0.0, -0.001))]
    chart = draw(*series, y_range=(0, 100), end_values=True)
    ends = {t.text: float(t.get("y", 0)) for t in chart.iter("text") if t.get("class") == "end"}
    assert "−0.0" not in ends
    top = min(float(t.get("y", 0)) for t in chart.iter("text") if t.text == "100")
    assert ends["100.0"] == top
    assert ends["0.0"] - ends["1.0"] >= 13.9


def test_a_ninth_line_looks_like_no_other() -> None:
    assert len({str(swatch(style)) for style in range(16)}) == 16


def test_the_ends_of_the_axis_have_numbers() -> None:
    written = texts(draw(Series("a", [(1, 12.0), (2, 88.0)]), y_range=(0, 90), height=340))  # a step of 20
    assert {"0", "100"} <= set(written)


def test_nothing_to_draw_is_nothing() -> None:
    assert line_chart([Series("a", [(1, None)])], "Chart") == ""
    assert line_chart([], "Chart") == ""


def test_flat_and_single_values_have_an_axis() -> None:
    assert "0" in texts(draw(Series("a", [(1, 0.0), (2, 0.0)])))
    assert "5" in texts(draw(Series("a", [(1, 5.0)])))
    assert "−2" in texts(draw(Series("a", [(1, -2.0), (2, 1.0)])))


def test_swatch_is_well_formed() -> None:
    assert ElementTree.fromstring(swatch(7)).get("aria-hidden") == "true"
