"""The API of the Label tab: upload photos, check their boxes, export them."""

import shutil
from typing import Annotated, Any, Literal

from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, Query, Request
from fastapi.responses import FileResponse, Response
from starlette.background import BackgroundTask

from fdcnet.web import schemas
from fdcnet.web.guard import Refused
from fdcnet.web.labels import CheckedPhoto, Labelling
from fdcnet.web.preview import PREVIEW_SIDE, THUMBNAIL_SIDE, as_jpeg
from fdcnet.web.uploads import UPLOAD_BODY, receive_upload

MAX_DECODING = 2  # photos at the same time
Format = Literal["coco", "yolo", "yolo-seg", "voc", "labelstudio", "csv"]
CONFLICT: dict[int | str, dict[str, Any]] = {409: {"model": schemas.Problem}}


def add_label_routes(app: FastAPI, labelling: Labelling) -> None:
    limiter = CapacityLimiter(MAX_DECODING)

    def current() -> schemas.LabelsInfo:
        return schemas.LabelsInfo(**(labelling.labels.info() if labelling.labels else {"state": "none"}))

    def find(number: int) -> CheckedPhoto:
        photos = labelling.ready.photos
        if not 0 <= number < len(photos):
            raise Refused(404, "There is no such photo.", "See /api/labels for the photos.")
        return photos[number]

    @app.post("/api/labels", status_code=202, openapi_extra=UPLOAD_BODY, responses=CONFLICT)
    async def start(request: Request) -> schemas.LabelsInfo:
        """Box photos as the classes that they are known to show. The model must know these classes."""
        with labelling.reserved():
            upload = await receive_upload(request, labelling.workspace)
            await to_thread.run_sync(labelling.start, upload)
        return current()

    @app.get("/api/labels")
    def labels() -> schemas.LabelsInfo:
        """The photos and their boxes."""
        return current()

    @app.delete("/api/labels")
    def discard() -> schemas.LabelsInfo:
        """Stop, and delete the uploaded photos."""
        labelling.discard()
        return current()

    @app.post("/api/labels/learn", status_code=202, responses=CONFLICT)
    def learn_boxes() -> schemas.LabelsInfo:
        """Train the localizer on the checked boxes, as a new version of the model. Then draw the other boxes again."""
        labelling.learn_boxes()
        return current()

    @app.delete("/api/labels/learn")
    def cancel_learning() -> schemas.LabelsInfo:
        """Stop learning from boxes. The photos and their boxes stay."""
        if labelling.labels and labelling.labels.lesson:
            labelling.labels.lesson.cancel.set()
        return current()

    @app.get("/api/labels/photos/{number}", response_class=Response, responses=CONFLICT)
    async def photo(number: int, small: Annotated[bool, Query(description="A thumbnail.")] = False) -> Response:
        """The photo as JPEG."""
        path, side = find(number).found.path, THUMBNAIL_SIDE if small else PREVIEW_SIDE
        return Response(await to_thread.run_sync(as_jpeg, path, side, limiter=limiter), media_type="image/jpeg")

    @app.put("/api/labels/photos/{number}", responses=CONFLICT)
    def correct(number: int, correction: schemas.Correction) -> schemas.LabelledPhotoInfo:
        """Accept, correct or reject a box. Rejected photos are not exported."""
        checked = find(number)
        labelling.ready.correct(number, correction.box)
        return schemas.LabelledPhotoInfo(**checked.info(number))

    @app.get("/api/labels/export/{form}", response_class=FileResponse, responses=CONFLICT)
    def export(form: Format) -> FileResponse:
        """A zip archive of the boxes and photos."""
        try:
            archive = labelling.export(form)
        except OSError as error:
            remedy = "Free some space in the server's temporary folder."
            raise Refused(507, f"The archive cannot be written: {error.strerror or error}.", remedy) from error
        remove = BackgroundTask(shutil.rmtree, archive.parent, ignore_errors=True)
        return FileResponse(archive, media_type="application/zip", filename=archive.name, background=remove)
