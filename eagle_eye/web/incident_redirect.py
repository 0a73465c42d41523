"""GET /incidents/{id}: where links in alerts lead; it hands a browser on to the incident's page in the dashboard."""

from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from .http_server import Door


def door(dashboard_url: str) -> Door:
    """Tells nothing about the incident itself: the dashboard asks who is there."""

    async def answer(request: Request) -> Response:
        incident = quote(request.path_params["incident"], safe="")
        return RedirectResponse(f"{dashboard_url.rstrip('/')}/incident?incident={incident}", status_code=302)

    return Door(path="/incidents/{incident}", answer=answer, role=None)
