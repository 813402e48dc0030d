"""Images of the pool for display."""

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
