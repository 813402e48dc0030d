"""Select, describe and evaluate images and pixels on any number of processes. Used by test_distributed.py."""

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import torch
from lightning_fabric import Fabric

from ducats.acquisition.criteria import IMAGE_COLUMNS
from ducats.acquisition.queries import QUERIES, QuerySpec
from ducats.acquisition.samples import QueryContext
from ducats.data.domain import UNLABELLED
from ducats.data.streets import streets
from ducats.data.toy import toy
from ducats.evaluation.evaluate import evaluate, evaluate_segmentation
from ducats.evaluation.metrics import Tally, compute_metrics
from ducats.ledger import Request
from ducats.models import EvidentialModel, small_cnn, small_fcn
from ducats.objectives import ObjectiveSpec, softmax
from ducats.run.hints import image_hints, pixel_hints
from ducats.run.pixel_selection import score_whole_images, select_pixels
from ducats.run.select import select_images
from ducats.run.snapshot_sample import SampleOutputs, predict_sample, sample_images, sample_pixels
from ducats.runfolder.hints import AnnotatorHints
from ducats.settings import Unit, View
from ducats.training.auxiliary import AuxiliaryModules, build_auxiliaries
from ducats.training.predictor import Predictor
from ducats.training.task import label_grid_sizes
from ducats.utils.errors import UserError
from ducats.utils.randomness import global_seed, make_generator
from present import present

# Queries that select pixels within an image; those that need the source, descriptors or a committee select
# images.
PIXEL_QUERIES = [
    name
    for name, query in QUERIES.items()
    if not query.source_needs and not any(need in (*IMAGE_COLUMNS, "committee") for need in query.needs)
]
REGION_QUERIES = ("ripu", "margin", "least_confident", "las")  # run with regions; the others with pixels
IMAGE_QUERIES = ("random", "duc", "coverage", "ripu")


def broken(context: QueryContext) -> torch.Tensor:
    """Return invalid picks for images that the second of two processes scores."""
    return torch.arange(context.budget) * int(context.candidates.image[0] < 2)


def refused(fn: Callable[[], object]) -> str:
    """Return the error message; every process must raise, or the others would wait forever."""
    try:
        fn()
    except UserError as error:
        return str(error)
    return "nothing"


def evaluation(tally: Tally) -> dict[str, object]:
    metrics = {name: round(value, 12) for name, value in compute_metrics(tally).items()}
    return {"confusion": tally.confusion.tolist(), "metrics": metrics}


def hint_columns(hints: AnnotatorHints) -> dict[str, object]:
    return {name: column.tolist() for name, column in asdict(hints).items()}


def sample_outputs(outputs: SampleOutputs) -> list[object]:
    return [outputs.z.tolist(), outputs.features.tolist()]


def build_probes(
    model: EvidentialModel, query: QuerySpec, pool_size: int, **of_model: Any
) -> AuxiliaryModules:
    objective = ObjectiveSpec(softmax)
    return build_auxiliaries(model, objective, query, pool_size=pool_size, seed=0, **of_model)


def picked_images(fabric: Fabric, count: int) -> dict[str, object]:
    """Return the picks of every image query."""
    data = toy(n_pool=count, n_test=37)
    with global_seed(0, "model"):
        bare = EvidentialModel(small_cnn(classes=4, channels=3, width=4, features=8))
    # Random augmentation, the harder case.
    plain = Predictor(
        model=fabric.setup(bare), view=View(crop="random", pad=1), batch_size=8, fabric=fabric, seed=5
    )
    known_labels = torch.full((count,), UNLABELLED)
    known_labels[::10] = 0
    budget = min(9, int((known_labels == UNLABELLED).sum()))
    found: dict[str, object] = {}
    for name, query in QUERIES.items():
        if query.per_pixel:
            continue
        probes = build_probes(bare, query, count, classes=4, n_features=8, per_pixel=False)
        predictor = replace(plain, extra_columns=probes.extra_columns)
        samples = predictor.score_images(data.pool, query.needs)
        assert len(samples) == count
        source = (
            predictor.score_images(data.source.images, query.source_needs) if query.source_needs else None
        )
        head = probes.head_weights() if query.needs_head else None
        generator = make_generator(0, "query")
        picked = select_images(query, samples, known_labels, budget, 1, generator, source=source, head=head)
        found[name] = picked.image.tolist()
    request = Request(1, torch.arange(count).flip(0)[::3], torch.zeros(-(-count // 3), dtype=torch.long))
    found["hints"] = hint_columns(image_hints(plain, data.pool, request))
    sample = sample_images("pool", known_labels, 4, request.image[:2])
    found["snapshot"] = sample_outputs(predict_sample(plain, data.pool, sample, classes=4, n_features=8))
    return found | evaluation(evaluate(replace(plain, view=View(), seed=0), present(data.test)))


def picked_pixels(fabric: Fabric, count: int) -> dict[str, object]:
    """Return the picks of every pixel query and of some queries of whole images."""
    data = streets(n_source=1, n_pool=count, n_test=count, height=16, width=32)
    with global_seed(0, "model"):
        bare = EvidentialModel(small_fcn(classes=len(data.classes), channels=3, width=8))
    model = fabric.setup(bare)
    maps = torch.full((count, 16, 32), UNLABELLED, dtype=torch.int8)
    maps[:, 3:5] = 1
    sizes, n_classes = label_grid_sizes(data.pool, "network"), len(data.classes)
    kwargs: dict[str, Any] = {"sizes": sizes, "known_labels_of": lambda image: maps[image]}
    predictor = Predictor(model=model, view=View(), batch_size=2, fabric=fabric, seed=5)
    found: dict[str, object] = {}
    for name in PIXEL_QUERIES:
        query, unit = QUERIES[name], "region" if name in REGION_QUERIES else "pixel"
        probes = build_probes(bare, query, count, classes=n_classes, n_features=16, per_pixel=True)
        picks = select_pixels(
            replace(predictor, extra_columns=probes.extra_columns),
            data.pool,
            query,
            unit=Unit(unit),  # type: ignore[arg-type]
            budget=[20 + i for i in range(count)],
            head=probes.head_weights() if query.needs_head else None,
            **kwargs,
        )
        # Units of one pixel each are equivalent to no units.
        found[name] = [
            [
                image,
                one.position.tolist(),
                one.unit_sizes.tolist() if unit == "region" and one.unit_sizes is not None else 0,
            ]
            for image, one in picks
        ]
    for name in IMAGE_QUERIES:
        samples = score_whole_images(predictor, data.pool, QUERIES[name], **kwargs)
        request = select_images(
            QUERIES[name], samples, torch.full((count,), UNLABELLED), 2, 1, make_generator(0, "query")
        )
        found[f"{name} of images"] = request.image.tolist()
    # No unit in the third and fourth image, which form a batch.
    images = torch.tensor([image for image in range(count) if image not in (2, 3)])
    positions, units = (
        torch.tensor([40, 41, 300]).repeat(len(images)),
        torch.tensor([2, 1]).repeat(len(images)),
    )
    request = Request(1, images.repeat_interleave(3), positions, units)
    found["hints"] = hint_columns(pixel_hints(predictor, data.pool, request, sizes))
    sample = sample_pixels(
        "pool", sizes, lambda image: maps[image] < 0, lambda image: maps[image], 9, 100, request
    )
    outputs = predict_sample(predictor, data.pool, sample, classes=n_classes, n_features=16, sizes=sizes)
    found["snapshot"] = sample_outputs(outputs)
    invalid_query = QuerySpec(broken, needs=())
    invalid = select_pixels(predictor, data.pool, invalid_query, unit=Unit(), budget=[2] * count, **kwargs)
    found["broken"] = refused(lambda: list(invalid))
    return found | evaluation(evaluate_segmentation(predictor, present(data.test), average_flipped=True))
