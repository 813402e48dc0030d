"""From stored images to the input of the network: through a view or, with a frozen backbone, embeddings."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ducats.data.domain import Images, Indexable
from ducats.data.views import apply_view, apply_view_to_labels, sample_view_params
from ducats.settings import View

MIRROR = 1  # number of the fixed view that is the mirror image of the first


@dataclass(frozen=True)
class PixelInputs:
    """Images that a view is applied to."""

    images: Images
    view: View
    append_flipped: bool = False

    @property
    def stored(self) -> Indexable:
        """What a batch is taken from: uint8 ``(N, channels, height, width)``."""
        return self.images.pixels_for(self.view)

    def sample_params(self, index: Tensor, generator: torch.Generator) -> Tensor:
        """Sample augmentation parameters, one row for each image of ``index``."""
        height, width = self.images.pixels.shape[-2:]
        aspect = None if self.images.aspect is None else self.images.aspect[index]
        return sample_view_params(self.view, len(index), height, width, generator, aspect)

    def apply(self, batch: Tensor, aug_params: Tensor) -> Tensor:
        """Apply the view to a batch of stored images; append the mirrored images with ``append_flipped``."""
        augmented = apply_view(batch, self.view, aug_params)
        return torch.cat([augmented, augmented.flip(-1)]) if self.append_flipped else augmented

    def apply_to_labels(self, label_maps: Tensor, aug_params: Tensor) -> Tensor:
        """Apply the view to the label maps of a batch."""
        return apply_view_to_labels(label_maps, self.view, aug_params)


@dataclass(frozen=True)
class EmbeddingInputs:
    """Embeddings of fixed views: a random view chooses one of them, any other gets the first."""

    embeddings: Tensor  # (N, views, D)
    view: View
    append_flipped: bool = False

    @property
    def stored(self) -> Indexable:
        """What a batch is taken from: the embeddings of all views that can be chosen."""
        if self.view.is_random:
            return self.embeddings
        return self.embeddings[:, : MIRROR + 1 if self.append_flipped else 1]

    def sample_params(self, index: Tensor, generator: torch.Generator) -> Tensor:
        """Sample the number of a view for each image of ``index``."""
        if not self.view.is_random:
            return torch.zeros(len(index), dtype=torch.long)
        return torch.randint(self.embeddings.shape[1], (len(index),), generator=generator)

    def apply(self, batch: Tensor, aug_params: Tensor) -> Tensor:
        """Return the chosen view of each image, ``(N, D)``; with ``append_flipped``, also mirror images."""
        chosen = aug_params[:, None, None].expand(-1, 1, batch.shape[2])
        augmented = batch.gather(1, chosen).squeeze(1).float()
        return torch.cat([augmented, batch[:, MIRROR].float()]) if self.append_flipped else augmented

    def apply_to_labels(self, label_maps: Tensor, aug_params: Tensor) -> Tensor:
        """Mirror the label maps of the images whose mirror image was chosen."""
        return torch.where((aug_params == MIRROR)[:, None, None], label_maps.flip(-1), label_maps)


ModelInputs = PixelInputs | EmbeddingInputs


def model_inputs(images: Images, view: View, *, append_flipped: bool = False) -> ModelInputs:
    """Return the inputs of a network: embeddings if the images have them, else pixels.

    Args:
        append_flipped: append the mirrored images to each batch; only for a view that is not random.
    """
    if images.embeddings is not None:
        return EmbeddingInputs(images.embeddings, view, append_flipped)
    return PixelInputs(images, view, append_flipped)
