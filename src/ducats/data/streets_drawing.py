"""Renderer of one street in perspective, with the label of every pixel and a simulated camera.

Lengths are in metres, image coordinates in image heights. A point ``side`` metres right of the road's centre,
``up`` metres above the ground and ``depth`` metres away is drawn at scale ``s = 1 / depth``, at column
``middle(s) + side * s`` and row ``horizon + (camera - up) * s``.

Pixels are computed from the random numbers with ``+ - * /`` and comparisons only. These give the same bits on
every machine; sines and exponentials do not.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

CLASSES = (
    *("road", "sidewalk", "building", "fence", "pole"),
    *("sign", "vegetation", "sky", "person", "car"),
)
ROAD, SIDEWALK, BUILDING, FENCE, POLE, SIGN, VEGETATION, SKY, PERSON, CAR = range(len(CLASSES))

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

_FARTHEST = 90.0  # metres to the end of the street
_STOREY = 3.2  # metres


@dataclass(frozen=True)
class Look:
    """Style of a domain: its streets, colours and camera. A pair is the range of a uniform distribution."""

    # The street
    camera: Array  # metres above the ground
    horizon: Array  # image heights from the top
    bend: Array  # sideways offset of the road's far end, in image heights
    lane: Array  # sideways offset of the camera from the road's centre, in metres
    road: Array  # half the width, in metres
    pavement: Array  # width, in metres
    setback: Array  # metres from pavement to facades
    storeys: Array
    built: Array  # fraction of roadside stretches with a house (the others: trees or bushes)
    fenced: Array  # fraction of stretches with a fence
    parked: Array  # number of cars at the kerbs
    moving: Array  # number of cars on the road
    people: Array
    poles: Array
    signed: Array  # fraction of poles with a sign
    trees: Array
    # Colours
    palette: Array  # (classes, 3 variants, 3)
    spread: Array  # standard deviation of an object's colour around the palette
    texture: Array  # (classes,) strength of the grain
    # The light and the camera
    paint: Array  # strength of the road markings
    haze: Array
    shadow: Array  # darkness of the shade
    exposure: Array
    cast: Array  # standard deviation of the gain per colour channel
    vignette: Array
    blur: Array  # number of 3 x 3 smoothing passes
    noise: Array  # standard deviation


def between(one: Look, other: Look, amount: float) -> Look:
    """Interpolate linearly between two looks; an ``amount`` above 1 extrapolates."""
    return Look(
        **{
            f.name: (1 - amount) * getattr(one, f.name) + amount * getattr(other, f.name)
            for f in fields(Look)
        }
    )


class Street:
    """Canvas for one street, painted from far to near."""

    def __init__(self, look: Look, height: int, width: int, generator: np.random.Generator) -> None:
        self.look, self.generator = look, generator
        self.y = ((np.arange(height) + 0.5) / height)[:, None]
        self.x = ((np.arange(width) + 0.5 - width / 2) / height)[None]
        self.pixel = 1 / height
        self.labels = np.full((height, width), SKY, np.int8)
        self.colour = np.zeros((height, width, 3))
        self.scale = np.zeros((height, width))  # scale of the visible object, for the haze
        self.camera, self.horizon = self.draw("camera"), self.draw("horizon")
        self.bend, self.lane, self.road = self.draw("bend"), self.draw("lane"), self.draw("road")
        self.kerb = self.road + self.draw("pavement")
        self.facade = self.kerb + self.draw("setback")
        self.vanishing = generator.uniform(-0.15, 0.15)

    def draw(self, name: str) -> float:
        """Sample a number from a range of the look."""
        low, high = np.sort(getattr(self.look, name))
        return max(float(self.generator.uniform(low, high)), 0.0 if low >= 0 else -np.inf)

    def count(self, name: str) -> int:
        """Sample a whole number from a range of the look."""
        return int(self.draw(name) + 0.5)

    def chance(self, share: Array | float) -> bool:
        """Return True with this probability."""
        return bool(self.generator.random() < share)

    def hue(self, label: int) -> Array:
        """Sample a colour of the class."""
        variant = self.look.palette[label, self.generator.integers(3)]
        return np.asarray(variant + self.generator.normal(0, float(abs(self.look.spread)), 3))

    def middle(self, s: Any) -> Any:
        """Return the column of the road's centre at a scale."""
        nearness = np.minimum(s * self.camera / (1 - self.horizon), 1)
        return self.vanishing + self.lane * s + self.bend * (1 - nearness) * (1 - nearness)

    def row(self, up: Any, s: Any) -> Any:
        """Return the row of a height above the ground at a scale."""
        return self.horizon + (self.camera - up) * s

    def fill(self, mask: Mask, label: int | None, colour: Any, s: Any = None) -> None:
        """Paint the pixels of a mask; with a label of None, their labels are unchanged."""
        if label is not None:
            self.labels[mask] = label
        self.colour[mask] = colour
        if s is not None:
            self.scale[mask] = s

    def box(self, side: float, s: float, half: float, low: float, high: float, lean: float = 0.0) -> Mask:
        """Return the mask of an upright rectangle, at least one pixel thick; ``lean`` narrows its top."""
        top, bottom = self.row(high, s), self.row(low, s)
        bottom = max(bottom, top + self.pixel)
        shrink = 1 - lean * (bottom - self.y) / (bottom - top)
        wide = np.maximum(half * s * shrink, 0.5 * self.pixel)
        rows, aside = (self.y >= top) & (self.y < bottom), np.abs(self.x - self.middle(s) - side * s)
        return np.asarray(rows & (aside <= wide))

    def disc(self, side: float, s: float, up: float, half: float, tall: float) -> Mask:
        """Return the mask of an upright ellipse, at least one or two pixels large."""
        a, b = (max(r * s, 0.6 * self.pixel) for r in (half, tall))
        across, along = (self.x - self.middle(s) - side * s) / a, (self.y - self.row(up, s)) / b
        return np.asarray(across * across + along * along <= 1)


def street(
    look: Look, height: int, width: int, generator: np.random.Generator
) -> tuple[Array, NDArray[np.int8]]:
    """Render a street: colours ``(height, width, 3)`` in [0, 1] and labels ``(height, width)``."""
    scene = Street(look, height, width, generator)
    _sky_and_ground(scene)
    _along_the_road(scene)
    for _, drawing, side, depth in sorted(_objects(scene), key=lambda found: -found[0]):
        drawing(scene, side, 1 / depth)
    return _photograph(scene), scene.labels


def _sky_and_ground(scene: Street) -> None:
    sky = scene.hue(SKY)
    scene.colour[:] = sky + 0.15 * (scene.y / scene.horizon)[..., None] * (1 - sky)
    s = np.maximum((scene.y - scene.horizon) / scene.camera, 1 / _FARTHEST)
    aside = (scene.x - scene.middle(s)) / s
    ground = np.broadcast_to(scene.y > scene.horizon, aside.shape)
    verge = VEGETATION if scene.chance(0.5) else SIDEWALK
    near = np.broadcast_to(s, aside.shape)
    for label, reach in ((verge, np.inf), (SIDEWALK, scene.kerb), (ROAD, scene.road)):
        mask = ground & (np.abs(aside) < reach)
        scene.fill(mask, label, scene.hue(label), near[mask])
    dash = (np.abs(aside) < 0.12) & ((1 / s) % 6 < 3)
    edge = np.abs(np.abs(aside) - scene.road + 0.3) < 0.1
    marks = ground & (dash | edge) & (np.abs(aside) < scene.road)
    paint = float(scene.look.paint)
    scene.fill(marks, None, (1 - paint) * scene.colour[marks] + paint * 0.92)
    # The houses on one side shade part of the street.
    shade, which = scene.draw("shadow"), 1 if scene.chance(0.5) else -1
    dark = ground & (which * aside > scene.generator.uniform(-scene.road, scene.road))
    scene.colour[dark] *= 1 - shade


def _scale_of_wall(scene: Street, aside: float) -> tuple[Array, Mask]:
    """Return, for each column, the scale of the walls and whether the visible wall is the right one."""
    s = np.linspace(1 / _FARTHEST, 3 * (1 - scene.horizon) / scene.camera, 200)
    right, left = scene.middle(s) + aside * s, scene.middle(s) - aside * s
    at_right = np.interp(scene.x[0], np.maximum.accumulate(right), s, left=0)
    at_left = np.interp(-scene.x[0], np.maximum.accumulate(-left), s, left=0)
    return np.maximum(np.maximum(at_left, at_right), 1 / _FARTHEST), at_right > at_left


def _along_the_road(scene: Street) -> None:
    """Paint houses, trees and gaps on both sides, then the fences in front of them."""
    draw = scene.generator
    s, on_right = _scale_of_wall(scene, scene.facade)
    fence_s, fence_right = _scale_of_wall(scene, 0.5 * (scene.kerb + scene.facade))
    fences: list[tuple[Mask, Array]] = []
    for right in (False, True):
        edges = np.cumsum(draw.uniform(7, 22, 16))
        stretch = np.searchsorted(edges, 1 / s)
        for number in range(int(stretch.max()) + 1):
            columns = (stretch == number) & (on_right == right)
            _stretch(scene, columns, s)
            if scene.chance(scene.look.fenced):
                columns = (np.searchsorted(edges, 1 / fence_s) == number) & (fence_right == right)
                fences.append((columns, scene.hue(FENCE)))
    high = draw.uniform(1.0, 1.8)
    for columns, colour in fences:
        near = np.broadcast_to(fence_s, scene.labels.shape)
        mask = columns & (scene.y > scene.row(high, fence_s)) & (scene.y <= scene.row(0, fence_s))
        slats = 0.8 + 0.2 * ((1 / fence_s) % 1.5 < 0.75)
        scene.fill(mask, FENCE, (slats[:, None] * colour + np.zeros((*mask.shape, 1)))[mask], near[mask])


def _stretch(scene: Street, columns: Mask, s: Array) -> None:
    """Paint one stretch of one side: a house, trees, or low bushes."""
    draw, near = scene.generator, np.broadcast_to(s, scene.labels.shape)
    up = scene.camera - (scene.y - scene.horizon) / s  # metres above the ground, on the wall
    wall = columns & (up >= 0)
    if scene.chance(scene.look.built):
        mask = wall & (up < _STOREY * scene.draw("storeys") + 1)
        colour = scene.hue(BUILDING) * (1.0 if scene.chance(0.5) else 0.85)
        scene.fill(mask, BUILDING, colour, near[mask])
        pitch, tone = draw.uniform(2.2, 4.0), draw.uniform(0.45, 0.8)
        floor, across = up % _STOREY, (1 / s) % pitch
        panes = mask & (floor > 1) & (floor < 2.4) & (across > 0.3 * pitch) & (across < 0.75 * pitch)
        scene.colour[panes] *= tone
        return
    trees = scene.chance(0.7)
    top = draw.uniform(4, 9) if trees else draw.uniform(1, 2.5)
    crowns = _smooth_noise(draw, 1, len(s), 6)[0]
    mask = wall & (up < top * (0.75 + 0.5 * crowns))
    scene.fill(mask, VEGETATION, scene.hue(VEGETATION), near[mask])


def _objects(scene: Street) -> list[tuple[float, Any, float, float]]:
    """Place the free-standing objects: ``(order, drawing, side, depth)``."""
    draw, found = scene.generator, []

    def place(drawing: Any, count: int, low: float, high: float, nearest: float, farthest: float) -> None:
        for _ in range(count):
            # Between uniform in depth and uniform in scale: uniform depth would make most objects tiny.
            depth = nearest + (farthest - nearest) * draw.random() * draw.random()
            side = draw.uniform(low, high) * (1 if scene.chance(0.5) else -1)
            found.append((depth, drawing, side, depth))

    path = 0.5 * (scene.road + scene.kerb)
    place(_car, scene.count("parked"), scene.road - 1.1, scene.road - 0.9, 5, 40)
    place(_car, scene.count("moving"), 1.2, 1.8, 8, 60)
    place(_person, scene.count("people"), scene.road + 0.2, scene.kerb, 4, 18)
    place(_person, int(scene.chance(0.3)), 0, scene.road, 6, 20)
    place(_tree, scene.count("trees"), path, scene.facade + 0.5, 7, 50)
    place(_pole, scene.count("poles"), scene.road + 0.2, scene.road + 0.6, 5, 32)
    return found


def _car(scene: Street, side: float, s: float) -> None:
    draw, colour = scene.generator, scene.hue(CAR)
    half, high, long = draw.uniform(0.8, 0.95), draw.uniform(1.35, 1.8), draw.uniform(3.2, 4.5)
    if scene.chance(0.12):  # parked across the road, or turning
        half = 0.5 * long
    scene.colour[scene.disc(side, s, 0.05, 1.15 * half, 0.25)] *= 0.55
    for slice_ in np.linspace(long, 0, 6):  # from the far end to the near end
        far = 1 / (1 / s + slice_)
        tone = 0.8 if slice_ else 1.0
        body, cabin = (
            scene.box(side, far, half, 0.25, 0.6 * high, 0.05),
            scene.box(side, far, 0.9 * half, 0.6 * high, high, 0.25),
        )
        if 0 < slice_ < 0.25 * long or slice_ == long:
            cabin[:] = False
        scene.fill(scene.box(side, far, half, 0, 0.3), CAR, 0.08, far)
        scene.fill(body, CAR, tone * colour, far)
        scene.fill(cabin, CAR, tone * colour, far)
    scene.fill(scene.box(side, s, 0.72 * half, 0.63 * high, 0.92 * high, 0.2), None, (0.18, 0.22, 0.26))
    for lamp in (-0.8, 0.8):
        scene.fill(
            scene.box(side + lamp * half, s, 0.12 * half, 0.4 * high, 0.5 * high), None, (0.75, 0.15, 0.1)
        )


def _person(scene: Street, side: float, s: float) -> None:
    draw, high = scene.generator, scene.generator.uniform(1.5, 1.9)
    coat, trousers = scene.hue(PERSON), scene.hue(PERSON)
    scene.fill(scene.box(side, s, 0.2, 0, 0.5 * high), PERSON, 0.7 * trousers, s)
    scene.fill(scene.disc(side, s, 0.65 * high, draw.uniform(0.3, 0.42), 0.25 * high), PERSON, coat, s)
    scene.fill(scene.disc(side, s, 0.93 * high, 0.17, 0.09 * high), PERSON, (0.72, 0.54, 0.44), s)


def _tree(scene: Street, side: float, s: float) -> None:
    draw, high = scene.generator, scene.generator.uniform(4, 8)
    colour = scene.hue(VEGETATION)
    scene.fill(scene.box(side, s, 0.18, 0, 0.6 * high), VEGETATION, (0.3, 0.22, 0.16), s)
    for _ in range(6):
        aside, up = draw.uniform(-0.18, 0.18) * high, draw.uniform(0.5, 0.95) * high
        tone, size = draw.uniform(0.8, 1.1), draw.uniform(0.12, 0.25) * high
        scene.fill(scene.disc(side + aside, s, up, size, 0.8 * size), VEGETATION, tone * colour, s)


def _pole(scene: Street, side: float, s: float) -> None:
    draw, colour = scene.generator, scene.hue(POLE)
    if not scene.chance(scene.look.signed):
        high, inwards = draw.uniform(4.5, 7), -1.0 if side > 0 else 1.0
        scene.fill(scene.box(side, s, draw.uniform(0.12, 0.18), 0, high), POLE, colour, s)
        scene.fill(scene.box(side + 0.6 * inwards, s, 0.6, high - 0.15, high), POLE, colour, s)
        return
    high = draw.uniform(2.4, 3.4)
    scene.fill(scene.box(side, s, 0.11, 0, high), POLE, colour, s)
    board, kind = scene.hue(SIGN), draw.integers(3)
    half = draw.uniform(0.45, 0.75)
    shapes = (
        scene.disc(side, s, high, half, half),
        scene.box(side, s, half, high - half, high + half),
        scene.box(side, s, 1.2 * half, high - half, high + half, 0.95),
    )
    scene.fill(shapes[kind], SIGN, board, s)
    if kind < 2:
        scene.fill(scene.box(side, s, 0.45 * half, high - 0.2 * half, high + 0.2 * half), None, 0.9)


def _smooth_noise(generator: np.random.Generator, height: int, width: int, cell: int) -> Array:
    """Return noise in [0, 1] that is smooth over about ``cell`` pixels."""
    rows, columns = (np.arange(n) / cell for n in (height, width))
    grid = generator.random((int(rows[-1]) + 2, int(columns[-1]) + 2))
    top, left = rows.astype(int), columns.astype(int)
    down, along = (rows - top)[:, None], (columns - left)[None]
    upper = grid[top][:, left] * (1 - along) + grid[top][:, left + 1] * along
    lower = grid[top + 1][:, left] * (1 - along) + grid[top + 1][:, left + 1] * along
    return np.asarray(upper * (1 - down) + lower * down)


def _photograph(scene: Street) -> Array:
    """Simulate the camera: grain, haze, light, blur and noise."""
    look, draw, image = scene.look, scene.generator, scene.colour
    height, width = scene.labels.shape
    grain = sum(_smooth_noise(draw, height, width, cell) - 0.5 for cell in (1, 2, 5)) * 1.2
    image = image * (1 + np.maximum(look.texture, 0)[scene.labels] * grain)[..., None]
    haze = np.maximum(look.haze, 0) * 0.03 / (0.03 + scene.scale) * (scene.labels != SKY)
    image = image + haze[..., None] * (0.62 - image)
    tilt = 1 + 0.25 * np.maximum(look.haze, 0) * draw.uniform(-1, 1) * scene.x
    centre = scene.x * scene.x + 4 * (scene.y - 0.5) * (scene.y - 0.5)
    light = scene.draw("exposure") * tilt * (1 - 0.5 * np.maximum(look.vignette, 0) * centre)
    gains = 1 + draw.normal(0, float(abs(look.cast)), 3)
    image = image * light[..., None] * gains
    passes = float(np.maximum(look.blur, 0))
    while passes > 0:
        image = image + min(passes, 1.0) * (_neighbours(image) - image)
        passes -= 1
    image = image + draw.normal(0, float(abs(look.noise)), image.shape)
    return np.asarray(image.clip(0, 1))


def _neighbours(image: Array) -> Array:
    """Smooth with weights 1, 2, 1 along both axes; the border is repeated."""
    padded = np.pad(image, ((1, 1), (0, 0), (0, 0)), mode="edge")
    image = 0.25 * padded[:-2] + 0.5 * padded[1:-1] + 0.25 * padded[2:]
    padded = np.pad(image, ((0, 0), (1, 1), (0, 0)), mode="edge")
    return np.asarray(0.25 * padded[:, :-2] + 0.5 * padded[:, 1:-1] + 0.25 * padded[:, 2:])
