"""Score a pool on several processes and save the picks. Run by test_distributed.py."""

import json
import sys
from pathlib import Path
from typing import Any

import torch

from ducats.acquisition.queries import QUERIES
from ducats.data import toy
from ducats.data.domain import UNLABELLED
from ducats.evaluation.evaluate import evaluate
from ducats.evaluation.metrics import compute_metrics
from ducats.models import EvidentialModel, small_cnn
from ducats.objectives import ObjectiveSpec, softmax
from ducats.run.select import select_images
from ducats.settings import View
from ducats.training.auxiliary import build_auxiliaries
from ducats.training.distributed import make_fabric
from ducats.training.predictor import Predictor
from ducats.utils.randomness import global_seed, make_generator


def main(processes: int, count: int, out: Path) -> None:
    torch.set_num_threads(1)
    fabric = make_fabric("cpu", processes)
    fabric.launch()
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
    found["confusion"] = tally.confusion.tolist()
    found["metrics"] = {k: round(v, 12) for k, v in compute_metrics(tally).items()}
    if fabric.is_global_zero:
        out.write_text(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
