"""Audit of live labelling: drawn at random, not learnt, and judged at certain sizes only."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from test_head_learner import POOL, learner
from test_live_run import WAIT_SECONDS, open_live, project  # noqa: F401
from test_live_session import answer, next_key, open_store, truth

from commands import ducats
from ducats.data.domain import UNLABELLED
from ducats.ledger import load_ledger
from ducats.run import live_audit
from ducats.run.live_audit import LiveAudit
from ducats.run.live_run import LiveRun
from ducats.run.live_session import LiveSession
from ducats.runfolder.run_folder import RunFolder
from present import present

KEYS = [f"{number:02d}" for number in range(40)]


@pytest.fixture(autouse=True)
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin with the audit and its looks after a few answers."""
    monkeypatch.setattr(live_audit, "FIRST_QUESTION", 4)
    monkeypatch.setattr(live_audit, "FIRST_LOOK", 4)


def open_session(folder: Path) -> LiveSession:
    audit = LiveAudit(RunFolder(folder), POOL.keys, every=2, seed=1)
    return LiveSession(learner(None), open_store(folder), audit=audit, fit_steps=40, refit_steps=10)


def audited(live: LiveSession) -> set[str]:
    """Keys of the answered images of the audit."""
    assert live.audit is not None
    mask = live.audit.mask() & (live._labels != UNLABELLED)
    return {POOL.keys[image] for image in mask.nonzero().squeeze(1).tolist()}


def answer_until_audited(live: LiveSession, count: int) -> None:
    while len(audited(live)) < count:
        key = next_key(live)
        answer(live, (key, truth(key)))


def test_the_audit_is_a_uniform_sample_of_what_was_not_learnt(tmp_path: Path) -> None:
    """The query selects images 0 to 9 in turn, also if they are in the audit."""
    inclusions = Counter[int]()
    for seed in range(200):
        audit = LiveAudit(RunFolder(tmp_path / str(seed)), KEYS, every=2, seed=seed)
        labels, selected = torch.full((40,), UNLABELLED), 0
        for _ in range(16):
            audit.draw(int((labels >= 0).sum()), labels)
            if waiting := audit.unanswered(labels):
                labels[waiting[0]] = 0
            elif selected < 10:
                audit.release([selected] if audit.mask()[selected] else [], 1)
                labels[selected], selected = 0, selected + 1
        mask = audit.mask()
        assert not mask[:selected].any()
        inclusions.update(mask[10:].nonzero().squeeze(1).tolist())
    frequencies = np.array([inclusions[image] for image in range(30)])
    expected = frequencies.mean()
    assert expected > 10
    assert np.abs(frequencies - expected).max() < 4.5 * np.sqrt(expected)


def test_audit_labels_are_not_learnt_and_show_the_accuracy(tmp_path: Path) -> None:
    with open_session(tmp_path) as live:
        assert live.summary().accuracy == ""
        answer_until_audited(live, 4)
        keys = audited(live)
        learnt = {POOL.keys[image] for image in (live.learner.labels >= 0).nonzero().squeeze(1).tolist()}
        assert not keys & learnt
        assert live.summary().labels == len(keys | learnt)
        assert "from 4 audit labels" in live.summary().accuracy
        figures = live.audit and live.audit.latest
        answer_until_audited(live, 5)  # before the next look
        assert (live.audit and live.audit.latest) == figures
    again = LiveAudit(RunFolder(tmp_path), POOL.keys, every=2, seed=1)
    assert (again.latest, again.mask().tolist()) == (figures, live.audit and live.audit.mask().tolist())


def test_what_the_query_selects_leaves_the_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_session(tmp_path) as live:
        answer_until_audited(live, 2)
        key = min(audited(live))
        query = live.learner.query

        def select(count: int) -> torch.Tensor:
            picks = query(count)
            image = torch.tensor([int(key)])
            return picks if live.learner.labels[int(key)] != UNLABELLED else torch.cat([image, picks])

        monkeypatch.setattr(live.learner, "query", select)
        other = next_key(live)
        answer(live, (other, truth(other)))
        assert key not in audited(live)
        assert int(live.learner.labels[int(key)]) != UNLABELLED
        assert next_key(live) != key


def test_images_that_several_answers_pass_over_leave_the_audit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_session(tmp_path) as live:
        answer_until_audited(live, 2)
        in_audit, later = sorted(int(key) for key in audited(live))
        unlabelled = (live._labels == UNLABELLED).nonzero().squeeze(1).tolist()
        first, second = [image for image in unlabelled if not present(live.audit).mask()[image]][:2]
        picks = torch.tensor([first, in_audit, second, later])
        monkeypatch.setattr(live.learner, "query", lambda _: picks[live.learner.labels[picks] == UNLABELLED])
        live._select(live.store.answers())
        monkeypatch.undo()
        answer(live, *((POOL.keys[i], truth(POOL.keys[i])) for i in (first, second)))
        left = {int(key) for key in audited(live)}
        assert in_audit not in left
        assert int(live.learner.labels[in_audit]) != UNLABELLED


def test_images_like_those_confirmed_at_once_leave_the_audit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_session(tmp_path) as live:
        answer_until_audited(live, 8)
        hints = live._state.hints
        assert hints is not None
        assert live.audit is not None
        mask = live.audit.mask()
        query = live.learner.query
        monkeypatch.setattr(live.learner, "query", lambda count: (picks := query(count))[~mask[picks]])
        right = [key for key in audited(live) if int(hints.guess[int(key)]) == int(live._labels[int(key)])]
        sure = sorted(right)
        guess = int(hints.guess[int(sure[0])])
        group = [
            key
            for key in POOL.keys
            if int(hints.guess[int(key)]) == guess
            and live._labels[int(key)] == UNLABELLED
            and not mask[int(key)]
            and truth(key) == live.learner.classes[guess]
        ]
        least = min(hints.probability[int(key)] for key in group)
        answer(live, *((key, truth(key)) for key in group), act="many")
        for key in sure:
            is_alike = int(hints.guess[int(key)]) == guess and hints.probability[int(key)] >= least
            assert (key in audited(live)) != is_alike
        assert set(sure) - audited(live)  # some were released


def test_with_new_images_in_the_folder_the_audit_waits_for_them(tmp_path: Path) -> None:
    run_folder, labels = RunFolder(tmp_path), torch.full((40,), UNLABELLED)
    audit = LiveAudit(run_folder, KEYS, every=2, seed=0)
    audit.draw(20, labels)
    labels[audit.mask()] = 0
    predicted, probability = np.zeros(40, np.int64), np.full(40, 0.9)
    audit.look(labels, predicted, probability)
    assert audit.latest is not None
    more = LiveAudit(run_folder, [*KEYS, *(f"{key}-new" for key in KEYS)], every=2, seed=0)
    n_drawn, labels = int(more.mask().sum()), torch.cat([labels, torch.full((40,), UNLABELLED)])
    more.look(labels, np.zeros(80, np.int64), np.full(80, 0.9))
    assert more.latest == audit.latest
    more.release_incomplete(labels, 2)
    assert 0 < int(more.mask().sum()) < n_drawn
    assert len(more.marks(2, []).released_image) == n_drawn - int(more.mask().sum())


def answer_first(live_run: LiveRun, session: LiveSession) -> None:
    question_round = live_run.store.open_round()
    assert question_round is not None
    key = question_round.questions[session.first_questions()[0]].key
    one = {"question": key, "word": key.split("/")[0], "annotator": "Ada", "external_id": key}
    live_run.store.receive([one], channel="page")
    session.notify()
    session.wait_until_current(WAIT_SECONDS)


def test_runs_of_sessions_have_an_audit(project: Path, tmp_path: Path) -> None:  # noqa: F811
    out = tmp_path / "live"
    live_run = open_live(project, out, audit_every=2)
    with live_run.session() as session:
        while not live_run.audit.mask().any() or live_run.audit.unanswered(session._labels):
            answer_first(live_run, session)
    assert live_run.finish()
    asked = load_ledger(live_run.run_folder).audit_labels() != UNLABELLED
    assert asked.any()
    assert torch.equal(asked, live_run.audit.mask())
    assert (load_ledger(live_run.run_folder).targets()[asked] == UNLABELLED).all()
    assert live_run.run_folder.read_records("audit")[-1]["labels"] == int(asked.sum())
    live_run = open_live(project, out, audit_every=2)
    with live_run.session() as session:
        answer_first(live_run, session)
        live_run.audit.release(asked.nonzero().squeeze(1).tolist(), 2)  # as if the query had selected them
        answer_first(live_run, session)
    assert live_run.finish()
    ledger = load_ledger(live_run.run_folder)
    assert torch.equal(ledger.audit_labels(1) != UNLABELLED, asked)
    assert (ledger.targets(2)[asked] >= 0).all()
    assert ducats("report", out, "--out", tmp_path / "report.html") == 0
