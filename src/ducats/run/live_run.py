"""Live labelling in a run folder: its rounds of questions, and the run that is trained with their labels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ducats.acquisition.queries import resolve_query
from ducats.annotation import AnnotationStore, QuestionRound, RoundRules
from ducats.annotation.oracles import question_files
from ducats.annotation.oracles.closed_rounds import ClosedRoundOracle
from ducats.config import Config
from ducats.data.domain import UNLABELLED, AdaptationData, Domain
from ducats.ledger import Request, save_request
from ducats.models import EvidentialModel
from ducats.models.classifier import Classifier
from ducats.models.freezing import embedding_network
from ducats.run import run
from ducats.run.context import embed_images, load_frozen_weights
from ducats.run.factory import build_run, load_data
from ducats.run.head_learner import HeadLearner
from ducats.run.live_audit import DEFAULT_EVERY, LiveAudit
from ducats.run.live_session import LiveSession, known_words
from ducats.runfolder import checksums
from ducats.runfolder.run_folder import RunFolder
from ducats.training.distributed import make_fabric
from ducats.utils.errors import UserError
from ducats.utils.findings import pluralise
from ducats.utils.progress import EventListener, activity, no_op

EPOCHS_PER_ROUND = 10  # training between the labels of two sessions
LIVE_SUBSAMPLE = 4000  # images that coverage selects from: the time of a question grows with their square


@dataclass(frozen=True)
class LiveRun:
    """A folder of images that is labelled live, with one round of questions per session.

    The annotation store has the labels of closed rounds and of the open one. `finish` closes the open round
    and trains a run with all labels in the same folder, so that every command for runs works with it.
    """

    config: Config
    run_folder: RunFolder  # locked
    data: AdaptationData  # with all classes that are known
    store: AnnotationStore
    audit: LiveAudit

    @classmethod
    def open(cls, config: Config, run_folder: RunFolder, *, audit_every: int = DEFAULT_EVERY) -> "LiveRun":
        """Load the data, lock the folder, and write the questions of a session unless a round is open.

        Args:
            audit_every: questions, of which one is drawn at random for the audit; 0: none is.
        """
        run_folder.lock()
        try:
            checksums.create(run_folder.path)
            store = AnnotationStore(run_folder.questions_path)
            rounds = store.round_numbers()
            newest = store.question_round(rounds[-1]).rules if rounds else None
            if run_folder.config_path.exists() if newest is None else not newest.live:
                raise UserError(
                    f"{run_folder.path} is the folder of another run; choose another folder with --out, or "
                    f"label the questions of that run with `ducats label {run_folder.path}`"
                )
            names = newest.classes if newest is not None else ()
            data = _with_classes(load_data(config), names, store.translate)
            audit = LiveAudit(run_folder, data.pool.keys, every=audit_every, seed=config.seed)
            live_run = cls(config, run_folder, data, store, audit)
            live_run._open_round()
        except BaseException:
            run_folder.release()
            raise
        return live_run

    # ---- a session

    def session(self) -> LiveSession:
        """Embed the images and return a session with an untrained head."""
        config = _with_subsample(_with_rounds(self.config, self.data, ()))
        components, plan = build_run(config, self.run_folder, self.data)
        model = components.model
        assert isinstance(model, EvidentialModel)
        load_frozen_weights(self.run_folder, model)
        fabric = make_fabric(config.engine.device, precision=config.engine.precision)
        components = embed_images(components, model, fabric, config.engine)
        network = embedding_network(model.unwrap())
        if not isinstance(network, Classifier):
            raise UserError(
                "live labelling trains a head on a frozen backbone, but this model has none; choose one with "
                "--backbone"
            )
        learner = HeadLearner(
            network,
            components.pool,
            components.source.classes,
            source=components.source if len(components.source) else None,
            objective=components.objective_spec,
            query=components.query_spec,
            views=components.views,
            plan=plan,
            evidence=config.model.evidence,
            device=config.engine.device,
        )
        return LiveSession(learner, self.store, audit=self.audit)

    def count_new_labels(self) -> int:
        """Return the number of labels in the open round."""
        open_round = self.store.open_round()
        statuses = {} if open_round is None else self.store.statuses(open_round.rules.round)
        return sum(one.word is not None for one in statuses.values())

    def _open_round(self) -> None:
        """Write a round of all images without a label, unless it is open already."""
        store, open_round = self.store, self.store.open_round()
        labelled = known_words(store)
        unlabelled = [i for i, key in enumerate(self.data.pool.keys) if key not in labelled]
        if open_round is not None:
            statuses = store.statuses(open_round.rules.round)
            asked = [question for question, one in statuses.items() if one.word is None]
            if asked == [self.data.pool.keys[image] for image in unlabelled]:
                return
            if len(asked) < len(statuses):  # the folder has other images now
                store.stop_round(open_round.rules.round)
        if not unlabelled:
            raise UserError(
                f"all {pluralise(len(self.data.pool), 'image')} are labelled; "
                "add images to the folder to label more"
            )
        rounds = store.round_numbers()
        is_open = bool(rounds) and store.closed_round(rounds[-1]) is None
        number = (rounds[-1] if rounds else 0) + (0 if is_open else 1)
        self._write_questions(number, unlabelled)
        store.forget_round(number)

    def _write_questions(self, number: int, images: Sequence[int]) -> None:
        pool, config = self.data.pool, self.config
        request = Request(number, torch.tensor(images), torch.zeros(len(images), dtype=torch.long))
        with activity("writing the questions"):
            digests = question_files.unit_digests(request, pool)
            questions = question_files.image_questions(request, pool, digests)
            folder = self.store.round_folder(number)
            question_files.write_deep_thumbnails(folder, request, questions, pool)
        query = resolve_query(config.query.name)
        rules = RoundRules(
            number,
            tuple(self.data.classes),
            query=config.query.name,
            query_summary=query.reason or query.summary,
            explained_by=tuple(query.explained_by),
            live=True,
        )
        QuestionRound.write(folder, rules, questions)

    # ---- the run

    def finish(self, on_event: EventListener = no_op) -> bool:
        """Close the round if it has labels, and train a run with all labels; return whether there are any.

        Call it again after a kill: what is done is not repeated.
        """
        store, open_round = self.store, self.store.open_round()
        if open_round is not None and self.count_new_labels():
            store.stop_round(open_round.rules.round)
        keys = self.data.pool.keys
        rounds = [n for n in store.round_numbers() if store.closed_round(n) is not None]
        if not rounds:
            return False
        data = _with_classes(self.data, store.question_round(rounds[-1]).rules.classes, store.translate)
        labelled = known_words(store)
        labels = torch.tensor([0 if key in labelled else UNLABELLED for key in keys])
        self.audit.release_incomplete(labels, rounds[-1])
        requests = [_labelled_request(store, number, keys, self.audit) for number in rounds]
        config = _with_rounds(self.config, data, [len(request) for request in requests])
        run_folder = self.run_folder
        run_folder.discard_outdated(config.identity(), keys, data.classes)
        for request in requests:
            if request.round not in run_folder.requested_rounds():
                save_request(run_folder, request)
        components, plan = build_run(config, run_folder, data)
        oracle = ClosedRoundOracle(store, keys, data.classes)
        run_folder.release()
        run(
            replace(components, oracle=oracle),
            replace(plan, budget=tuple(map(len, requests))),
            run_folder.path,
            fabric=make_fabric(config.engine.device, precision=config.engine.precision),
            identity=config.identity(),
            performance=config.engine,
            on_event=on_event,
        )
        return True


def _labelled_request(store: AnnotationStore, number: int, keys: Sequence[str], audit: LiveAudit) -> Request:
    """Return the images that a closed round labelled, in the order of the answers; without removed ones."""
    closed = store.closed_round(number)
    assert closed is not None
    answered = dict.fromkeys(one.question for one in store.answers() if one.round == number)
    index = {key: image for image, key in enumerate(keys)}
    images = [index[key] for key in answered if key in closed.words and key in index]
    marks = audit.marks(number, [keys[image] for image in images])
    image = torch.tensor(images, dtype=torch.long)
    return Request(number, image, torch.zeros_like(image), marks=marks)


def _with_classes(
    data: AdaptationData, names: Sequence[str], translate: Callable[[str], str]
) -> AdaptationData:
    """Return the data with the classes of earlier answers, and those of the data that are new.

    Args:
        translate: returns the current name of a class that was renamed or merged.
    """
    classes = tuple(dict.fromkeys([*names, *map(translate, data.classes)]))
    if classes == tuple(data.classes):
        return data
    number = torch.tensor([classes.index(translate(name)) for name in data.classes], dtype=torch.long)

    def convert(domain: Domain) -> Domain:
        assert isinstance(domain.labels, Tensor)
        return replace(domain, labels=number[domain.labels], classes=classes)

    truth, test = data.ground_truth, data.test
    assert truth is None, "labelled live"
    return replace(data, source=convert(data.source), test=None if test is None else convert(test))


def _with_subsample(config: Config) -> Config:
    """Return the config with a query that takes well below a second, unless its subsample is set."""
    if config.query.name != "coverage":
        return config
    params = {"subsample": LIVE_SUBSAMPLE, **config.query.params}
    return config.model_copy(update={"query": replace(config.query, params=params)})


def _with_rounds(config: Config, data: AdaptationData, budget: Sequence[int]) -> Config:
    """Return the config of a run with the classes of the data and one round per session.

    The first round precedes the training, unless there is a source to train on.
    """
    first = EPOCHS_PER_ROUND if len(data.source) else 0
    after_epochs = tuple(first + EPOCHS_PER_ROUND * session for session in range(len(budget)))
    last = after_epochs[-1] if after_epochs else 0
    params = {**config.data.params, "classes": list(data.classes)}
    return config.model_copy(
        update={
            "data": replace(config.data, params=params),
            "acquisition": replace(
                config.acquisition,
                budget=sum(budget),
                rounds=len(budget),
                after_epochs=after_epochs,
                growth=1.0,
                audit=0,  # the ledger says which labels are for the audit
                until=None,
                release_audit=False,
            ),
            "train": replace(config.train, epochs=last + config.train.epochs),
        }
    )
