"""Figure of the labelled pixels of a run on the images of its data set."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from ducats.annotation.oracles.display_image import load_display_image
from ducats.data.domain import Images
from ducats.deploy.pool_images import check_in_data
from ducats.ledger import Ledger
from ducats.report.figures.pixels import LabelledImage, prepare_labelled_pixels
from ducats.report.figures.render import render_file
from ducats.utils.errors import UserError
from ducats.utils.files import write_atomically

IMAGE_WIDTH = 360  # maximum width of an image: six rounds fit on a screen


def write_picks_figure(
    ledger: Ledger, images: Images, out: Path, *, image_keys: Sequence[str], classes: Sequence[str] = ()
) -> Path:
    """Write a PNG of the labelled pixels: new ones of each round in yellow, earlier ones in blue.

    The last column shows all labels in the colours of their classes.

    Args:
        images: the pool, or at least the images shown.
        image_keys: keys of the images, see ``select_image_keys``.
        classes: class names for colours and legend.
    """
    rounds = range(1, ledger.n_rounds + 1)
    shown = [labelled_image(ledger, images, key, rounds) for key in image_keys]
    figure = prepare_labelled_pixels(shown, rounds, classes)
    data = render_file(figure.draw, figure.size, "png", figure.title)
    write_atomically(out, lambda file: file.write(data))
    return out


def select_image_keys(
    ledger: Ledger, image_keys: Sequence[str] | None = None, n_images: int = 4
) -> list[str]:
    """Return the keys of the images to show: those given, or ``n_images`` evenly spaced ones with labels."""
    if ledger.sizes is None:
        raise UserError(
            "this run labelled whole images, so there are no pixels to show; use `ducats labels RUN`"
        )
    if not ledger.n_rounds or not bool(ledger.labels_per_image().any()):
        raise UserError("this run has no labels yet, resume it until its first round is answered")
    if image_keys is not None:
        unknown = [key for key in image_keys if key not in set(ledger.keys)]
        if unknown or not image_keys:
            problem = f"no image {unknown[0]!r}" if unknown else "no image given"
            raise UserError(f"{problem}; give keys of images, such as {ledger.keys[0]!r}")
        return list(image_keys)
    if n_images < 1:
        raise UserError(f"cannot show {n_images} images; give one or more")
    labelled_images = [
        image
        for image in ledger.labels_per_image().nonzero().squeeze(1).tolist()
        if len(ledger.image_label_arrays(image)[0])
    ]
    n_shown = min(n_images, len(labelled_images))
    return [
        ledger.keys[labelled_images[int((index + 0.5) * len(labelled_images) / n_shown)]]
        for index in range(n_shown)
    ]


def labelled_image(ledger: Ledger, images: Images, key: str, rounds: Sequence[int]) -> LabelledImage:
    """Return an image with the labels since the previous round of ``rounds``."""
    check_in_data(key, images.keys)
    index = ledger.keys.index(key)
    assert ledger.sizes is not None
    height, width = ledger.sizes[index].tolist()
    known = [ledger.image_label_arrays(index, number)[0] for number in (0, *rounds)]
    position, label = ledger.image_label_arrays(index, rounds[-1])
    since = [np.isin(position, now) & ~np.isin(position, before) for before, now in pairwise(known)]
    return LabelledImage(
        key,
        load_display_image(images, images.keys.index(key)),
        (height, width),
        tuple(position[mask] for mask in since),
        tuple(label[mask] for mask in since),
        IMAGE_WIDTH,
    )
