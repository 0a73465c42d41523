"""The document that a browser is given."""

from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from dashboard.entry.app import routes

HTML = '<!DOCTYPE html><html><head><title>Streamlit</title><script src="./static/js/index.js"></script></head><body></body></html>'


def visit(static: Path, address: str) -> str:
    with TestClient(Starlette(routes=routes(static, {"/": True, "/incident": False}))) as browser:
        answer = browser.get(address)
    assert answer.headers["cache-control"] == "no-cache", "a newer version is seen at once"
    return answer.text


@pytest.fixture
def static(tmp_path: Path) -> Path:
    (tmp_path / "static" / "js").mkdir(parents=True)
    (tmp_path / "index.html").write_text(HTML)
    return tmp_path


def test_what_draws_figures_is_made_ready_where_they_come_first_and_only_fetched_elsewhere(static: Path) -> None:
    (static / "static" / "js" / "PlotlyChart.ab12.js").touch()
    assert 'import("./static/js/PlotlyChart.ab12.js")' in visit(static, "/")
    later = visit(static, "/incident?incident=x")
    assert '<link rel="modulepreload" crossorigin href="./static/js/PlotlyChart.ab12.js">' in later
    assert "import(" not in later
    assert '<script src="./static/js/index.js">' in later


def test_a_version_of_streamlit_that_names_its_files_otherwise_is_served_as_it_is(static: Path) -> None:
    assert visit(static, "/") == HTML.replace("Streamlit", "Eagle Eye")
