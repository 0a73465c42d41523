"""A page of the dashboard, run as Streamlit runs it, without a browser."""

import base64
import functools
import json
from typing import Any

import numpy as np

from dashboard.viewer import PERSON
from eagle_eye.access import Person, Role


@functools.cache
def seek_components_once() -> None:
    """Streamlit looks through all installed packages for each page that is tested, which takes longer than the page."""
    from streamlit.components.v2 import manifest_scanner

    found = manifest_scanner.scan_component_manifests()
    manifest_scanner.scan_component_manifests = lambda: found


def page(name: str, person: Person | None = None, **query: str) -> Any:
    """One page alone, for somebody who was let in; `.run()` draws it."""
    from streamlit.testing.v1 import AppTest

    seek_components_once()

    def script(name: str) -> None:
        from importlib import import_module

        from dashboard import error_boundary

        error_boundary.shown(import_module(f"dashboard.pages.{name}").show)

    test = AppTest.from_function(script, default_timeout=30, kwargs={"name": name})
    test.session_state[PERSON] = person or Person(name="ada", role=Role.ADMIN)
    for key, value in query.items():
        test.query_params[key] = value
    return test


def shown(test: Any) -> str:
    """All HTML of a run."""
    assert not test.exception
    return "\n".join(element.proto.body for element in test.get("html"))


def drawn(test: Any) -> list[dict[str, Any]]:
    """Every figure of a run, as the browser is given it."""
    return [json.loads(element.proto.spec) for element in test.get("plotly_chart")]


def numbers(packed: dict[str, str]) -> Any:
    """The array that plotly has packed for the browser."""
    return np.frombuffer(base64.b64decode(packed["bdata"]), packed["dtype"]).reshape([int(size) for size in packed["shape"].split(",")])
