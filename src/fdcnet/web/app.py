"""The local page and its API."""

import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from anyio import to_thread
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

from fdcnet.errors import UserError
from fdcnet.inference.engine import check_engine
from fdcnet.report.page import POLICY, render
from fdcnet.report.runs import load
from fdcnet.runtime.device import find_device
from fdcnet.store.versions import rollback
from fdcnet.teaching import KEEP
from fdcnet.teaching.holdout import FEWEST_PHOTOS
from fdcnet.web import schemas
from fdcnet.web.api_page import add_api_page
from fdcnet.web.guard import MAX_BODIES, Guard, Refused, refusal
from fdcnet.web.label_routes import add_label_routes
from fdcnet.web.labels import Labelling
from fdcnet.web.labelstudio import add_labelstudio_routes
from fdcnet.web.model import ServedModels
from fdcnet.web.photo_routes import BATCH_PATH, MAX_BATCH_BYTES, add_photo_routes
from fdcnet.web.pool import WorkerPool
from fdcnet.web.runner import LessonRunner
from fdcnet.web.uploads import MAX_CLASSES, MAX_LESSON, MAX_PHOTO, MAX_PHOTOS, UPLOAD_BODY, receive_upload

STATIC = Path(__file__).with_name("static")
LIMITS = schemas.Limits(
    photo_bytes=MAX_PHOTO, lesson_bytes=MAX_LESSON, photos=MAX_PHOTOS, classes=MAX_CLASSES, min_photos=FEWEST_PHOTOS
)
NO_PHOTO: dict[int | str, dict[str, Any]] = {404: {"model": schemas.Problem}}
log = logging.getLogger(__name__)


def make_app(
    path: Path,
    *,
    host: str = "127.0.0.1",
    token: str | None = None,
    device: str = "auto",
    engine: str = "torch",
    keep: int = KEEP,
    num_workers: int = 1,
) -> ASGIApp:
    """Serve the model at `path`. If it does not exist yet, the first lesson creates it."""
    check_engine(engine, find_device(device))
    models = ServedModels(path, device, engine if num_workers == 1 else "torch")
    models.own.refuse_other_folders()
    runner = LessonRunner(models, keep)
    labelling = Labelling(models, runner)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        models.pool = WorkerPool(num_workers, device, engine) if num_workers > 1 else None
        yield
        await to_thread.run_sync(labelling.close)
        await to_thread.run_sync(runner.close)
        if models.pool:
            models.pool.close()

    app = FastAPI(
        title="fdcnet",
        summary="Classify and localize objects in photos, and teach new classes from photos alone.",
        lifespan=lifespan,
        docs_url=None,  # FastAPI's own pages load scripts from a CDN
        redoc_url=None,
        responses={400: {"model": schemas.Problem}},
    )
    _add_error_handlers(app)
    _add_model_routes(app, models, runner)
    add_photo_routes(app, models, num_workers)
    _add_lesson_routes(app, runner)
    add_label_routes(app, labelling)
    _add_pages(app, models)
    add_labelstudio_routes(app, models, runner)
    add_api_page(app, has_token=token is not None)
    limits = {"/api/lesson": MAX_LESSON, "/api/labels": MAX_LESSON, BATCH_PATH: MAX_BATCH_BYTES, None: MAX_PHOTO}
    return Guard(app, host, token, limits, max_bodies=max(MAX_BODIES, 2 * num_workers))


def _add_model_routes(app: FastAPI, models: ServedModels, runner: LessonRunner) -> None:
    one_at_a_time = threading.Lock()

    def info() -> schemas.ModelInfo:
        is_example = models.shows_example
        return schemas.ModelInfo(**models.current.info(), is_example=is_example, learning=runner.busy, limits=LIMITS)

    @app.get("/api/model")
    def model_info() -> schemas.ModelInfo:
        """Name, version, classes by task, and the limits of this server."""
        return info()

    @app.get("/api/history")
    def history() -> list[schemas.VersionInfo]:
        """The kept versions, oldest first."""
        return [schemas.VersionInfo(**version) for version in models.current.history()]

    @app.get("/api/classes")
    def classes() -> list[schemas.ClassInfo]:
        """The classes in the order in which they were learned."""
        return [schemas.ClassInfo(**each) for each in models.current.classes()]

    @app.get("/api/classes/{number}/photos/{photo}", response_class=Response, responses=NO_PHOTO)
    def thumbnail(number: int, photo: int) -> Response:
        """Thumbnail of an exemplar of the class at this position in /api/classes."""
        kept = list(models.current.kept_photos().values()) if models.current.exists else []
        if not (0 <= number < len(kept) and 0 <= photo < len(kept[number].thumbnails)):
            raise Refused(404, "There is no such photo.", "See /api/classes for the number of thumbnails.")
        return Response(kept[number].thumbnails[photo], media_type="image/jpeg")

    @app.post("/api/rollback", responses={409: {"model": schemas.Problem}})
    def roll_back(
        to: Annotated[int | None, Query(description="Number of a kept version. Default: the parent.")] = None,
        of: Annotated[int | None, Query(description="Refuse unless this version is in use.")] = None,
    ) -> schemas.ModelInfo:
        """Use another version. Later versions are kept, too."""
        runner.refuse_if_busy()
        with one_at_a_time:
            if of is not None and of != models.current.version:
                problem = f"Version {models.current.version} is in use, not version {of}."
                raise Refused(409, problem, "Nothing was changed. Check which version you want.")
            rollback(models.current.path, to)
        return info()


def _add_lesson_routes(app: FastAPI, runner: LessonRunner) -> None:
    def current() -> schemas.LessonInfo:
        if runner.lesson:
            return schemas.LessonInfo(**runner.lesson.info())
        if lost := runner.workspace.lost_lesson:
            problem = f"The server stopped during a lesson on {', '.join(lost)}."
            return schemas.LessonInfo(state="lost", problem=problem, remedy="The model is unchanged. Please try again.")
        return schemas.LessonInfo(state="none")

    @app.post("/api/lesson", status_code=202, openapi_extra=UPLOAD_BODY, responses={409: {"model": schemas.Problem}})
    async def teach(
        request: Request,
        more: Annotated[bool, Query(description="Allow photos of known classes.")] = False,
        epochs: Annotated[int | None, Query(ge=1, le=1000, description="Default: depends on the photos.")] = None,
    ) -> schemas.LessonInfo:
        """Start a lesson. Only one runs at a time; the old version answers until the new one is complete."""
        with runner.reserved():
            upload = await receive_upload(request, runner.workspace)
            await to_thread.run_sync(runner.refuse_few_photos, upload)
            runner.start(upload, more, epochs)
        return current()

    @app.post("/api/lesson/example", status_code=202, responses={409: {"model": schemas.Problem}})
    def teach_example() -> schemas.LessonInfo:
        """Teach three generated classes. Only for a model that does not exist yet; the first lesson replaces them."""
        runner.start_example()
        return current()

    @app.post("/api/lesson/refine", status_code=202, responses={409: {"model": schemas.Problem}})
    def start_refinement() -> schemas.LessonInfo:
        """Train the boxes on the photos that the model keeps. Makes a new version; the old one answers meanwhile."""
        runner.start_refinement()
        return current()

    @app.get("/api/example/photos/{number}", response_class=Response, responses=NO_PHOTO)
    def example_photo(number: int) -> Response:
        """A generated photo that the example lesson did not use."""
        examples = runner.lesson.examples if runner.lesson else []
        if not 0 <= number < len(examples):
            raise Refused(404, "There is no such photo.", "Teach the example first.")
        return Response(examples[number], media_type="image/jpeg")

    @app.get("/api/lesson")
    def lesson() -> schemas.LessonInfo:
        """The running lesson, or the last one since the server started."""
        return current()

    @app.delete("/api/lesson")
    def cancel() -> schemas.LessonInfo:
        """Cancel the lesson. The model stays unchanged."""
        if runner.busy and runner.lesson:
            runner.lesson.cancel.set()
        return current()

    @app.get("/api/lesson/photos/{number}", response_class=Response, responses=NO_PHOTO)
    def photo(number: int) -> Response:
        """A photo of the last lesson, whose boxes before and after are in /api/lesson."""
        compared = runner.lesson.compared if runner.lesson else []
        if not 0 <= number < len(compared):
            raise Refused(404, "There is no such photo.", "Only photos of the last lesson are available.")
        return Response(compared[number].jpeg, media_type="image/jpeg")


def _add_pages(app: FastAPI, models: ServedModels) -> None:
    @app.get("/", include_in_schema=False)
    def page() -> FileResponse:
        return FileResponse(STATIC / "page.html", headers={"cache-control": "no-cache"})

    @app.get("/run", include_in_schema=False)
    def run() -> HTMLResponse:
        if models.own.run_folder is None:
            raise Refused(404, "This model is not in a run folder.", "See the Model tab of the page for its history.")
        policy = f"{POLICY}; frame-ancestors 'none'"
        return HTMLResponse(render(load([models.own.run_folder])), headers={"content-security-policy": policy})

    app.mount("/static", StaticFiles(directory=STATIC))


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(UserError)
    def user_error(request: Request, error: UserError) -> JSONResponse:
        return refusal(error)

    @app.exception_handler(HTTPException)
    def http_error(request: Request, error: HTTPException) -> JSONResponse:
        remedy = "See /docs for the requests of this server."
        return refusal(Refused(error.status_code, str(error.detail).rstrip(".") + ".", remedy))

    @app.exception_handler(RequestValidationError)
    def wrong_parameter(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        return refusal(Refused(400, f"Parameter '{first['loc'][-1]}' is wrong: {first['msg']}.", "See /docs."))

    @app.exception_handler(ClientDisconnect)
    def disconnected(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=499)  # nobody reads it: the client left while it was sending

    @app.exception_handler(Exception)
    def anything(request: Request, error: Exception) -> JSONResponse:
        return refusal(Refused(500, "Internal server error.", "See the server's terminal."))
