"""Photos as JPEG, for formats that browsers cannot show, and for thumbnails."""

import io
from pathlib import Path

from fdcnet.data.decode import BadImage, upright
from fdcnet.web.guard import Refused

PREVIEW_SIDE, THUMBNAIL_SIDE = 1600, 280  # pixels


def as_jpeg(photo: bytes | Path, side: int = PREVIEW_SIDE) -> bytes:
    buffer = io.BytesIO()
    try:
        upright(photo, side).save(buffer, "JPEG", quality=85)
    except BadImage as error:
        raise Refused(400, f"photo cannot be read: {error}.", "Send another photo.") from error
    return buffer.getvalue()
