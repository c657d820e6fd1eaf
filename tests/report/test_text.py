"""Words for numbers."""

from fdcnet.errors import count
from fdcnet.report.text import duration, listing, moment, percent, protocol_in_words, readable, spread


def test_amounts() -> None:
    assert [count(1, "task"), count(2, "task")] == ["1 task", "2 tasks"]
    assert count(1200, "class") == "1,200 classes"
    assert [percent(None), percent(70), percent(-1.26)] == ["–", "70.0\xa0%", "−1.3\xa0%"]
    assert [duration(s) for s in (41.2, 720, 11_100)] == ["41 s", "12 min", "3 h 05 min"]


def test_moments() -> None:
    assert moment("2026-11-05T20:11:09+00:00") == "5 November 2026, 20:11 UTC"
    assert moment("yesterday") == "yesterday"


def test_class_names() -> None:
    assert readable("001.Black_footed_Albatross") == "Black footed Albatross"
    assert readable("12.5 mm") == "12.5 mm"


def test_lists() -> None:
    assert [listing(["a"]), listing(["a", "b"]), listing(["a", "b", "c"])] == ["a", "a and b", "a, b and c"]
    assert spread(range(1, 4), 8) == [1, 2, 3]
    assert spread(range(1, 21), 4) == [1, 7, 14, 20]


def test_protocols() -> None:
    protocol = {"map": "topk-mean", "normalization": "max", "threshold": 0.7}
    said = protocol_in_words(protocol | {"crops": 1, "iou": 0.5, "average": "image", "frame": "image"})
    assert said == (
        "The box encloses the largest region in which the mean map of all classes, divided by its highest value, "
        "exceeds 0.7. It is right if its overlap (IoU) with a true box is above 0.5. "
        "Boxes are predicted in the whole photo. "
        "The class score is that of the whole photo. Percentages are means over photos."
    )
    assert protocol_in_words({"crops": 2, "frame": "crop"}) == (
        "The class score is the mean over the center crop and its mirror image."
    )
    assert protocol_in_words({}) == ""
