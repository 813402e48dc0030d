"""Parse a Label Studio annotation into answers to the questions of its task."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ducats.annotation import Question, RoundRules
from ducats.annotation.label_studio import label_config, rle
from ducats.annotation.label_studio.tasks import resize_mask
from ducats.annotation.question import area_mask

HALF_PIXEL = 0.5 + 1e-6  # pixels, with tolerance for rounded percentages


class ParsedAnnotation(NamedTuple):
    """Answers in one annotation."""

    words: dict[str, str]  # by question id
    stray_points: int  # points outside the queried pixels
    invalid_regions: int


def parse_annotation(result: Any, questions: Sequence[Question], rules: RoundRules) -> ParsedAnnotation:
    """Return the answers that the regions of an annotation give to all questions of its task."""
    result_type = label_config.RESULT_TYPE_BY_TAG[label_config.control_tag(rules)]
    words_by_text = label_config.words_by_button_text(rules.classes)
    labelled: list[tuple[str, Mapping[str, Any]]] = []
    n_invalid = 0
    for region in result if isinstance(result, list) else []:
        try:
            if region["type"] != result_type:
                continue
            texts = region["value"].get(result_type) or []
            if texts and words_by_text.get(texts[0], texts[0]) is not None:
                labelled.append((str(words_by_text.get(texts[0], texts[0])), region))
        except (TypeError, KeyError, AttributeError):
            n_invalid += 1
    if result_type == "choices":
        return ParsedAnnotation({questions[0].id: labelled[-1][0]} if labelled else {}, 0, n_invalid)
    parsed = (
        _parse_points(labelled, questions)
        if result_type == "keypointlabels"
        else _parse_brushes(labelled, questions)
    )
    return ParsedAnnotation(parsed.words, parsed.stray_points, parsed.invalid_regions + n_invalid)


def _parse_points(
    labelled: Sequence[tuple[str, Mapping[str, Any]]], questions: Sequence[Question]
) -> ParsedAnnotation:
    areas = [question.area for question in questions]
    centres = np.array([(area.y, area.x) for area in areas if area is not None], dtype=np.float64)
    words: dict[str, str] = {}
    n_stray = n_invalid = 0
    for word, region in labelled:
        grid = areas[0]
        try:
            assert grid is not None
            x = float(region["value"]["x"]) / 100 * grid.width - 0.5
            y = float(region["value"]["y"]) / 100 * grid.height - 0.5
        except (TypeError, KeyError, ValueError, OverflowError):
            n_invalid += 1
            continue
        distances = np.abs(centres - (y, x)).max(axis=1)
        nearest = int(distances.argmin())
        if distances[nearest] <= HALF_PIXEL:
            words[questions[nearest].id] = word  # the last of several points on one pixel
        else:
            n_stray += 1
    return ParsedAnnotation(words, n_stray, n_invalid)


def _parse_brushes(
    labelled: Sequence[tuple[str, Mapping[str, Any]]], questions: Sequence[Question]
) -> ParsedAnnotation:
    """Return for each area the word that covers most of it; the last drawn wins ties."""
    grid = questions[0].area
    assert grid is not None
    mask_by_word: dict[str, NDArray[np.bool_]] = {}
    n_invalid = 0
    for word, region in labelled:
        try:
            stroke = rle.decode_mask(
                region["value"]["rle"], int(region["original_height"]), int(region["original_width"])
            )
        except (TypeError, KeyError, ValueError, OverflowError):
            n_invalid += 1
            continue
        stroke = resize_mask(stroke, grid.height, grid.width)
        earlier = mask_by_word.pop(word, None)  # reinsert: the newest word comes last
        mask_by_word[word] = stroke if earlier is None else stroke | earlier
    words: dict[str, str] = {}
    for question in questions:
        assert question.area is not None
        mask = area_mask(question.area)
        counts = {word: int(drawn[mask].sum()) for word, drawn in mask_by_word.items()}
        max_count = max(counts.values(), default=0)
        if max_count > 0:
            words[question.id] = [word for word, count in counts.items() if count == max_count][-1]
    return ParsedAnnotation(words, 0, n_invalid)
