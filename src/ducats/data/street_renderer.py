"""Renderer of one street in perspective, with the label of every pixel and a simulated camera.

Lengths are in metres, image coordinates in image heights. A point ``side`` metres right of the road's centre,
``up`` metres above the ground and ``depth`` metres away is drawn at scale ``s = 1 / depth``, at column
``centre_column(s) + side * s`` and row ``horizon + (camera - up) * s``.

Pixels are computed from the random numbers with ``+ - * /`` and comparisons only. These give the same bits on
every machine; sines and exponentials do not.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

STREET_CLASSES = (
    *("road", "sidewalk", "building", "fence", "pole"),
    *("sign", "vegetation", "sky", "person", "car"),
)
ROAD, SIDEWALK, BUILDING, FENCE, POLE, SIGN, VEGETATION, SKY, PERSON, CAR = range(len(STREET_CLASSES))

FloatArray = NDArray[np.float64]
Mask = NDArray[np.bool_]

_MAX_DEPTH_METRES = 90.0  # to the end of the street
_STOREY_METRES = 3.2  # height of a storey


@dataclass(frozen=True)
class StreetStyle:
    """Style of a domain: its streets, colours and camera. A pair is the range of a uniform distribution."""

    # The street
    camera: FloatArray  # metres above the ground
    horizon: FloatArray  # image heights from the top
    bend: FloatArray  # sideways offset of the road's far end, in image heights
    lane: FloatArray  # sideways offset of the camera from the road's centre, in metres
    road: FloatArray  # half the width, in metres
    pavement: FloatArray  # width, in metres
    setback: FloatArray  # metres from pavement to facades
    storeys: FloatArray
    house_fraction: FloatArray  # fraction of roadside stretches with a house (the others: trees or bushes)
    fence_fraction: FloatArray  # fraction of stretches with a fence
    parked: FloatArray  # number of cars at the kerbs
    moving: FloatArray  # number of cars on the road
    people: FloatArray
    poles: FloatArray
    sign_fraction: FloatArray  # fraction of poles with a sign
    trees: FloatArray
    # Colours
    palette: FloatArray  # (classes, 3 variants, 3)
    colour_std: FloatArray  # standard deviation of an object's colour around the palette
    texture: FloatArray  # (classes,) strength of the grain
    # The light and the camera
    marking_strength: FloatArray  # strength of the road markings
    haze: FloatArray
    shadow: FloatArray  # darkness of the shade
    exposure: FloatArray
    channel_gain_std: FloatArray  # standard deviation of the gain per colour channel
    vignette: FloatArray
    blur_passes: FloatArray  # number of 3 x 3 smoothing passes
    noise_std: FloatArray  # standard deviation


def interpolate_styles(one: StreetStyle, other: StreetStyle, amount: float) -> StreetStyle:
    """Interpolate linearly between two styles; an ``amount`` above 1 extrapolates."""
    return StreetStyle(
        **{
            f.name: (1 - amount) * getattr(one, f.name) + amount * getattr(other, f.name)
            for f in fields(StreetStyle)
        }
    )


class StreetCanvas:
    """Canvas for one street, painted from far to near."""

    def __init__(self, style: StreetStyle, height: int, width: int, generator: np.random.Generator) -> None:
        self.style, self.generator = style, generator
        self.y = ((np.arange(height) + 0.5) / height)[:, None]
        self.x = ((np.arange(width) + 0.5 - width / 2) / height)[None]
        self.pixel_side = 1 / height
        self.labels = np.full((height, width), SKY, np.int8)
        self.colour = np.zeros((height, width, 3))
        self.scale = np.zeros((height, width))  # scale of the visible object, for the haze
        self.camera, self.horizon = self.sample("camera"), self.sample("horizon")
        self.bend, self.lane, self.road = self.sample("bend"), self.sample("lane"), self.sample("road")
        self.kerb = self.road + self.sample("pavement")
        self.facade = self.kerb + self.sample("setback")
        self.vanishing = generator.uniform(-0.15, 0.15)

    def sample(self, name: str) -> float:
        """Sample a number from a range of the style."""
        low, high = np.sort(getattr(self.style, name))
        return max(float(self.generator.uniform(low, high)), 0.0 if low >= 0 else -np.inf)

    def sample_count(self, name: str) -> int:
        """Sample a whole number from a range of the style."""
        return int(self.sample(name) + 0.5)

    def random_bool(self, probability: FloatArray | float) -> bool:
        """Return True with this probability."""
        return bool(self.generator.random() < probability)

    def sample_colour(self, label: int) -> FloatArray:
        """Sample a colour of the class."""
        variant = self.style.palette[label, self.generator.integers(3)]
        return np.asarray(variant + self.generator.normal(0, float(abs(self.style.colour_std)), 3))

    def centre_column(self, s: Any) -> Any:
        """Return the column of the road's centre at a scale."""
        nearness = np.minimum(s * self.camera / (1 - self.horizon), 1)
        return self.vanishing + self.lane * s + self.bend * (1 - nearness) * (1 - nearness)

    def row_at(self, up: Any, s: Any) -> Any:
        """Return the row of a height above the ground at a scale."""
        return self.horizon + (self.camera - up) * s

    def paint(self, mask: Mask, label: int | None, colour: Any, s: Any = None) -> None:
        """Paint the pixels of a mask; with a label of None, their labels are unchanged."""
        if label is not None:
            self.labels[mask] = label
        self.colour[mask] = colour
        if s is not None:
            self.scale[mask] = s

    def box_mask(
        self, side: float, s: float, half: float, low: float, high: float, lean: float = 0.0
    ) -> Mask:
        """Return the mask of an upright rectangle, at least one pixel thick; ``lean`` narrows its top."""
        top, bottom = self.row_at(high, s), self.row_at(low, s)
        bottom = max(bottom, top + self.pixel_side)
        shrink = 1 - lean * (bottom - self.y) / (bottom - top)
        half_width = np.maximum(half * s * shrink, 0.5 * self.pixel_side)
        rows, aside = (self.y >= top) & (self.y < bottom), np.abs(self.x - self.centre_column(s) - side * s)
        return np.asarray(rows & (aside <= half_width))

    def ellipse_mask(self, side: float, s: float, up: float, half_width: float, half_height: float) -> Mask:
        """Return the mask of an upright ellipse, at least one or two pixels large."""
        a, b = (max(r * s, 0.6 * self.pixel_side) for r in (half_width, half_height))
        across, along = (self.x - self.centre_column(s) - side * s) / a, (self.y - self.row_at(up, s)) / b
        return np.asarray(across * across + along * along <= 1)


def render_street(
    style: StreetStyle, height: int, width: int, generator: np.random.Generator
) -> tuple[FloatArray, NDArray[np.int8]]:
    """Render a street: colours ``(height, width, 3)`` in [0, 1] and labels ``(height, width)``."""
    canvas = StreetCanvas(style, height, width, generator)
    _paint_sky_and_ground(canvas)
    _paint_roadside(canvas)
    for _, drawing, side, depth in sorted(_place_objects(canvas), key=lambda placed: -placed[0]):
        drawing(canvas, side, 1 / depth)
    return _simulate_camera(canvas), canvas.labels


def _paint_sky_and_ground(canvas: StreetCanvas) -> None:
    sky = canvas.sample_colour(SKY)
    canvas.colour[:] = sky + 0.15 * (canvas.y / canvas.horizon)[..., None] * (1 - sky)
    s = np.maximum((canvas.y - canvas.horizon) / canvas.camera, 1 / _MAX_DEPTH_METRES)
    aside = (canvas.x - canvas.centre_column(s)) / s
    ground = np.broadcast_to(canvas.y > canvas.horizon, aside.shape)
    verge = VEGETATION if canvas.random_bool(0.5) else SIDEWALK
    near = np.broadcast_to(s, aside.shape)
    for label, reach in ((verge, np.inf), (SIDEWALK, canvas.kerb), (ROAD, canvas.road)):
        mask = ground & (np.abs(aside) < reach)
        canvas.paint(mask, label, canvas.sample_colour(label), near[mask])
    dash = (np.abs(aside) < 0.12) & ((1 / s) % 6 < 3)
    edge = np.abs(np.abs(aside) - canvas.road + 0.3) < 0.1
    marks = ground & (dash | edge) & (np.abs(aside) < canvas.road)
    strength = float(canvas.style.marking_strength)
    canvas.paint(marks, None, (1 - strength) * canvas.colour[marks] + strength * 0.92)
    # The houses on one side shade part of the street.
    shade, shaded_side = canvas.sample("shadow"), 1 if canvas.random_bool(0.5) else -1
    dark = ground & (shaded_side * aside > canvas.generator.uniform(-canvas.road, canvas.road))
    canvas.colour[dark] *= 1 - shade


def _wall_scale(canvas: StreetCanvas, aside: float) -> tuple[FloatArray, Mask]:
    """Return, for each column, the scale of the walls and whether the visible wall is the right one."""
    s = np.linspace(1 / _MAX_DEPTH_METRES, 3 * (1 - canvas.horizon) / canvas.camera, 200)
    right, left = canvas.centre_column(s) + aside * s, canvas.centre_column(s) - aside * s
    at_right = np.interp(canvas.x[0], np.maximum.accumulate(right), s, left=0)
    at_left = np.interp(-canvas.x[0], np.maximum.accumulate(-left), s, left=0)
    return np.maximum(np.maximum(at_left, at_right), 1 / _MAX_DEPTH_METRES), at_right > at_left


def _paint_roadside(canvas: StreetCanvas) -> None:
    """Paint houses, trees and gaps on both sides, then the fences in front of them."""
    rng = canvas.generator
    s, on_right = _wall_scale(canvas, canvas.facade)
    fence_s, fence_right = _wall_scale(canvas, 0.5 * (canvas.kerb + canvas.facade))
    fences: list[tuple[Mask, FloatArray]] = []
    for right in (False, True):
        edges = np.cumsum(rng.uniform(7, 22, 16))
        stretch = np.searchsorted(edges, 1 / s)
        for number in range(int(stretch.max()) + 1):
            columns = (stretch == number) & (on_right == right)
            _paint_stretch(canvas, columns, s)
            if canvas.random_bool(canvas.style.fence_fraction):
                columns = (np.searchsorted(edges, 1 / fence_s) == number) & (fence_right == right)
                fences.append((columns, canvas.sample_colour(FENCE)))
    high = rng.uniform(1.0, 1.8)
    for columns, colour in fences:
        near = np.broadcast_to(fence_s, canvas.labels.shape)
        mask = columns & (canvas.y > canvas.row_at(high, fence_s)) & (canvas.y <= canvas.row_at(0, fence_s))
        slats = 0.8 + 0.2 * ((1 / fence_s) % 1.5 < 0.75)
        canvas.paint(mask, FENCE, (slats[:, None] * colour + np.zeros((*mask.shape, 1)))[mask], near[mask])


def _paint_stretch(canvas: StreetCanvas, columns: Mask, s: FloatArray) -> None:
    """Paint one stretch of one side: a house, trees, or low bushes."""
    rng, near = canvas.generator, np.broadcast_to(s, canvas.labels.shape)
    up = canvas.camera - (canvas.y - canvas.horizon) / s  # metres above the ground, on the wall
    wall = columns & (up >= 0)
    if canvas.random_bool(canvas.style.house_fraction):
        mask = wall & (up < _STOREY_METRES * canvas.sample("storeys") + 1)
        colour = canvas.sample_colour(BUILDING) * (1.0 if canvas.random_bool(0.5) else 0.85)
        canvas.paint(mask, BUILDING, colour, near[mask])
        pitch, tone = rng.uniform(2.2, 4.0), rng.uniform(0.45, 0.8)
        floor, across = up % _STOREY_METRES, (1 / s) % pitch
        panes = mask & (floor > 1) & (floor < 2.4) & (across > 0.3 * pitch) & (across < 0.75 * pitch)
        canvas.colour[panes] *= tone
        return
    trees = canvas.random_bool(0.7)
    top = rng.uniform(4, 9) if trees else rng.uniform(1, 2.5)
    crowns = _smooth_noise(rng, 1, len(s), 6)[0]
    mask = wall & (up < top * (0.75 + 0.5 * crowns))
    canvas.paint(mask, VEGETATION, canvas.sample_colour(VEGETATION), near[mask])


def _place_objects(canvas: StreetCanvas) -> list[tuple[float, Any, float, float]]:
    """Place the free-standing objects: ``(order, drawing, side, depth)``."""
    rng, objects = canvas.generator, []

    def add_objects(
        drawing: Any, count: int, low: float, high: float, nearest: float, farthest: float
    ) -> None:
        for _ in range(count):
            # Between uniform in depth and uniform in scale: uniform depth would make most objects tiny.
            depth = nearest + (farthest - nearest) * rng.random() * rng.random()
            side = rng.uniform(low, high) * (1 if canvas.random_bool(0.5) else -1)
            objects.append((depth, drawing, side, depth))

    path = 0.5 * (canvas.road + canvas.kerb)
    add_objects(_paint_car, canvas.sample_count("parked"), canvas.road - 1.1, canvas.road - 0.9, 5, 40)
    add_objects(_paint_car, canvas.sample_count("moving"), 1.2, 1.8, 8, 60)
    add_objects(_paint_person, canvas.sample_count("people"), canvas.road + 0.2, canvas.kerb, 4, 18)
    add_objects(_paint_person, int(canvas.random_bool(0.3)), 0, canvas.road, 6, 20)
    add_objects(_paint_tree, canvas.sample_count("trees"), path, canvas.facade + 0.5, 7, 50)
    add_objects(_paint_pole, canvas.sample_count("poles"), canvas.road + 0.2, canvas.road + 0.6, 5, 32)
    return objects


def _paint_car(canvas: StreetCanvas, side: float, s: float) -> None:
    rng, colour = canvas.generator, canvas.sample_colour(CAR)
    half, high, long = rng.uniform(0.8, 0.95), rng.uniform(1.35, 1.8), rng.uniform(3.2, 4.5)
    if canvas.random_bool(0.12):  # parked across the road, or turning
        half = 0.5 * long
    canvas.colour[canvas.ellipse_mask(side, s, 0.05, 1.15 * half, 0.25)] *= 0.55
    for slice_ in np.linspace(long, 0, 6):  # from the far end to the near end
        far = 1 / (1 / s + slice_)
        tone = 0.8 if slice_ else 1.0
        body, cabin = (
            canvas.box_mask(side, far, half, 0.25, 0.6 * high, 0.05),
            canvas.box_mask(side, far, 0.9 * half, 0.6 * high, high, 0.25),
        )
        if 0 < slice_ < 0.25 * long or slice_ == long:
            cabin[:] = False
        canvas.paint(canvas.box_mask(side, far, half, 0, 0.3), CAR, 0.08, far)
        canvas.paint(body, CAR, tone * colour, far)
        canvas.paint(cabin, CAR, tone * colour, far)
    canvas.paint(
        canvas.box_mask(side, s, 0.72 * half, 0.63 * high, 0.92 * high, 0.2), None, (0.18, 0.22, 0.26)
    )
    for lamp in (-0.8, 0.8):
        canvas.paint(
            canvas.box_mask(side + lamp * half, s, 0.12 * half, 0.4 * high, 0.5 * high),
            None,
            (0.75, 0.15, 0.1),
        )


def _paint_person(canvas: StreetCanvas, side: float, s: float) -> None:
    rng, high = canvas.generator, canvas.generator.uniform(1.5, 1.9)
    coat, trousers = canvas.sample_colour(PERSON), canvas.sample_colour(PERSON)
    canvas.paint(canvas.box_mask(side, s, 0.2, 0, 0.5 * high), PERSON, 0.7 * trousers, s)
    canvas.paint(
        canvas.ellipse_mask(side, s, 0.65 * high, rng.uniform(0.3, 0.42), 0.25 * high), PERSON, coat, s
    )
    canvas.paint(canvas.ellipse_mask(side, s, 0.93 * high, 0.17, 0.09 * high), PERSON, (0.72, 0.54, 0.44), s)


def _paint_tree(canvas: StreetCanvas, side: float, s: float) -> None:
    rng, high = canvas.generator, canvas.generator.uniform(4, 8)
    colour = canvas.sample_colour(VEGETATION)
    canvas.paint(canvas.box_mask(side, s, 0.18, 0, 0.6 * high), VEGETATION, (0.3, 0.22, 0.16), s)
    for _ in range(6):
        aside, up = rng.uniform(-0.18, 0.18) * high, rng.uniform(0.5, 0.95) * high
        tone, size = rng.uniform(0.8, 1.1), rng.uniform(0.12, 0.25) * high
        canvas.paint(canvas.ellipse_mask(side + aside, s, up, size, 0.8 * size), VEGETATION, tone * colour, s)


def _paint_pole(canvas: StreetCanvas, side: float, s: float) -> None:
    rng, colour = canvas.generator, canvas.sample_colour(POLE)
    if not canvas.random_bool(canvas.style.sign_fraction):
        high, inwards = rng.uniform(4.5, 7), -1.0 if side > 0 else 1.0
        canvas.paint(canvas.box_mask(side, s, rng.uniform(0.12, 0.18), 0, high), POLE, colour, s)
        canvas.paint(canvas.box_mask(side + 0.6 * inwards, s, 0.6, high - 0.15, high), POLE, colour, s)
        return
    high = rng.uniform(2.4, 3.4)
    canvas.paint(canvas.box_mask(side, s, 0.11, 0, high), POLE, colour, s)
    board, kind = canvas.sample_colour(SIGN), rng.integers(3)
    half = rng.uniform(0.45, 0.75)
    shapes = (
        canvas.ellipse_mask(side, s, high, half, half),
        canvas.box_mask(side, s, half, high - half, high + half),
        canvas.box_mask(side, s, 1.2 * half, high - half, high + half, 0.95),
    )
    canvas.paint(shapes[kind], SIGN, board, s)
    if kind < 2:
        canvas.paint(canvas.box_mask(side, s, 0.45 * half, high - 0.2 * half, high + 0.2 * half), None, 0.9)


def _smooth_noise(generator: np.random.Generator, height: int, width: int, cell: int) -> FloatArray:
    """Return noise in [0, 1] that is smooth over about ``cell`` pixels."""
    rows, columns = (np.arange(n) / cell for n in (height, width))
    grid = generator.random((int(rows[-1]) + 2, int(columns[-1]) + 2))
    top, left = rows.astype(int), columns.astype(int)
    down, along = (rows - top)[:, None], (columns - left)[None]
    upper = grid[top][:, left] * (1 - along) + grid[top][:, left + 1] * along
    lower = grid[top + 1][:, left] * (1 - along) + grid[top + 1][:, left + 1] * along
    return np.asarray(upper * (1 - down) + lower * down)


def _simulate_camera(canvas: StreetCanvas) -> FloatArray:
    """Simulate the camera: grain, haze, light, blur and noise."""
    style, rng, image = canvas.style, canvas.generator, canvas.colour
    height, width = canvas.labels.shape
    grain = sum(_smooth_noise(rng, height, width, cell) - 0.5 for cell in (1, 2, 5)) * 1.2
    image = image * (1 + np.maximum(style.texture, 0)[canvas.labels] * grain)[..., None]
    haze = np.maximum(style.haze, 0) * 0.03 / (0.03 + canvas.scale) * (canvas.labels != SKY)
    image = image + haze[..., None] * (0.62 - image)
    tilt = 1 + 0.25 * np.maximum(style.haze, 0) * rng.uniform(-1, 1) * canvas.x
    centre = canvas.x * canvas.x + 4 * (canvas.y - 0.5) * (canvas.y - 0.5)
    light = canvas.sample("exposure") * tilt * (1 - 0.5 * np.maximum(style.vignette, 0) * centre)
    gains = 1 + rng.normal(0, float(abs(style.channel_gain_std)), 3)
    image = image * light[..., None] * gains
    passes = float(np.maximum(style.blur_passes, 0))
    while passes > 0:
        image = image + min(passes, 1.0) * (_smooth(image) - image)
        passes -= 1
    image = image + rng.normal(0, float(abs(style.noise_std)), image.shape)
    return np.asarray(image.clip(0, 1))


def _smooth(image: FloatArray) -> FloatArray:
    """Smooth with weights 1, 2, 1 along both axes; the border is repeated."""
    padded = np.pad(image, ((1, 1), (0, 0), (0, 0)), mode="edge")
    image = 0.25 * padded[:-2] + 0.5 * padded[1:-1] + 0.25 * padded[2:]
    padded = np.pad(image, ((0, 0), (1, 1), (0, 0)), mode="edge")
    return np.asarray(0.25 * padded[:, :-2] + 0.5 * padded[:, 1:-1] + 0.25 * padded[:, 2:])
