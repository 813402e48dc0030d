"""Batched inference: views, forward passes and transfers to the host, overlapped."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from ducats.acquisition.criteria import PROBE_COLUMNS, compute_columns, require_probe
from ducats.acquisition.samples import SampleTable
from ducats.data.domain import Images
from ducats.models.evidential import with_merged_classes
from ducats.models.output import Output
from ducats.models.upsampling import upsample
from ducats.settings import View
from ducats.training import placement
from ducats.training.distributed import all_gather_rows, rank_share
from ducats.training.embed import Embedder
from ducats.training.inputs import model_inputs
from ducats.utils.errors import UserError
from ducats.utils.progress import activity
from ducats.utils.randomness import make_generator

OutputColumns = dict[str, Tensor]
ExtraColumnsFn = Callable[[Output], Mapping[str, Tensor]]  # columns that probes add to the model's output
MAX_PENDING_BATCHES = 16  # batches kept on the device before they are copied to the host together


@dataclass(frozen=True, kw_only=True)
class Predictor:
    """Applies a model to images, batch by batch.

    Images are split into batches before the batches are divided among processes, so no value depends on the
    number of processes.
    """

    model: nn.Module  # as set up by Fabric
    view: View
    batch_size: int
    fabric: Fabric
    seed: int = 0  # of a view with random augmentation
    stream: tuple[str, ...] = ("scoring",)  # name of its random stream
    extra_columns: ExtraColumnsFn | None = None  # computes the columns of probes
    two_step_upsampling: bool = False  # see `upsample`
    embedder: Embedder | None = None  # of a frozen backbone, for images without embeddings
    groups: Sequence[int] | None = None  # index of the class that each logit belongs to, if some were merged

    def share(self, indices: Tensor) -> Sequence[Tensor]:
        """Return this process's batches of image indices."""
        return rank_share(indices.split(self.batch_size), self.fabric)

    def forward(
        self, images: Images, batches: Sequence[Tensor], *, append_flipped: bool = False
    ) -> Iterator[tuple[Tensor, Output]]:
        """Yield the index and the output of each batch, in order, on the model's device and in its dtype.

        Args:
            batches: image indices of each batch.
            append_flipped: append the mirrored images to each batch, which doubles its length.
        """
        self.model.eval()
        if self.embedder is not None and images.embeddings is None:
            images = replace(images, embeddings=self.embedder.embed(images))
        device, inputs = self.fabric.device, model_inputs(images, self.view, append_flipped=append_flipped)
        stored, generator = inputs.stored, make_generator(self.seed, *self.stream)
        # For all images, so that they do not depend on the batches.
        aug_params = inputs.sample_params(torch.arange(len(images)), generator)
        is_resident = placement.is_on_device(stored, device)
        load_batch = placement.index_to_device if is_resident else placement.index_to_host
        raw_batches = placement.produce(
            lambda n: load_batch(stored, batches[n], device), len(batches), prefetched=not is_resident
        )
        n_images = sum(map(len, batches))
        with (
            closing(raw_batches),
            activity(f"predicting {n_images} images", total=n_images) as predicting,
        ):
            for index, raw in zip(batches, raw_batches, strict=True):
                augmented = inputs.apply(
                    placement.to_device(raw, device), aug_params[index].to(device, non_blocking=True)
                )
                output: Output = self.model(augmented)
                if self.groups is not None:
                    output = with_merged_classes(output, self.groups)
                if self.extra_columns is not None:
                    output = output._replace(extras=self.extra_columns(output))
                yield index, output
                predicting.advance(len(index))

    def columns(
        self, images: Images, batches: Sequence[Tensor], needs: Sequence[str]
    ) -> Iterator[tuple[Tensor, OutputColumns]]:
        """Yield the index and the requested columns of each batch, in order, as float32 on the CPU.

        Args:
            batches: image indices of each batch.
            needs: ``z``, ``features``, and columns of probes.
        """
        max_pending = 1 if self.fabric.device.type == "cpu" else MAX_PENDING_BATCHES
        pending: list[tuple[Tensor, OutputColumns]] = []
        for index, output in self.forward(images, batches):
            pending.append((index, {name: _column(output, name).float() for name in needs}))
            if len(pending) == max_pending:
                yield from _to_host(pending)
                pending = []
        yield from _to_host(pending)

    @torch.inference_mode()
    def score_images(self, images: Images, needs: tuple[str, ...]) -> SampleTable:
        """Return one row per image with the columns in ``needs``, in image order, on the CPU.

        Args:
            needs: ``z``, ``features``, columns of probes, and names of criteria. If it is empty, there is no
                forward pass.
        """
        all_images = torch.arange(len(images))
        position = torch.zeros_like(all_images)
        if not needs:
            return SampleTable(all_images, position, {})
        model_columns = ("z", *(name for name in needs if name == "features" or name in PROBE_COLUMNS))
        indices: list[Tensor] = []
        collected: dict[str, list[Tensor]] = {name: [] for name in model_columns}
        own_batches = self.share(all_images)
        # A process without a batch still scores one image to learn the shape of a row, then discards it.
        for index, batch_columns in self.columns(images, own_batches or (all_images[:1],), model_columns):
            indices.append(index)
            for name in model_columns:
                collected[name].append(batch_columns[name])
        own_rows = slice(None) if own_batches else slice(0)
        order: Tensor | slice = slice(None)  # one process needs no copy
        if self.fabric.world_size > 1:
            order = all_gather_rows(torch.cat(indices)[own_rows], self.fabric).argsort()
        all_columns = {
            name: all_gather_rows(torch.cat(tensors)[own_rows], self.fabric)[order]
            for name, tensors in collected.items()
        }
        columns = compute_columns(all_columns["z"], all_columns.get("features"), needs, all_columns)
        return SampleTable(all_images, position, columns)

    def pixel_logits(self, output: Output, index: int, size: Sequence[int] | Tensor) -> Tensor:
        """Return log alpha of the pixels of one image of a batch: ``(1, C, H, W)``."""
        height, width = (int(side) for side in size)
        one = output._replace(z=output.z[index : index + 1])
        return upsample(one, (height, width), two_step_upsampling=self.two_step_upsampling)


def _to_host(pending: Sequence[tuple[Tensor, OutputColumns]]) -> Iterator[tuple[Tensor, OutputColumns]]:
    """Copy pending batches to the CPU and raise if a value is not finite."""
    for index, columns in pending:
        host_columns = {name: column.cpu() for name, column in columns.items()}
        for column in host_columns.values():
            check_finite(column)
        yield index, host_columns


def check_finite(column: Tensor) -> None:
    """Raise if training diverged."""
    if not bool(column.isfinite().all()):
        raise UserError(
            "training diverged: the model's logits are no longer finite. Start a new run in a new folder "
            "with a lower train.lr, or bound the evidence with model.evidence=exp_clamped"
        )


def _column(output: Output, name: str) -> Tensor:
    column = require_probe(name, output.extras) if name in PROBE_COLUMNS else getattr(output, name, None)
    if column is None:
        raise UserError(
            f"the query needs {name!r}, but the model does not return it; "
            "make its forward return (logits, features)"
        )
    assert isinstance(column, Tensor)
    return column
