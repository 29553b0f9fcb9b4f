"""Pictures that the vision demo names: one coloured shape on a light ground, and what the demo says of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

Color = tuple[int, int, int]
Point = tuple[float, float]

SIDE = 48
"""Pixels of a side, as the model's tower takes them; others are scaled to it."""
_SCALE = 4
"""Pictures are drawn larger and scaled down, which smooths their edges."""
COLORS: dict[str, Color] = {
    "red": (220, 30, 30),
    "green": (30, 150, 50),
    "blue": (30, 70, 220),
    "yellow": (250, 215, 20),
    "orange": (250, 130, 10),
    "purple": (130, 40, 170),
    "brown": (120, 70, 30),
    "black": (20, 20, 20),
}
SHAPES = ("circle", "square", "triangle", "star", "cross", "heart")


@dataclass(frozen=True)
class Scene:
    """What a picture shows; lengths in shares of the picture's side."""

    color: str
    shape: str
    center: Point
    radius: float
    angle: float
    shade: Color
    ground: Color

    def answer(self, kind: str) -> str:
        """The demo's answer to a question for the color, the shape, or both."""
        if kind == "color":
            return f"{self.color.capitalize()}."
        article = "An" if kind == "both" and self.color[0] in "aeiou" else "A"
        return f"{article} {self.color} {self.shape}." if kind == "both" else f"{article} {self.shape}."


def scene(rng: random.Random) -> Scene:
    """Return a random scene; its color is not quite the one of `COLORS`, and its shape is turned a little."""
    color = rng.choice(list(COLORS))
    radius = rng.uniform(0.2, 0.42)
    free = 0.48 - radius
    red, green, blue = (max(0, min(255, value + rng.randint(-15, 15))) for value in COLORS[color])
    light = rng.randint(225, 255)
    return Scene(
        color=color,
        shape=rng.choice(SHAPES),
        center=(0.5 + rng.uniform(-free, free), 0.5 + rng.uniform(-free, free)),
        radius=radius,
        angle=rng.uniform(-12, 12),
        shade=(red, green, blue),
        ground=(light, light, light),
    )


def draw(what: Scene, side: int = SIDE) -> Image.Image:
    """Return the scene as an RGB picture of ``side`` × ``side`` pixels."""
    large = side * _SCALE
    image = Image.new("RGB", (large, large), what.ground)
    turn = math.radians(what.angle)
    x, y = what.center

    def place(point: Point) -> Point:
        across, down = point[0] * what.radius, point[1] * what.radius
        return (
            large * (x + across * math.cos(turn) - down * math.sin(turn)),
            large * (y + across * math.sin(turn) + down * math.cos(turn)),
        )

    ImageDraw.Draw(image).polygon([place(point) for point in _OUTLINES[what.shape]()], fill=what.shade)
    return image.resize((side, side), Image.Resampling.LANCZOS)


def _around(count: int, radii: tuple[float, ...] = (1.0,), start: float = -math.pi / 2) -> list[Point]:
    """Points around the center, their distances from it in turn."""
    angles = [start + 2 * math.pi * step / count for step in range(count)]
    return [
        (radii[step % len(radii)] * math.cos(angle), radii[step % len(radii)] * math.sin(angle))
        for step, angle in enumerate(angles)
    ]


def _cross() -> list[Point]:
    a, b = 0.33, 1.0
    return [(-a, -b), (a, -b), (a, -a), (b, -a), (b, a), (a, a), (a, b), (-a, b), (-a, a), (-b, a), (-b, -a), (-a, -a)]


def _heart() -> list[Point]:
    points = []
    for step in range(60):
        t = 2 * math.pi * step / 60
        down = 13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)
        points.append((math.sin(t) ** 3, -down / 17 - 0.1))
    return points


_OUTLINES: dict[str, Callable[[], list[Point]]] = {
    "circle": lambda: _around(60),
    "square": lambda: [(-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)],
    "triangle": lambda: _around(3),
    "star": lambda: _around(10, (1.0, 0.42)),
    "cross": _cross,
    "heart": _heart,
}
