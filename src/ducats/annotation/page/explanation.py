"""Plain-language explanations of why the model picked a question, for annotators."""

from ducats.annotation import Question, RoundRules

# Percentiles of an uncertainty, in the pool or among the pixels of the image.
NOTABLE_PERCENTILE = 0.5
TOP_PERCENTILE = 0.9
SURE_PROBABILITY = 0.8  # from here on, the model does not hesitate between classes


def explain_pick(question: Question, rules: RoundRules, *, blind: bool) -> str:
    """Return one sentence that says why this question was picked.

    A blind sentence does not give away the model's guess or uncertainties.
    """
    unit = _noun(rules)
    if not rules.explained_by and rules.query_summary:
        return rules.query_summary.replace("{unit}", unit)
    clauses = [] if blind else _clauses(question, rules)
    if not clauses:
        return f"Your answer for this {unit} will help the model."
    sentence = ", and ".join(clauses)
    return f"{sentence[0].upper()}{sentence[1:]}."


def _is_unlike(question: Question) -> bool:
    return question.u_dis_quantile is not None and question.u_dis_quantile >= NOTABLE_PERCENTILE


def _is_between(question: Question) -> bool:
    is_sure = question.probability is not None and question.probability >= SURE_PROBABILITY
    return (
        question.u_data_quantile is not None
        and question.u_data_quantile >= NOTABLE_PERCENTILE
        and not is_sure
    )


def _clauses(question: Question, rules: RoundRules) -> list[str]:
    unit, clauses = _noun(rules), []
    if _is_unlike(question) and "u_dis" in rules.explained_by:
        if (question.u_dis_quantile or 0.0) >= TOP_PERCENTILE:
            clauses.append(f"the model has seen few {unit}s like this one")
        else:
            rest = "others" if unit == "image" else "of this image"
            clauses.append(f"the model is less familiar with this {unit} than with most {rest}")
    if _is_between(question) and "u_data" in rules.explained_by:
        subject = "it" if clauses else "the model"
        if (question.u_data_quantile or 0.0) >= TOP_PERCENTILE:
            clauses.append(f"{subject} hesitates between {_rivals(question.guess, rules)}")
        elif question.guess is None:
            clauses.append(f"{subject} is not sure of the class")
        else:
            clauses.append(f"{subject} is not sure of its guess ({question.guess})")
    return clauses


def _rivals(guess: str | None, rules: RoundRules) -> str:
    if len(rules.classes) == 2:
        return " and ".join(rules.classes)
    return "several classes" if guess is None else f"{guess} and other classes"


def _noun(rules: RoundRules) -> str:
    return {"image": "image", "pixel": "spot"}.get(rules.unit, "area")
