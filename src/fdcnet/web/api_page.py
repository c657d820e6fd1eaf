"""The page /docs: the API as OpenAPI describes it, without scripts and without a network."""

from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

SECURITY = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "The token that `fdcnet serve` prints."},
    "basic": {"type": "http", "scheme": "basic", "description": "Any user name, with the token as password."},
}


def add_api_page(app: FastAPI, has_token: bool) -> None:
    """Call this last: it describes the routes that exist."""

    @app.get("/docs", include_in_schema=False)
    def api_page() -> HTMLResponse:
        environment = Environment(loader=PackageLoader("fdcnet.web"), autoescape=True, undefined=StrictUndefined)
        return HTMLResponse(environment.get_template("api.html").render(routes=_routes(app.openapi())))

    if has_token:
        described = app.openapi()  # FastAPI keeps this dictionary until a route is added
        described["components"]["securitySchemes"] = SECURITY
        described["security"] = [{name: []} for name in SECURITY]


def _routes(described: dict[str, Any]) -> list[dict[str, Any]]:
    """Method, path, description, parameters and kinds of body of each route."""
    return [
        {
            "method": method.upper(),
            "path": path,
            "text": facts.get("description") or facts["summary"],
            "parameters": [
                (parameter["name"], parameter.get("description", "")) for parameter in facts.get("parameters", ())
            ],
            "bodies": list(facts.get("requestBody", {}).get("content", ())),
        }
        for path, methods in described["paths"].items()
        for method, facts in methods.items()
    ]
