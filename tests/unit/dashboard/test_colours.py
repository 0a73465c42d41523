"""The palette: what must be read can be read, and what must be told apart is told apart by everybody."""

from itertools import combinations, pairwise

import numpy as np
import pytest

from dashboard.figures.colours import DARK, LIGHT, Palette, palette

EYES = {
    "of all cones": np.eye(3),
    "without red": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
    "without green": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]),
    "without blue": np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]),
}
"""Linear RGB as it looks to them: Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency" (2009), severity 1."""
TO_XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]])
WHITE = np.array([0.95047, 1.0, 1.08883])
APART = 10.0
"""Distance in CIELAB (1976): about four times what is just seen when two colours lie beside each other."""


def linear(colour: str) -> np.ndarray:
    parts = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(light: np.ndarray) -> np.ndarray:
    share = TO_XYZ @ np.clip(light, 0, 1) / WHITE
    x, y, z = np.where(share > 216 / 24389, np.cbrt(share), (24389 / 27 * share + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def apart(one: str, other: str, eye: np.ndarray) -> float:
    return float(np.linalg.norm(lab(eye @ linear(one)) - lab(eye @ linear(other))))


def contrast(one: str, other: str) -> float:
    low, high = sorted(float(TO_XYZ[1] @ linear(colour)) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("each", [LIGHT, DARK], ids=["light", "dark"])
def test_text_and_lines_can_be_read(each: Palette):
    for colour in (each.text, each.muted, each.accent, each.alarm):
        assert contrast(colour, each.background) >= 4.5
        assert contrast(colour, each.surface) >= 4.5
    for colour in (*each.series, each.warning):
        assert contrast(colour, each.background) >= 3


@pytest.mark.parametrize("eye", EYES)
@pytest.mark.parametrize("each", [LIGHT, DARK], ids=["light", "dark"])
def test_phases_states_and_both_ends_of_a_map_are_told_apart_by_everybody(each: Palette, eye: str):
    states = (each.series[2], each.accent, each.warning, each.alarm, each.muted)
    scale = [colour for _, colour in each.against_peers]
    for one, other in (*combinations((*each.series, each.muted), 2), *combinations(states, 2), *pairwise(scale), (scale[0], scale[-1])):
        assert apart(one, other, EYES[eye]) >= APART, f"{one} and {other} look alike to an eye {eye}"


def test_a_theme_that_nobody_knows_is_light():
    assert palette(None) is LIGHT
    assert palette("dark") is DARK
