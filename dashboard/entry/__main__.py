"""What `eagle-eye dashboard` starts: Streamlit, and beside it a thread that loads what the first page needs before anybody asks for it.

python -m dashboard.entry run dashboard/entry/app.py [flags of `streamlit run`]
"""

import gc
import sys
import threading
from importlib import import_module

from dashboard import pages
from eagle_eye.parent_death import end_with_parent

NEEDED = ("duckdb", "pyarrow.parquet", "pandas", "sqlalchemy.dialects.sqlite", "plotly.graph_objects", *(f"dashboard.pages.{page.name}" for page in pages.available()))


def main(arguments: list[str]) -> None:
    """Until it is ended."""
    from streamlit.web import cli

    threading.Thread(target=_load, name="load", daemon=True).start()
    cli.main(args=arguments, prog_name="streamlit")


def _load() -> None:
    """A module that is not there is missed by the page that needs it, which says so."""
    for name in NEEDED:
        try:
            import_module(name)
        except ImportError:
            continue
    from dashboard.figures import figure_style
    from dashboard.figures.colours import LIGHT

    gc.collect()
    gc.freeze()  # what was imported stays: without this every page waits while the collector looks through it
    figure_style.blank(LIGHT, 100).add_traces([{"type": "heatmap"}, {"type": "scatter"}]).to_json()


if __name__ == "__main__":
    end_with_parent()
    main(sys.argv[1:])
