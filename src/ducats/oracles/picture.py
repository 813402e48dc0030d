"""A pool's picture for a person."""

from PIL import Image

from ducats.domain import Images
from ducats.errors import UserError
from ducats.pictures import as_shown


def picture(pool: Images, image: int) -> Image.Image:
    """The picture in colour: from its file, for stored pixels may be few and squashed.

    Raises:
        UserError: The file was there when the pool was read, and cannot be read now.
    """
    if pool.files is not None:
        try:
            return as_shown(pool.files[image]).convert("RGB")
        except (OSError, ValueError, SyntaxError) as error:
            raise UserError(
                f"{pool.files[image]} cannot be read as a picture ({error}): put back the file that was "
                "there when the run began"
            ) from error
    pixels = pool.pixels[image].cpu()
    stored = pixels[0].numpy() if len(pixels) == 1 else pixels.permute(1, 2, 0).numpy()
    return Image.fromarray(stored).convert("RGB")
