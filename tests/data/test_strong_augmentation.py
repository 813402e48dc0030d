"""Strong augmentations: RandAugment with one seed per image, and cutout."""

import torch
from torchvision.transforms import v2

from ducats.data.strong_augmentation import CUTOUT_GREY, cutout, randaugment
from ducats.data.views import CUTOUT_COLUMNS, SEED_COLUMN, apply_view, sample_view_params
from ducats.settings import View


def random_images(count: int = 4, channels: int = 3) -> torch.Tensor:
    return torch.rand(count, channels, 16, 16, generator=torch.Generator().manual_seed(0))


def test_randaugment_depends_only_on_the_images_seed() -> None:
    images, seeds = random_images(), torch.tensor([3, 1, 4, 1])
    before = torch.get_rng_state()
    augmented = randaugment(images, 2, 10, seeds)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(augmented[1:2], randaugment(images[1:2], 2, 10, seeds[1:2]))
    with torch.random.fork_rng():
        torch.manual_seed(4)
        expected = v2.RandAugment(2, 10)((images[2] * 255).round().to(torch.uint8)).float() / 255
    torch.testing.assert_close(augmented[2], expected)
    assert not torch.allclose(augmented, images, atol=0.01)


def test_randaugment_of_grey_images() -> None:
    augmented = randaugment(random_images(channels=1), 2, 10, torch.arange(4))
    assert augmented.shape == (4, 1, 16, 16)
    assert 0 <= augmented.min() <= augmented.max() <= 1


def test_cutout_is_clipped_at_the_border() -> None:
    images = torch.zeros(2, 1, 8, 8)
    augmented = cutout(images, 0.5, torch.tensor([[0.5, 0.5], [0.0, 1.0 - 1e-6]]))
    mask = augmented[:, 0] == CUTOUT_GREY
    assert mask[0].sum() == 16
    assert mask[0, 2:6, 2:6].all()
    assert mask[1].nonzero().tolist() == [[y, x] for y in (0, 1) for x in (6, 7)]


def test_view_samples_only_the_parameters_it_needs() -> None:
    plain, strong = View(), View(randaugment=(2, 10), cutout=0.5)
    left, right = (torch.Generator().manual_seed(0) for _ in range(2))
    sample_view_params(plain, 3, 8, 8, left)
    assert torch.equal(left.get_state(), right.get_state())
    aug_params = sample_view_params(strong, 3, 8, 8, right)
    assert (aug_params[:, SEED_COLUMN] == aug_params[:, SEED_COLUMN].round()).all()
    assert aug_params[:, CUTOUT_COLUMNS].min() >= 0
    images = torch.randint(256, (3, 3, 8, 8), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    assert torch.equal(apply_view(images, strong, aug_params), apply_view(images, strong, aug_params))
    assert not torch.equal(apply_view(images, strong, aug_params), apply_view(images, plain, aug_params))
