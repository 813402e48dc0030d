import pytest
import torch
import torchvision.transforms.v2 as T
from torchvision.transforms.v2 import functional as TF

from ducats.data.views import View, center_crop, color_jitter, crop_boxes, look, random_crop
from ducats.randomness import fork

IMAGES = torch.randint(0, 256, (6, 3, 20, 20), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_no_view_is_the_image_itself() -> None:
    assert torch.equal(look(IMAGES, View(), fork(0)), IMAGES.float() / 255)


def test_center_crop_is_torchvisions() -> None:
    assert torch.equal(center_crop(IMAGES, 12), TF.center_crop(IMAGES, [12, 12]))
    with pytest.raises(ValueError, match="does not fit"):
        center_crop(IMAGES, 24)


def test_random_crops_are_parts_of_the_image_each_at_its_own_place() -> None:
    cut = random_crop(IMAGES, 16, 0, fork(0))
    places = []
    for image, part in zip(IMAGES, cut, strict=True):
        found = [
            (y, x) for y in range(5) for x in range(5) if torch.equal(image[:, y : y + 16, x : x + 16], part)
        ]
        places += found[:1]
    assert len(places) == len(IMAGES)
    assert len(set(places)) > 2


def test_padding_repeats_the_edge() -> None:
    flat = torch.full((2, 1, 8, 8), 77, dtype=torch.uint8)
    assert torch.equal(random_crop(flat, 8, 2, fork(0)), flat)


def test_flips_come_with_their_probability() -> None:
    many = IMAGES[:1].expand(2000, -1, -1, -1)
    shown = look(many, View(flip=0.3), fork(0))
    flipped = (shown != IMAGES[0].float() / 255).flatten(1).any(1)
    assert abs(float(flipped.float().mean()) - 0.3) < 0.04
    assert torch.equal(shown[flipped][0], (IMAGES[0].float() / 255).flip(-1))


def test_crop_boxes_have_torchvisions_statistics() -> None:
    count, scale, ratio = 4000, (0.08, 1.0), (0.75, 4 / 3)
    ours = crop_boxes(count, 24, 32, scale, ratio, fork(0))
    torch.manual_seed(0)
    transform = T.RandomResizedCrop(8, scale=scale, ratio=ratio)
    drawn = [transform.make_params([torch.empty(3, 24, 32)]) for _ in range(count)]
    theirs = torch.tensor([[d["top"], d["left"], d["height"], d["width"]] for d in drawn]).float()
    error = theirs.std(0) * (2 / count) ** 0.5
    assert ((ours.mean(0) - theirs.mean(0)).abs() < 4 * error).all()
    assert ((ours.std(0) / theirs.std(0) - 1).abs() < 0.06).all()
    assert (ours[:, 0] + ours[:, 2] <= 24).all()
    assert (ours[:, 1] + ours[:, 3] <= 32).all()


def test_a_resized_crop_of_the_whole_is_the_whole() -> None:
    whole = View(crop="resized", size=20, scale=(1.0, 1.0), ratio=(1.0, 1.0))
    torch.testing.assert_close(look(IMAGES, whole, fork(0)), IMAGES.float() / 255, rtol=0, atol=1e-5)


def test_a_resized_crop_agrees_with_torchvision_on_the_same_box() -> None:
    smooth = TF.gaussian_blur(IMAGES, [7, 7], [3.0, 3.0])
    view = View(crop="resized", size=24, scale=(0.3, 0.6))
    boxes = crop_boxes(len(smooth), 20, 20, view.scale, view.ratio, fork(5)).int().tolist()
    shown = look(smooth, view, fork(5))
    for image, ours, box in zip(smooth, shown, boxes, strict=True):
        theirs = TF.resized_crop(image.float() / 255, *box, [24, 24], antialias=True)
        # Inside; at a crop's rim torchvision repeats the rim where ours still sees the image beyond.
        torch.testing.assert_close(ours[:, 3:-3, 3:-3], theirs[:, 3:-3, 3:-3], rtol=0, atol=0.01)


@pytest.mark.parametrize(("position", "name"), [(0, "brightness"), (1, "contrast"), (2, "saturation")])
def test_one_kind_of_jitter_is_torchvisions(position: int, name: str) -> None:
    strength = [0.0, 0.0, 0.0, 0.0]
    strength[position] = 0.4
    images = IMAGES.float() / 255
    shown = color_jitter(images, tuple(strength), fork(3))  # type: ignore[arg-type]
    adjust = getattr(TF, f"adjust_{name}")
    for image, ours in zip(images, shown, strict=True):
        factors = torch.linspace(0.6, 1.4, 801)
        error = min(float((adjust(image, float(f)) - ours).abs().max()) for f in factors)
        assert error < 2e-3  # some factor of the range explains the picture


def test_hue_turns_back_and_keeps_grey() -> None:
    grey = torch.full((4, 3, 5, 5), 0.4)
    torch.testing.assert_close(color_jitter(grey, (0, 0, 0, 0.5), fork(0)), grey, atol=2e-3, rtol=0)
    red = torch.zeros(64, 3, 1, 1)
    red[:, 0] = 0.5
    assert (color_jitter(red, (0, 0, 0, 0.5), fork(0))[:, 2] > 0.2).any()  # some of them blue


def test_grey_images_keep_one_channel() -> None:
    shown = look(IMAGES[:, :1], View(jitter=(0.4, 0.4, 0.4, 0.1)), fork(0))
    assert shown.shape == (6, 1, 20, 20)
    assert shown.min() >= 0
    assert shown.max() <= 1


def test_each_image_has_its_own_luck() -> None:
    same = IMAGES[:1].expand(8, -1, -1, -1)
    shown = look(same, View(crop="resized", size=16, jitter=(0.4, 0.4, 0.4, 0.1)), fork(0))
    assert len({image.numpy().tobytes() for image in shown}) == 8
    assert torch.equal(shown, look(same, View(crop="resized", size=16, jitter=(0.4, 0.4, 0.4, 0.1)), fork(0)))
