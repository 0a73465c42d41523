"""How the pages look beyond what Streamlit's theme can say, and links and keys that it does not know."""

from pathlib import Path

from dashboard.figures.colours import Palette, clear

HERE = Path(__file__).parent


def apply(palette: Palette) -> None:
    """Once a run, before anything is drawn."""
    import streamlit as st

    st.html(f"<style>{variables(palette)}{(HERE / 'look.css').read_text(encoding='utf-8')}</style>")
    script = (HERE / "links.js").read_text(encoding="utf-8")
    with st.container(key="ee-script", height=1, border=False):
        st.html(f"<script>{script}</script>", unsafe_allow_javascript=True)


def variables(palette: Palette) -> str:
    """The palette for look.css."""
    named = {
        "background": palette.background,
        "surface": palette.surface,
        "line": palette.line,
        "text": palette.text,
        "muted": palette.muted,
        "accent": palette.accent,
        "alarm": palette.alarm,
        "warning": palette.warning,
        "good": palette.series[2],
        "series": palette.series[0],
        "hover": clear(palette.muted, 0.08),
    }
    return f":root {{ {' '.join(f'--ee-{name}: {colour};' for name, colour in named.items())} }}\n"
