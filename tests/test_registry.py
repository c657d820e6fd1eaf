"""Names without imports, and what happens when one is looked up."""

import importlib
import sys
from pathlib import Path

import pytest

from fdcnet.errors import UserError
from fdcnet.registry import Entry, Registry


def encodings(group: str | None = None) -> Registry[object]:
    return Registry(
        "There is no codec", {"json": Entry("json:JSONDecoder", "text"), "csv": Entry("csv", "tables")}, group
    )


def test_a_part_is_a_class_or_a_module() -> None:
    codecs = encodings()
    assert codecs["json"] is importlib.import_module("json").JSONDecoder
    assert codecs["csv"] is importlib.import_module("csv")
    assert list(codecs) == ["json", "csv"] and len(codecs) == 2
    assert codecs.summaries() == {"json": "text", "csv": "tables"}


@pytest.mark.parametrize(
    ("name", "remedy"), [("jsn", "Did you mean 'json'?"), ("yaml", "Choose one of: json, csv."), ("", "Choose one")]
)
def test_an_unknown_name_is_refused(name: str, remedy: str) -> None:
    with pytest.raises(UserError) as caught:
        encodings().find(name)
    assert caught.value.problem == f"There is no codec '{name}'."
    assert remedy in caught.value.remedy


def test_a_plug_in_is_listed_without_being_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plugged_codec.py").write_text("class Codec: ...\nclass Other: ...\n")
    info = tmp_path / "plugged-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1.0\n")
    points = "mine = plugged_codec:Codec\njson = plugged_codec:Other\n"
    (info / "entry_points.txt").write_text(f"[test.codecs]\n{points}")
    monkeypatch.syspath_prepend(tmp_path)
    codecs = encodings("test.codecs")
    assert codecs.summaries() == {"json": "text", "csv": "tables", "mine": "from plugged"}
    assert "plugged_codec" not in sys.modules
    assert codecs.find("mine") is importlib.import_module("plugged_codec").Codec
    assert codecs["json"] is importlib.import_module("json").JSONDecoder, "a plug-in replaces nothing"
