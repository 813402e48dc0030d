"""Parts of a comparison: ranks by hand, sentences and missing runs."""

import json
import math
from pathlib import Path

import pytest
from page_parser import ParsedPage, present
from synthetic_sweeps import write_page_without_sections, write_sweep, write_sweep_run

from ducats.report.comparison.missing import find_missing_runs
from ducats.report.comparison.ranks import (
    nemenyi_critical_difference,
    rank_methods,
    rank_scores,
    ranking_note,
    result_sentences,
)
from ducats.report.method_tables.build import make_tables
from ducats.report.run_reader import find_runs, scan_runs
from synthetic_records import change_records, without


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sweep(tmp_path_factory.mktemp("sweep"))


def test_ranks_by_hand(runs: Path) -> None:
    (table,) = make_tables([runs])
    found = present(rank_methods(table))
    # Ar-Cl, seed 0: clue and entropy share the ranks 2 and 3. Pr-Rw, seed 0: random is before entropy.
    by_hand: dict[str, list[float]] = {"duc": [1] * 6, "clue": [2.5, 2, 2, 2, 2, 2]}
    by_hand["entropy"] = [2.5, 3, 3, 3, 4, 3]
    by_hand["random"] = [4, 4, 4, 4, 3, 4]
    assert [rank.method for rank in found.ranks] == list(by_hand)
    for rank in found.ranks:
        assert rank.mean == pytest.approx(sum(by_hand[rank.method]) / 6)
        assert rank.best_and_worst == (min(by_hand[rank.method]), max(by_hand[rank.method]))
    assert (found.n_comparisons, found.left_out) == (6, ())
    assert found.critical_difference is None  # six comparisons are too few for the test
    assert "needs at least 10 comparisons" in ranking_note(found)


def test_ties_share_a_rank() -> None:
    assert rank_scores({"a": 0.5, "b": 0.5, "c": 0.5}) == {"a": 2.0, "b": 2.0, "c": 2.0}
    assert rank_scores({"a": 0.1, "b": 0.3, "c": 0.2}) == {"a": 3.0, "b": 1.0, "c": 2.0}


@pytest.mark.parametrize(("methods", "q"), [(2, 1.960), (3, 2.343), (5, 2.728), (10, 3.164)])
def test_the_critical_gap_equals_published_tables(methods: int, q: float) -> None:
    """Compare with two-tailed values at 5 % from statistics textbooks."""
    expected = q * math.sqrt(methods * (methods + 1) / (6 * 12))
    assert nemenyi_critical_difference(methods, 12) == pytest.approx(expected, rel=1e-3)


def test_ranks_with_enough_comparisons_state_significance(tmp_path: Path) -> None:
    # duc is always first; margin and entropy alternate: mean ranks 1, 2.5 and 2.5 over 12 comparisons.
    for seed in range(12):
        turn = 0.01 if seed % 2 else -0.01
        for method, value in (("duc", 0.8), ("margin", 0.7 + turn), ("entropy", 0.7 - turn)):
            write_sweep_run(tmp_path, method, "", seed, value, data="digits")
    write_sweep_run(tmp_path, "coreset", "", 0, 0.9, data="digits")
    (table,) = make_tables([tmp_path])
    found = present(rank_methods(table))
    assert {rank.method: rank.mean for rank in found.ranks} == {"duc": 1, "margin": 2.5, "entropy": 2.5}
    assert found.left_out == ("coreset",)
    assert found.critical_difference == pytest.approx(2.343 * math.sqrt(3 * 4 / (6 * 12)), rel=1e-3)
    assert "all other methods differ significantly from duc" in ranking_note(found)
    assert "Left out because of fewer runs: coreset." in ranking_note(found)


def test_two_methods_are_not_ranked(tmp_path: Path) -> None:
    for method in ("duc", "random"):
        for seed in (0, 1):
            write_sweep_run(tmp_path, method, "", seed, 0.7, data="digits")
    (table,) = make_tables([tmp_path])
    assert rank_methods(table) is None
    assert ranking_note(None).startswith("No ranking: it needs at least three methods")


def test_sentences_name_the_best_method_and_our_rank(runs: Path, tmp_path: Path) -> None:
    (table,) = make_tables([runs])
    sentences = result_sentences(table)
    assert sentences[0] == (
        "duc has the highest average accuracy over 3 tasks: 72.3% ± 0.5, 5.7 points above clue (p = 0.002, "
        "6 pairs), 12.3 points above random (p < 0.001, 6 pairs)."
    )
    assert sentences[1:] == ["duc is first on 3 of 3 tasks."]
    for seed, (ours, other) in enumerate(((0.70, 0.72), (0.71, 0.70), (0.69, 0.70))):
        write_sweep_run(tmp_path, "duc", "", seed, ours, data="digits")
        write_sweep_run(tmp_path, "entropy", "", seed, other, data="digits")
    (table,) = make_tables([tmp_path])
    first, last = result_sentences(table)
    assert first.startswith(
        "entropy has the highest mean accuracy: 70.7% ± 1.2, 0.7 points above duc (p = 0."
    )
    assert "not significant" in first
    assert last.startswith("duc ranks 2 of 2, 0.7 points below entropy (p = 0.")


@pytest.fixture
def partial_sweep(tmp_path: Path) -> Path:
    """A sweep with finished runs, an unfinished one, an unreadable one, and one that failed at once."""
    root = tmp_path / "sweep"
    for seed in (0, 1):
        write_sweep_run(root, "duc", "Ar-Cl", seed, 0.6)
        write_sweep_run(root, "duc", "Cl-Ar", seed, 0.7)
    write_sweep_run(root, "random", "Ar-Cl", 0, 0.5, finished=False)
    broken = write_sweep_run(root, "random", "Cl-Ar", 0, 0.5)
    (broken / "metrics.jsonl").write_text('{"kind": "stage"}\n')
    (root / "configs").mkdir()
    (root / "logs").mkdir()
    config = {"method": "clue", "seed": 3, "data": {"name": "office_home", "params": {"task": "Ar-Cl"}}}
    (root / "configs" / "office_home-clue-1234.yaml").write_text(json.dumps(config))
    (root / "logs" / "office_home-clue-1234.txt").write_text(
        "begin\nducats: /data/Art does not exist: see https://example.org/data or --root\n\n"
    )
    (root / "logs" / "office_home-Ar-Cl-random-0.txt").write_text("epoch 9 of 20\n")
    return root


def test_runs_that_are_not_in_the_tables_are_listed(partial_sweep: Path) -> None:
    found = scan_runs([partial_sweep])
    listed = {run.run_name: run for run in find_missing_runs(found.runs, found.broken)}
    assert set(listed) == {
        "office_home-Ar-Cl-random-0",
        "office_home-Cl-Ar-random-0",
        "office_home-clue-1234",
    }
    failed = listed["office_home-clue-1234"]
    assert (failed.method, failed.task, failed.seed) == ("clue", "Ar-Cl", "3")
    assert failed.reason == "Started, but wrote nothing."
    # A page reveals no local paths and has no external URLs.
    assert failed.last_log_line == "ducats: Art does not exist: see … or --root"
    unfinished = listed["office_home-Ar-Cl-random-0"]
    assert "not finished" in unfinished.reason
    assert unfinished.last_log_line == "epoch 9 of 20"
    broken = listed["office_home-Cl-Ar-random-0"]
    assert "has no number for 'stage'" in broken.reason
    assert (broken.method, broken.task, broken.seed) == ("random", "Cl-Ar", "0")


def test_the_page_lists_missing_runs(partial_sweep: Path) -> None:
    found = scan_runs([partial_sweep])
    text = write_page_without_sections(
        found.runs, partial_sweep / "page.html", broken=found.broken
    ).read_text()
    tables = ParsedPage(text).tables
    assert [line[0] for line in tables["missing"]] == [
        "Run",
        "office_home-Ar-Cl-random-0",
        "office_home-Cl-Ar-random-0",
        "office_home-clue-1234",
    ]
    assert tables["missing"][3][1:4] == ["clue", "Ar→Cl", "3"]
    assert [line[0] for line in tables["by-task"]] == ["Method", "duc", "published†"]
    assert "https://" not in text
    assert "/home/somebody" not in text


def test_a_finished_run_without_a_test_set_is_listed(tmp_path: Path) -> None:
    folder = write_sweep_run(tmp_path, "duc", "", 0, 0.8, data="digits")
    change_records(folder, without("accuracy"))
    (missing_run,) = find_missing_runs(find_runs([tmp_path]), [])
    assert missing_run.reason == "Finished, but without a result on a test set."
