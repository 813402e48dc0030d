"""Score a pool on some processes and write down what is picked. Run by test_processes.py."""

import json
import sys
from pathlib import Path

import torch

from ducats.data import toy
from ducats.data.views import View
from ducats.domain import UNLABELLED
from ducats.engine.evaluate import evaluate
from ducats.engine.processes import make_fabric
from ducats.engine.score import choose, table
from ducats.metrics import compute
from ducats.models import Evidential, small_cnn
from ducats.queries import QUERIES
from ducats.randomness import fork, global_seed


def main(processes: int, count: int, out: Path) -> None:
    torch.set_num_threads(1)
    fabric = make_fabric("cpu", processes)
    fabric.launch()
    shift = toy(pool=count, test=37)
    with global_seed(0, "model"):
        model = fabric.setup(Evidential(small_cnn(classes=4, channels=3, width=4, features=8)))
    targets = torch.full((count,), UNLABELLED)
    targets[::10] = 0
    found: dict[str, object] = {}
    for name, strategy in QUERIES.items():
        if strategy.of_pixels:
            continue
        view = View(crop="random", pad=1)  # with luck in it: the harder case
        rows = table(model, shift.pool, strategy.needs, view=view, batch_size=8, seed=5, fabric=fabric)
        assert len(rows) == count
        picked = choose(strategy, rows, targets, min(9, count - len(targets[::10])), 1, fork(0, "query"))
        found[name] = picked.image.tolist()
    assert shift.test is not None
    tally = evaluate(model, shift.test, view=View(), batch_size=8, fabric=fabric)
    found["confusion"] = tally.confusion.tolist()
    found["metrics"] = {k: round(v, 12) for k, v in compute(tally).items()}
    if fabric.is_global_zero:
        out.write_text(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
