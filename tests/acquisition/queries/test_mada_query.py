"""Query of MADA: by hand, against plain loops, and in a run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from query_pools import image_table, make_context, seeded
from torch import Tensor

from conftest import Runner, quick, quick_pixels
from ducats.acquisition.class_descriptors import image_descriptor
from ducats.acquisition.queries import QUERIES
from ducats.acquisition.queries.mada import mada
from ducats.acquisition.samples import QueryContext, SampleTable
from ducats.data.domain import UNLABELLED, VOID
from ducats.ledger import load_ledger
from ducats.run.factory import build_run
from ducats.runfolder.run_folder import RunFolder
from ducats.utils.errors import UserError


def make_samples(descriptors: Tensor) -> SampleTable:
    return image_table(len(descriptors), {"descriptor": descriptors})


def mada_picks(candidates: Tensor, source: Tensor | None, budget: int, **params: int) -> list[int]:
    given = None if source is None else make_samples(source)
    found: list[int] = mada(make_context(make_samples(candidates), budget, source=given), **params).tolist()
    return found


def test_farthest_from_the_nearest_anchor() -> None:
    source = torch.tensor([[0.0, 0.0], [0.0, 0.2], [10.0, 0.0], [10.0, 0.2]])  # anchors (0, 0.1), (10, 0.1)
    candidates = torch.tensor([[5.0, 0.1], [0.0, 4.1], [9.0, 0.1], [2.0, 0.1], [10.0, 6.1]])  # 5, 4, 1, 2, 6
    assert mada_picks(candidates, source, 3, n_anchors=2) == [4, 0, 1]
    # One anchor at the mean (5, 0.1): 0, 41, 16, 9, 61.
    assert mada_picks(candidates, source, 3, n_anchors=1) == [4, 1, 2]


def test_fewer_images_than_anchors_and_ties() -> None:
    source = torch.tensor([[0.0, 0.0], [3.0, 0.0]])
    assert mada_picks(torch.tensor([[3.0, 0.0], [1.0, 0.0]]), source, 1) == [1]
    assert mada_picks(torch.ones(4, 2), torch.zeros(3, 2), 2) == [0, 1]  # the lower location


def test_descriptor_counts_open_or_correct_pixels() -> None:
    generator = torch.Generator().manual_seed(0)
    z, features = torch.randn(3, 14, 18, generator=generator), torch.randn(4, 7, 9, generator=generator)
    target = torch.full((14, 18), UNLABELLED, dtype=torch.int8)
    target[:5] = VOID
    labels = torch.randint(0, 3, (14, 18), generator=generator).to(torch.int8)
    # Row i of seven maps to i * 13 / 6 of fourteen, column j of nine to j * 17 / 8 of eighteen.
    at = [int(i * 13 / 6 + 0.5) for i in range(7)], [int(j * 17 / 8 + 0.5) for j in range(9)]
    for given, truth in ((target, None), (target, labels), (torch.full_like(target, VOID), None)):
        expected = []
        for c in range(3):
            some = []
            for i, y in enumerate(at[0]):
                for j, x in enumerate(at[1]):
                    open_ = given[y, x] == UNLABELLED or not bool((given == UNLABELLED).any())
                    counts = open_ if truth is None else truth[y, x] == c
                    if z[:, y, x].argmax() == c and counts:
                        some.append(features[:, i, j])
            expected.append(torch.stack(some).mean(0) if len(some) >= 10 else torch.zeros(4))
        torch.testing.assert_close(image_descriptor(z, features, given, truth)[0], torch.cat(expected))


def test_requires_whole_images(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"task\.unit=image"):
        mada_picks(torch.ones(4, 2), None, 2)
    with pytest.raises(UserError, match=r"task\.unit=image"):
        build_run(quick_pixels("query={name: mada}", method="entropy"), RunFolder(tmp_path))
    with pytest.raises(UserError, match=r"task\.unit=image"):
        build_run(quick("query={name: mada}", method="entropy"), RunFolder(tmp_path))


def test_run_labels_whole_images_and_passes_the_source(
    run_pixels: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts: list[QueryContext] = []

    def recording_query(context: QueryContext, **params: Any) -> Tensor:
        contexts.append(context)
        return mada(context, **params)

    monkeypatch.setitem(QUERIES, "mada", replace(QUERIES["mada"], fn=recording_query))
    run_folder = run_pixels(
        "acquisition={budget: 2, rounds: null, after_epochs: [1]}", "query={name: mada}", method="mada"
    )
    source, candidates = contexts[-1].source, contexts[-1].candidates
    assert source is not None
    assert (len(source), len(candidates)) == (6, 5)
    wide = source.column("descriptor")
    assert wide.shape[1] == candidates.column("descriptor").shape[1] == 10 * 16  # classes, features
    assert (wide != 0).any()
    counts = load_ledger(run_folder).labels_per_image(1)
    picks = mada(replace(contexts[-1], generator=seeded(1)))  # six images: all are anchors
    assert (counts > 0).nonzero().flatten().tolist() == sorted(candidates.image[picks].tolist())
    assert counts.max() > 300  # of 512 pixels, minus void ones


@pytest.mark.parametrize("query", ["{name: coreset, params: {centres: source_and_labelled}}", "{name: sdm}"])
def test_queries_of_whole_images_read_source_and_head(run_pixels: Runner, query: str) -> None:
    run_folder = run_pixels("task.unit=image", "acquisition.budget=2", f"query={query}", method="entropy")
    assert (load_ledger(run_folder).labels_per_image(2) > 0).sum() == 2


@pytest.mark.parametrize("method", ["aada-seg", "eada-seg"])
def test_image_methods_on_streets(run_pixels: Runner, method: str) -> None:
    budget = ["acquisition.budget=2"] if method == "aada-seg" else []
    run_folder = run_pixels(*budget, method=method)
    assert (load_ledger(run_folder).labels_per_image(2) > 0).sum() == (2 if method == "aada-seg" else 5)
