"""Label Studio's labelling config: the page layout and the meaning of its buttons."""

import unicodedata
from collections.abc import Sequence
from xml.etree import ElementTree

from ducats.annotation import UNSURE_WORD, VOID_WORD, RoundRules
from ducats.utils.errors import UserError
from ducats.utils.palette import class_colours

IMAGE_TAG_NAME = "image"  # also the key of the image in a task's data
CONTROL_TAG_NAME = "class"
CLASS_HOTKEYS = "1234567890qwertasdfgzxcb"  # for the first classes
SPECIAL_LABEL_COLOUR, OPEN_LABEL_COLOUR = "#888888", "#ffffff"

TAG_BY_UNIT = {"image": "Choices", "pixel": "KeyPointLabels"}  # brush labels for all other units
RESULT_TYPE_BY_TAG = {"Choices": "choices", "KeyPointLabels": "keypointlabels", "BrushLabels": "brushlabels"}


def control_tag(rules: RoundRules) -> str:
    """Return the control tag for a round's questions."""
    return TAG_BY_UNIT.get(rules.unit, "BrushLabels")


def words_by_button_text(classes: Sequence[str]) -> dict[str, str | None]:
    """Map each button text to its answer word; None marks an open question.

    >>> words_by_button_text(["cat", "unsure"])
    {'cat': 'cat', 'unsure': 'unsure', 'none of these': 'void', 'unsure *': 'unsure', '?': None}
    """
    words_by_text: dict[str, str | None] = {name: name for name in classes}
    for text, word in (("none of these", VOID_WORD), ("unsure", UNSURE_WORD), ("?", None)):
        while text in words_by_text:
            text += " *"
        words_by_text[text] = word
    return words_by_text


def button_text(word: str | None, classes: Sequence[str]) -> str:
    """Return the button text for an answer word; None stands for an open question."""
    if word is not None and word in classes:
        return word
    special = list(words_by_button_text(classes).items())[len(classes) :]
    return next(text for text, special_word in special if special_word == word)


def assign_hotkeys(classes: Sequence[str]) -> dict[str, str]:
    """Assign hotkeys to classes until none is left. A class named like a key gets that key.

    >>> assign_hotkeys(["2", "cat", "1", "dog"])
    {'2': '2', '1': '1', 'cat': '3', 'dog': '4'}
    """
    assigned = {name: name for name in classes if len(name) == 1 and name in CLASS_HOTKEYS}
    others = [name for name in classes if name not in assigned]
    free = [key for key in CLASS_HOTKEYS if key not in assigned]
    return {**assigned, **dict(zip(others, free, strict=False))}


def make_label_config(rules: RoundRules) -> str:
    """Return the labelling config (XML) for questions with these rules."""
    for name in rules.classes:
        if any(unicodedata.category(sign) in ("Cc", "Cs") for sign in name):
            raise UserError(
                f"Label Studio cannot show the class name {name!r}, because it contains a control character; "
                "rename the class, or use the labelling page"
            )
    tag = control_tag(rules)
    is_choices = tag == "Choices"
    view = ElementTree.Element("View")
    instruction = (
        "which class does it show?" if is_choices else "label each marked place: select it and press a key"
    )
    ElementTree.SubElement(view, "Header", value=f"Round $round – {instruction}")
    control_attributes = (
        {"choice": "single", "showInline": "true", "required": "true"} if is_choices else {"opacity": "0.6"}
    )
    if tag == "KeyPointLabels":
        control_attributes["strokeWidth"] = "3"
    control = ElementTree.SubElement(
        view, tag, {"name": CONTROL_TAG_NAME, "toName": IMAGE_TAG_NAME, **control_attributes}
    )
    keys = assign_hotkeys(rules.classes)
    colours = ["#{:02x}{:02x}{:02x}".format(*colour) for colour in class_colours(rules.classes)]
    for index, (text, word) in enumerate(words_by_button_text(rules.classes).items()):
        if word is None and is_choices:
            continue
        if index < len(rules.classes):
            key, colour = keys.get(text), colours[index]
        else:
            key = {VOID_WORD: "v", UNSURE_WORD: "u"}.get(str(word))
            colour = OPEN_LABEL_COLOUR if word is None else SPECIAL_LABEL_COLOUR
        attributes = {"value": text, **({"hotkey": key} if key else {})}
        if not is_choices:
            attributes["background"] = colour
        ElementTree.SubElement(control, "Choice" if is_choices else "Label", attributes)
    # Below the buttons: a tall image would push them off the screen.
    source = {"name": IMAGE_TAG_NAME, "value": f"${IMAGE_TAG_NAME}"}
    ElementTree.SubElement(view, "Image", {**source, "zoom": "true", "zoomControl": "true"})
    return ElementTree.tostring(view, encoding="unicode")
