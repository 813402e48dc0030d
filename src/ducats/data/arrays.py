"""Images from NumPy arrays, with the channels first or last."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from ducats.data.decoding import ImageSize, parse_size, resize_image
from ducats.data.domain import Images
from ducats.utils.errors import UserError

ChannelOrder = Literal["last", "first", "grey"]
_CHANNELS = (1, 3)


def find_channel_order(
    arrays: Sequence[NDArray[np.uint8]], given: Literal["auto", "last", "first"] = "auto"
) -> ChannelOrder:
    """Return the order of the channels: ``grey`` for arrays ``(height, width)``; raise if it is ambiguous.

    >>> [find_channel_order([np.zeros(shape, np.uint8)]) for shape in ((8, 8, 3), (1, 8, 8))]
    ['last', 'first']
    """
    if given not in ("auto", "last", "first"):
        raise UserError(f"channel_order must be 'auto', 'last' or 'first', not {given!r}")
    wrong = [array.dtype for array in arrays if array.dtype != np.uint8]
    if wrong:
        raise UserError(
            f"images must be uint8 with values from 0 to 255, not {wrong[0]}; convert them, e.g. "
            "(255 * images).astype('uint8'), or pass features as an array of two dimensions"
        )
    shapes = {array.shape for array in arrays}
    if all(len(shape) == 2 for shape in shapes):
        return "grey"
    if all(len(shape) == 3 for shape in shapes):
        is_last = all(shape[-1] in _CHANNELS for shape in shapes) and given != "first"
        is_first = all(shape[0] in _CHANNELS for shape in shapes) and given != "last"
        if is_last and is_first:
            raise UserError(
                f"images of shape {min(shapes)} may have their channels first or last; set "
                "channel_order='last' or 'first'"
            )
        if is_last or is_first:
            return "last" if is_last else "first"
    raise UserError(
        f"images of shape {min(shapes)} have neither 1 nor 3 channels where channel_order={given!r} expects "
        "them; pass grey or RGB images, (height, width, 3)"
    )


def decode_arrays(arrays: Sequence[NDArray[np.uint8]], size: ImageSize, order: ChannelOrder) -> Images:
    """Resize images to one size, as `decode_images` does with files; grey images become RGB."""
    height, width = parse_size(size)
    pixels = torch.empty((len(arrays), 3, height, width), dtype=torch.uint8)
    for row, array in enumerate(arrays):
        last = array.transpose(1, 2, 0) if order == "first" else array
        last = last[:, :, 0] if last.ndim == 3 and last.shape[2] == 1 else last
        image = Image.fromarray(np.ascontiguousarray(last))
        pixels[row] = torch.from_numpy(np.array(resize_image(image, (height, width))))
    return Images(tuple(map(str, range(len(arrays)))), pixels)
