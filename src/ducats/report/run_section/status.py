"""Progress of a run and its provenance: settings, digests, versions."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from ducats.report.figures.run_settings import strip_folders
from ducats.report.provenance import group_environments
from ducats.report.run_reader import Run


@dataclass(frozen=True)
class RunProvenance:
    """Provenance of a run: settings as YAML, other facts and versions as (name, value) pairs."""

    settings: str
    facts: tuple[tuple[str, str], ...]
    versions: tuple[tuple[str, str], ...]


def progress_message(run: Run) -> str:
    """Return the progress of an unfinished run and how to resume it; empty if it is finished."""
    if run.finished:
        return ""
    unanswered_round = _first_unanswered_round(run)
    if unanswered_round:
        return (
            f"This run is waiting for labels: round {unanswered_round} is not answered yet. Answer it with "
            "`ducats label`, then run the same `ducats run` command again."
        )
    done = max((int(record["epoch"]) for record in run.epochs), default=0)
    train = run.config.get("train")
    epochs = train.get("epochs") if isinstance(train, Mapping) else None
    progress = f"{done} of {epochs} epochs" if epochs else f"{done} epochs"
    return (
        f"This run is not finished: {progress} are done. Run the same `ducats run` command again to resume."
    )


def _first_unanswered_round(run: Run) -> int:
    """Return the first round that annotators have not answered; 0 if there is none."""
    if not run.files.questions_path.is_dir():
        return 0
    return min(set(run.files.requested_rounds()) - set(run.files.labelled_rounds()), default=0)


def read_provenance(run: Run) -> RunProvenance:
    """Return settings, seed, digests of settings and data, versions and machine."""
    plain = json.loads(json.dumps(run.config, default=str))
    text = json.dumps(plain, sort_keys=True)
    facts = [
        ("method", run.method),
        ("seed", str(run.seed)),
        ("settings digest", hashlib.blake2b(text.encode(), digest_size=4).hexdigest()),
    ]
    facts += [
        (domain, _describe_data(run.data[domain]))
        for domain in ("source", "pool", "test")
        if isinstance(run.data.get(domain), Mapping)
    ]
    if run.classes:
        facts.append(("classes", str(len(run.classes))))
    settings = yaml.safe_dump(strip_folders(plain), sort_keys=False, allow_unicode=True, width=100)
    return RunProvenance(settings, tuple(facts), group_environments([run])[0].facts)


def _describe_data(data_record: Mapping[str, Any]) -> str:
    images = data_record.get("images")
    count_text = f"{images:,} images" if isinstance(images, int) else "images"
    return f"{count_text}, digest {data_record.get('digest', 'not recorded')}"
