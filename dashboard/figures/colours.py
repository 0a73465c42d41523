"""The one palette, light and dark. Whoever cannot tell red from green reads it too: hues differ in lightness as well.

The series are those of Okabe and Ito ("Color Universal Design", 2008), darkened on white and lightened on black until
each has a contrast of at least 3:1 with its background (WCAG 2.2, 1.4.11).
"""

from dataclasses import dataclass
from typing import Literal

Scale = tuple[tuple[float, str], ...]
Kind = Literal["light", "dark"]


@dataclass(frozen=True, slots=True)
class Palette:
    """Colours as #rrggbb."""

    background: str
    surface: str
    """Of what lies on the background: tables, tiles."""
    line: str
    """Borders and grids."""
    text: str
    muted: str
    """Of what explains: units, labels, ticks."""
    accent: str
    alarm: str
    """Of what needs a person, and of nothing else."""
    warning: str
    series: tuple[str, ...]
    low_to_high: Scale
    """Of a number that may be anything."""
    against_peers: Scale
    """0.5 is like the others; above is slower than they are."""

    def health(self, state: str) -> str:
        """Of a node's state; the healthy are quiet, so that the others are seen."""
        found = {"healthy": self.line, "suspect": self.warning, "healing": self.accent, "cordoned": self.muted, "silent": self.alarm}
        return found.get(state, self.muted)


LIGHT = Palette(
    background="#fbfbfa",
    surface="#ffffff",
    line="#e3e4e1",
    text="#1b1f24",
    muted="#656c76",
    accent="#1f5fae",
    alarm="#c2371c",
    warning="#b26a00",
    series=("#1f6fb4", "#c77700", "#00805f", "#a8508a", "#2f9ad0", "#c2371c", "#77778a"),
    low_to_high=((0.0, "#eef2f7"), (0.25, "#bfd3e8"), (0.5, "#7aa6cf"), (0.75, "#3a76b0"), (1.0, "#0d3b6e")),
    against_peers=((0.0, "#2f6fae"), (0.35, "#cfdfee"), (0.5, "#f3f3f0"), (0.65, "#f3cf9a"), (0.8, "#dd7f32"), (1.0, "#98230c")),
)
DARK = Palette(
    background="#14171b",
    surface="#1b1f25",
    line="#2c323a",
    text="#e7e9ec",
    muted="#98a1ad",
    accent="#74b0f4",
    alarm="#ff8163",
    warning="#eaae4a",
    series=("#62abe6", "#eaa53c", "#3fbf96", "#d792bd", "#8fd0f5", "#ff8163", "#a9a9bd"),
    low_to_high=((0.0, "#1e242c"), (0.25, "#22456a"), (0.5, "#2f75b0"), (0.75, "#6bb0e6"), (1.0, "#def0ff")),
    against_peers=((0.0, "#6cb1ef"), (0.35, "#2c4862"), (0.5, "#23282f"), (0.65, "#6b4a1c"), (0.8, "#e08a33"), (1.0, "#ffd0a8")),
)


def palette(kind: str | None) -> Palette:
    """Of a theme's name, as the reader's browser says it; whatever is unknown is light."""
    return DARK if kind == "dark" else LIGHT


def clear(colour: str, opacity: float) -> str:
    """A colour that lets through what is behind it.

    >>> clear("#1f5fae", 0.25)
    'rgba(31, 95, 174, 0.25)'
    """
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {opacity:g})"
