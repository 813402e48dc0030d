"""From stored images to the input of the network: through a view or, with a frozen backbone, embeddings."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ducats.data.domain import Images, Indexable
from ducats.data.views import apply_view, sample_view_params
from ducats.settings import View


@dataclass(frozen=True)
class PixelInputs:
    """Images that a view is applied to."""

    images: Images
    view: View

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
        """Apply the view to a batch of stored images."""
        return apply_view(batch, self.view, aug_params)


@dataclass(frozen=True)
class EmbeddingInputs:
    """Embeddings of fixed views: a random view chooses one of them, any other gets the first."""

    embeddings: Tensor  # float32 (N, views, D)
    view: View

    @property
    def stored(self) -> Indexable:
        """What a batch is taken from: the embeddings of all views that can be chosen."""
        return self.embeddings if self.view.is_random else self.embeddings[:, :1]

    def sample_params(self, index: Tensor, generator: torch.Generator) -> Tensor:
        """Sample the number of a view for each image of ``index``."""
        if not self.view.is_random:
            return torch.zeros(len(index), dtype=torch.long)
        return torch.randint(self.embeddings.shape[1], (len(index),), generator=generator)

    def apply(self, batch: Tensor, aug_params: Tensor) -> Tensor:
        """Return the chosen view of each image, ``(N, D)``."""
        chosen = aug_params[:, None, None].expand(-1, 1, batch.shape[2])
        return batch.gather(1, chosen).squeeze(1)


ModelInputs = PixelInputs | EmbeddingInputs


def model_inputs(images: Images, view: View) -> ModelInputs:
    """Return the inputs of a network: embeddings if the images have them, else pixels."""
    if images.embeddings is not None:
        return EmbeddingInputs(images.embeddings, view)
    return PixelInputs(images, view)
