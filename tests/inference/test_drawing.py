"""Heat and boxes drawn on a photo, checked pixel by pixel."""

import base64
import io

import numpy as np
from PIL import Image

from fdcnet.inference.drawing import COLOUR_STOPS, GREEN, RED, colourize, data_uri, overlay

GREY = np.full((100, 100, 3), 120, dtype=np.uint8)


def test_a_cold_map_leaves_the_photo_unchanged() -> None:
    assert (np.asarray(overlay(GREY, np.zeros((100, 100)))) == 120).all()


def test_heat_is_blended_in_proportion_to_the_map() -> None:
    heat = np.zeros((100, 100))
    heat[0, 0], heat[0, 1] = 1.0, 0.2
    drawn = np.asarray(overlay(GREY, heat, opacity=0.5)).astype(float)
    assert np.abs(drawn[0, 0] - (120 + COLOUR_STOPS[-1]) / 2).max() <= 0.5
    assert np.abs(drawn[0, 1] - (0.9 * 120 + 0.1 * COLOUR_STOPS[1])).max() <= 0.5  # 0.2: the second of six colour stops


def test_colours_become_lighter_throughout() -> None:
    ramp = colourize(np.linspace(0, 1, 101)[None])[0]  # (101, 3)
    lightness = ramp @ np.array([0.2126, 0.7152, 0.0722])
    assert (np.diff(lightness) > 0).all()


def test_boxes_are_drawn_where_they_are() -> None:
    drawn = np.asarray(overlay(GREY, np.zeros((100, 100)), (20, 30, 70, 80), [(10, 10, 90, 90)]))
    assert tuple(drawn[55, 20]) == GREEN
    assert tuple(drawn[80, 45]) == GREEN
    assert tuple(drawn[10, 11]) == RED
    assert tuple(drawn[55, 45]) == (120, 120, 120)


def test_the_true_box_is_dashed_and_the_predicted_one_is_not() -> None:
    drawn = np.asarray(overlay(GREY, np.zeros((100, 100)), None, [(10, 10, 90, 90)]))
    shares = [(drawn[10, 12:88] == RED).all(axis=1).mean()]
    drawn = np.asarray(overlay(GREY, np.zeros((100, 100)), (10, 10, 90, 90)))
    shares.append((drawn[10, 12:88] == GREEN).all(axis=1).mean())
    assert 0.3 < shares[0] < 0.7
    assert shares[1] == 1


def test_line_width_follows_photo_size() -> None:
    large = np.full((800, 800, 3), 120, dtype=np.uint8)
    widths = []
    for photo in (GREY, large):
        side = photo.shape[0]
        drawn = np.asarray(overlay(photo, np.zeros((side, side)), (side // 4, side // 4, side // 2, side // 2)))
        widths.append(int((drawn[side * 3 // 8, : side * 3 // 8] == GREEN).all(axis=1).sum()))
    assert widths == [2, 10]


def test_a_box_at_or_beyond_the_edge_stays_visible() -> None:
    drawn = np.asarray(overlay(GREY, np.zeros((100, 100)), (-20, 0, 100, 130)))
    sides = (drawn[50, :5], drawn[50, -5:], drawn[:5, 50], drawn[-5:, 50])
    assert all((side == GREEN).all(axis=1).any() for side in sides)


def test_a_small_or_broken_map_is_accepted() -> None:
    heat = np.array([[0.0, np.nan], [2.0, -1.0]])
    drawn = overlay(GREY, heat)
    assert drawn.size == (100, 100)
    assert tuple(drawn.getpixel((99, 0))) == (120, 120, 120)  # type: ignore[arg-type]
    assert drawn.getpixel((0, 99)) != (120, 120, 120)


def test_data_uri_is_a_jpeg_of_the_picture() -> None:
    uri = data_uri(Image.new("RGB", (20, 10), (255, 0, 0)))
    kind, content = uri.split(",")
    decoded = Image.open(io.BytesIO(base64.b64decode(content)))
    assert kind == "data:image/jpeg;base64"
    assert (decoded.format, decoded.size) == ("JPEG", (20, 10))
