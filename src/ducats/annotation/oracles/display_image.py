"""Images of the pool for display, and the digests of their content."""

import hashlib

from PIL import Image

from ducats.data.domain import Images
from ducats.utils.errors import UserError
from ducats.utils.image_files import load_image


def load_display_image(pool: Images, image: int) -> Image.Image:
    """Return the image in RGB, from its file if there is one: stored pixels may be downscaled and distorted.

    Raises:
        UserError: The file cannot be read any longer.
    """
    if pool.files is not None:
        try:
            return load_image(pool.files[image], pool.value_range).convert("RGB")
        except (OSError, ValueError, SyntaxError) as error:
            raise UserError(
                f"{pool.files[image]} is not a readable image ({error}); restore the file that was there "
                "when the run started"
            ) from error
    pixels = pool.pixels[image].cpu()
    stored = pixels[0].numpy() if len(pixels) == 1 else pixels.permute(1, 2, 0).numpy()
    return Image.fromarray(stored).convert("RGB")


def image_digest(pool: Images, image: int) -> str:
    """Return a digest of the content of an image: of its file or, if it has none, of its pixels."""
    digest = hashlib.blake2b(digest_size=16)
    if pool.files is not None:
        try:
            digest.update(pool.files[image].read_bytes())
        except OSError as error:
            raise UserError(
                f"{pool.files[image]} cannot be read ({error.strerror}); restore the file that was there "
                "when the run started"
            ) from error
    else:
        pixels = pool.pixels[image].cpu()
        digest.update(str(tuple(pixels.shape)).encode() + pixels.numpy().tobytes())
    return digest.hexdigest()
