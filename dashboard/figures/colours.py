"""The one palette, light and dark. Colour-blind readers can read it: hues differ in lightness as well.

The series come from those of Okabe and Ito ("Color Universal Design", 2008), darkened on white and lightened on black until
each has a contrast of at least 3:1 with its background (WCAG 2.2, 1.4.11), and moved apart until any two differ for everybody
(tests/unit/dashboard/test_colours.py simulates colour blindness).
"""

from dataclasses import dataclass
from typing import Literal

Scale = tuple[tuple[float, str], ...]
ThemeKind = Literal["light", "dark"]


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
    against_peers: Scale
    """0.5 is like the others and quiet; above stands out in orange, below in blue."""

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
    alarm="#b3261e",
    warning="#b26a00",
    series=("#1f6fb4", "#c77700", "#00805f", "#8b2a7b", "#2f9ad0", "#b3261e", "#2b3440"),
    against_peers=((0.0, "#17508f"), (0.2, "#5b94cb"), (0.4, "#ccdcea"), (0.5, "#e8eae7"), (0.6, "#f1d9b5"), (0.8, "#dd7f32"), (1.0, "#98230c")),
)
DARK = Palette(
    background="#14171b",
    surface="#1b1f25",
    line="#2c323a",
    text="#e7e9ec",
    muted="#98a1ad",
    accent="#74b0f4",
    alarm="#f4655a",
    warning="#eaae4a",
    series=("#62abe6", "#eaa53c", "#3fbf96", "#c060b0", "#b4e2fa", "#f0604c", "#fbf7d6"),
    against_peers=((0.0, "#a9d4fb"), (0.2, "#4d93d4"), (0.4, "#2f4257"), (0.5, "#2b3138"), (0.6, "#4d402b"), (0.8, "#e08a33"), (1.0, "#ffd0a8")),
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
