"""A pool's picture for a person."""

from PIL import Image, ImageOps

from ducats.domain import Images


def picture(pool: Images, image: int) -> Image.Image:
    """The picture in colour: from its file, for stored pixels may be few and squashed."""
    if pool.files is not None:
        with Image.open(pool.files[image]) as opened:
            found = ImageOps.exif_transpose(opened).convert("RGBA")
            paper = Image.new("RGBA", found.size, "white")
            return Image.alpha_composite(paper, found).convert("RGB")
    pixels = pool.pixels[image]
    stored = pixels[0].numpy() if len(pixels) == 1 else pixels.permute(1, 2, 0).numpy()
    return Image.fromarray(stored).convert("RGB")
