"""Text is escaped once and only once."""

from fdcnet.report.markup import Markup, escape, join, tag


def test_text_is_escaped_and_markup_is_not() -> None:
    inner = tag("b", "<&>")
    assert inner == "<b>&lt;&amp;&gt;</b>"
    assert tag("p", inner, "'") == "<p><b>&lt;&amp;&gt;</b>&#x27;</p>"


def test_attributes_are_escaped_renamed_and_left_out() -> None:
    assert tag("img", alt='" onload="x', stroke_width=2, class_="a", hidden=True, title=None, open=False) == (
        '<img alt="&quot; onload=&quot;x" stroke-width="2" class="a" hidden=""/>'
    )


def test_join_flattens_and_drops_none() -> None:
    assert join("a", None, ["b", [Markup("<br/>")]], (c for c in "cd"), 0) == "ab<br/>cd0"


def test_characters_that_no_page_may_hold_are_replaced() -> None:
    assert escape("a\x00b\x1b") == "a\ufffdb\ufffd"
    assert escape("\udcff").encode() == b"?"  # from a file name that is not UTF-8
