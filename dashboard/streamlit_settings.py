"""Streamlit's settings as flags of its command, so that no file of the machine changes how the pages look."""

from dashboard.figures.colours import DARK, LIGHT, Palette

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
"""No telemetry, no watcher, no menu; errors are told by our own pages."""
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


def flags() -> list[str]:
    """Arguments of `streamlit run` that set behaviour and both themes; the reader's system chooses light or dark."""
    chosen = {**QUIET, **SHAPE, **_colours("light", LIGHT), **_colours("dark", DARK)}
    return [f"--{name}={value}" for name, value in chosen.items()]


def _colours(kind: str, palette: Palette) -> dict[str, str]:
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
