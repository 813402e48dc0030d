"""Parse a Label Studio annotation into answers to the questions of its task."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ducats.annotation import Question, RoundRules
from ducats.labelling.studio import layout, rle
from ducats.labelling.studio.tasks import mask_of, stretched

HALF = 0.5 + 1e-6  # pixels, with tolerance for rounded percentages


class Said(NamedTuple):
    """Answers in one annotation."""

    words: dict[str, str]  # by question id
    stray: int  # points outside the queried pixels
    spoilt: int  # invalid regions


def read(result: Any, questions: Sequence[Question], terms: RoundRules) -> Said:
    """Return the answers that an annotation gives to the questions of its task.

    Args:
        result: regions of the annotation, as sent by the server.
        questions: all questions of the task.
        terms: rules of the round.
    """
    kind = layout.VALUES[layout.tool(terms)]
    meanings = layout.words(terms.classes)
    labelled: list[tuple[str, Mapping[str, Any]]] = []
    spoilt = 0
    for region in result if isinstance(result, list) else []:
        try:
            if region["type"] != kind:
                continue
            texts = region["value"].get(kind) or []
            if texts and meanings.get(texts[0], texts[0]) is not None:
                labelled.append((str(meanings.get(texts[0], texts[0])), region))
        except (TypeError, KeyError, AttributeError):
            spoilt += 1
    if kind == "choices":
        return Said({questions[0].id: labelled[-1][0]} if labelled else {}, 0, spoilt)
    said = _points(labelled, questions) if kind == "keypointlabels" else _areas(labelled, questions)
    return Said(said.words, said.stray, said.spoilt + spoilt)


def _points(labelled: Sequence[tuple[str, Mapping[str, Any]]], questions: Sequence[Question]) -> Said:
    places = [question.area for question in questions]
    asked = np.array([(place.y, place.x) for place in places if place is not None], dtype=np.float64)
    words: dict[str, str] = {}
    stray = spoilt = 0
    for word, region in labelled:
        place = places[0]
        try:
            assert place is not None
            x = float(region["value"]["x"]) / 100 * place.width - 0.5
            y = float(region["value"]["y"]) / 100 * place.height - 0.5
        except (TypeError, KeyError, ValueError, OverflowError):
            spoilt += 1
            continue
        away = np.abs(asked - (y, x)).max(axis=1)
        nearest = int(away.argmin())
        if away[nearest] <= HALF:
            words[questions[nearest].id] = word  # the last of several points on one pixel
        else:
            stray += 1
    return Said(words, stray, spoilt)


def _areas(labelled: Sequence[tuple[str, Mapping[str, Any]]], questions: Sequence[Question]) -> Said:
    """Return for each area the word that covers most of it; the last drawn wins ties."""
    place = questions[0].area
    assert place is not None
    covers: dict[str, NDArray[np.bool_]] = {}
    spoilt = 0
    for word, region in labelled:
        try:
            drawn = rle.decode(
                region["value"]["rle"], int(region["original_height"]), int(region["original_width"])
            )
        except (TypeError, KeyError, ValueError, OverflowError):
            spoilt += 1
            continue
        drawn = stretched(drawn, place.height, place.width)
        earlier = covers.pop(word, None)  # reinsert: the newest word comes last
        covers[word] = drawn if earlier is None else drawn | earlier
    words: dict[str, str] = {}
    for question in questions:
        assert question.area is not None
        area = mask_of(question.area)
        counts = {word: int(drawn[area].sum()) for word, drawn in covers.items()}
        most = max(counts.values(), default=0)
        if most > 0:
            words[question.id] = [word for word, count in counts.items() if count == most][-1]
    return Said(words, 0, spoilt)
