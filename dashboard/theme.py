"""How the pages look: Streamlit's settings as flags of its command, so that no file of the machine changes them, and our style sheet and script."""

from pathlib import Path

from dashboard.figures.colours import DARK, LIGHT, Palette, clear

QUIET = {
    "server.headless": "true",
    "server.fileWatcherType": "none",
    "server.showEmailPrompt": "false",
    "browser.gatherUsageStats": "false",
    "client.toolbarMode": "minimal",
    "client.showSidebarNavigation": "false",
    "client.showErrorDetails": "none",
    "client.showErrorLinks": "false",
    "runner.magicEnabled": "false",
    "logger.hideWelcomeMessage": "true",
    "logger.level": "warning",
}
"""No telemetry, no watcher, no menu; our own pages show errors."""
SHAPE = {
    "theme.baseFontSize": "15",
    "theme.baseRadius": "6px",
    "theme.buttonRadius": "6px",
    "theme.showWidgetBorder": "true",
    "theme.headingFontSizes": '["1.45rem","1.1rem","1rem","0.95rem","0.9rem","0.9rem"]',
    "theme.headingFontWeights": "[650,600,600,600,600,600]",
    "theme.paddingTop": "0.9rem",
    "theme.paddingBottom": "2.5rem",
    "theme.linkUnderline": "false",
}
HERE = Path(__file__).parent


def flags() -> list[str]:
    """Arguments of `streamlit run` that set behaviour and both themes; the reader's system chooses light or dark."""
    chosen = {**QUIET, **SHAPE, **_theme_colours("light", LIGHT), **_theme_colours("dark", DARK)}
    return [f"--{name}={value}" for name, value in chosen.items()]


def _theme_colours(kind: str, palette: Palette) -> dict[str, str]:
    colours = {
        "primaryColor": palette.accent,
        "backgroundColor": palette.background,
        "secondaryBackgroundColor": palette.surface,
        "textColor": palette.text,
        "linkColor": palette.accent,
        "borderColor": palette.line,
        "redColor": palette.alarm,
        "orangeColor": palette.warning,
        "blueColor": palette.accent,
        "grayColor": palette.muted,
    }
    return {f"theme.{kind}.{name}": colour for name, colour in colours.items()}


def apply(palette: Palette) -> None:
    """Add style.css and links.js to the page. The page script calls it once, before it draws anything."""
    import streamlit as st

    st.html(f"<style>{css_variables(palette)}{(HERE / 'style.css').read_text(encoding='utf-8')}</style>")
    script = (HERE / "links.js").read_text(encoding="utf-8")
    with st.container(key="ee-script", height=1, border=False):
        st.html(f"<script>{script}</script>", unsafe_allow_javascript=True)


def css_variables(palette: Palette) -> str:
    """The palette as variables for style.css."""
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
