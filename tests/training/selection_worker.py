"""Select images and pixels, and evaluate, on any number of processes. Used by test_distributed.py."""

from collections.abc import Callable
from dataclasses import replace
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
from ducats.models import EvidentialModel, small_cnn, small_fcn
from ducats.objectives import ObjectiveSpec, softmax
from ducats.run.pixel_selection import score_whole_images, select_pixels
from ducats.run.select import select_images
from ducats.settings import Unit, View
from ducats.training.auxiliary import build_auxiliaries
from ducats.training.predictor import Predictor
from ducats.training.task import label_grid_sizes
from ducats.utils.errors import UserError
from ducats.utils.randomness import global_seed, make_generator

# Queries that select pixels within an image; those that need the source, descriptors or a committee select
# images.
PIXEL_QUERIES = [
    name
    for name, query in QUERIES.items()
    if not query.source_needs and not any(need in (*IMAGE_COLUMNS, "committee") for need in query.needs)
]
REGION_QUERIES = ("ripu", "margin", "least_confident", "las")  # run with regions; the others with pixels
IMAGE_QUERIES = ("random", "duc", "spread", "ripu")


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


def picked_images(fabric: Fabric, count: int) -> dict[str, object]:
    """Return the picks of every image query."""
    data = toy(n_pool=count, n_test=37)
    with global_seed(0, "model"):
        bare = EvidentialModel(small_cnn(classes=4, channels=3, width=4, features=8))
    model = fabric.setup(bare)
    known_labels = torch.full((count,), UNLABELLED)
    known_labels[::10] = 0
    found: dict[str, object] = {}
    for name, query in QUERIES.items():
        if query.per_pixel:
            continue
        auxiliaries = build_auxiliaries(
            bare,
            ObjectiveSpec(softmax),
            query,
            classes=4,
            n_features=8,
            pool_size=count,
            per_pixel=False,
            seed=0,
        )
        predictor = Predictor(
            model=model,
            view=View(crop="random", pad=1),  # random augmentation, the harder case
            batch_size=8,
            fabric=fabric,
            seed=5,
            extra_columns=auxiliaries.extra_columns,
        )
        samples = predictor.score_images(data.pool, query.needs)
        assert len(samples) == count
        more: dict[str, Any] = {
            "source": predictor.score_images(data.source.images, query.source_needs)
            if query.source_needs
            else None,
            "head": auxiliaries.head_weights() if query.needs_head else None,
        }
        budget = min(9, count - len(known_labels[::10]))
        picked = select_images(query, samples, known_labels, budget, 1, make_generator(0, "query"), **more)
        found[name] = picked.image.tolist()
    assert data.test is not None
    tally = evaluate(Predictor(model=model, view=View(), batch_size=8, fabric=fabric), data.test)
    return found | evaluation(tally)


def picked_pixels(fabric: Fabric, count: int) -> dict[str, object]:
    """Return the picks of every pixel query and of some queries of whole images."""
    data = streets(n_source=1, n_pool=count, n_test=count, height=16, width=32)
    with global_seed(0, "model"):
        bare = EvidentialModel(small_fcn(classes=len(data.classes), channels=3, width=8))
    model = fabric.setup(bare)
    features = bare(torch.zeros(1, 3, 16, 32)).features
    assert features is not None
    maps = torch.full((count, 16, 32), UNLABELLED, dtype=torch.int8)
    maps[:, 3:5] = 1
    kwargs: dict[str, Any] = {
        "sizes": label_grid_sizes(data.pool, "network"),
        "known_labels_of": lambda image: maps[image],
    }
    predictor = Predictor(model=model, view=View(), batch_size=2, fabric=fabric, seed=5)
    found: dict[str, object] = {}
    for name in PIXEL_QUERIES:
        query, unit = QUERIES[name], "region" if name in REGION_QUERIES else "pixel"
        auxiliaries = build_auxiliaries(
            bare,
            ObjectiveSpec(softmax),
            query,
            classes=len(data.classes),
            n_features=features.shape[1],
            pool_size=count,
            per_pixel=True,
            seed=0,
        )
        picks = select_pixels(
            replace(predictor, extra_columns=auxiliaries.extra_columns),
            data.pool,
            query,
            unit=Unit(unit),  # type: ignore[arg-type]
            budget=[20 + i for i in range(count)],
            head=auxiliaries.head_weights() if query.needs_head else None,
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
    found["broken"] = refused(
        lambda: list(
            select_pixels(
                predictor,
                data.pool,
                QuerySpec(broken, needs=()),
                unit=Unit(),
                budget=[2] * count,
                **kwargs,
            )
        )
    )
    assert data.test is not None
    tally = evaluate_segmentation(predictor, data.test, average_flipped=True)
    return found | evaluation(tally)
