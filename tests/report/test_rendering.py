"""Text is escaped exactly once."""

from markupsafe import Markup

from fdcnet.report.rendering import ENVIRONMENT


def rendered(template: str, **values: object) -> str:
    return ENVIRONMENT.from_string(template).render(values)


def test_text_is_escaped_and_markup_is_not() -> None:
    assert rendered("<p>{{ x }}</p>", x="<&>'") == "<p>&lt;&amp;&gt;&#39;</p>"
    assert rendered("<p>{{ x }}</p>", x=Markup("<b>&lt;</b>")) == "<p><b>&lt;</b></p>"
    assert rendered('<img alt="{{ x }}"/>', x='" onload="x') == '<img alt="&#34; onload=&#34;x"/>'


def test_none_is_empty() -> None:
    assert rendered("{{ x }}{{ y }}", x=None, y=0) == "0"


def test_characters_that_a_page_cannot_contain_are_replaced() -> None:
    assert rendered("{{ x }}", x="a\x00b\x1b") == "a\ufffdb\ufffd"
    assert rendered("{{ x }}", x="\udcff").encode() == b"?"  # a file name that is not UTF-8
