"""Label Studio's labelling config: the page layout and the meaning of its buttons."""

from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from ducats.annotation import UNSURE_WORD, VOID_WORD, RoundRules
from ducats.palette import class_colours

PICTURE, CONTROL = (
    "image",
    "class",
)  # names of the two tags; the first is also the key of the image in a task's data
KEYS = "1234567890qwertasdfgzxcb"  # for the first classes
GREY, WHITE = "#888888", "#ffffff"

TAGS = {"image": "Choices", "pixel": "KeyPointLabels"}  # brush labels for all other units
VALUES = {"Choices": "choices", "KeyPointLabels": "keypointlabels", "BrushLabels": "brushlabels"}


def tool(terms: RoundRules) -> str:
    """Return the control tag for a round's questions."""
    return TAGS.get(terms.unit, "BrushLabels")


def words(classes: Sequence[str]) -> dict[str, str | None]:
    """Map each button text to its answer word; None marks an open question.

    >>> words(["cat", "unsure"])
    {'cat': 'cat', 'unsure': 'unsure', 'none of these': 'void', 'unsure *': 'unsure', '?': None}
    """
    found: dict[str, str | None] = {name: name for name in classes}
    for text, word in (("none of these", VOID_WORD), ("unsure", UNSURE_WORD), ("?", None)):
        while text in found:
            text += " *"
        found[text] = word
    return found


def text_for(word: str | None, classes: Sequence[str]) -> str:
    """Return the button text for an answer word; None stands for an open question."""
    if word is not None and word in classes:
        return word
    special = list(words(classes).items())[len(classes) :]
    return next(text for text, meant in special if meant == word)


def hot_keys(classes: Sequence[str]) -> dict[str, str]:
    """Assign hotkeys to classes until none is left. A class named like a key gets that key.

    >>> hot_keys(["2", "cat", "1", "dog"])
    {'2': '2', '1': '1', 'cat': '3', 'dog': '4'}
    """
    found = {name: name for name in classes if len(name) == 1 and name in KEYS}
    others = [name for name in classes if name not in found]
    free = [key for key in KEYS if key not in found]
    return {**found, **dict(zip(others, free, strict=False))}


def config(terms: RoundRules) -> str:
    """Return the labelling config (XML) for questions with these rules."""
    tag = tool(terms)
    one_by_one = tag == "Choices"
    view = ElementTree.Element("View")
    asked = (
        "which class does it show?" if one_by_one else "label each marked place: select it and press a key"
    )
    ElementTree.SubElement(view, "Header", value=f"Round $round – {asked}")
    look = (
        {"choice": "single", "showInline": "true", "required": "true"} if one_by_one else {"opacity": "0.6"}
    )
    if tag == "KeyPointLabels":
        look["strokeWidth"] = "3"
    control = ElementTree.SubElement(view, tag, {"name": CONTROL, "toName": PICTURE, **look})
    keys = hot_keys(terms.classes)
    meanings = words(terms.classes)
    colours = ["#{:02x}{:02x}{:02x}".format(*colour) for colour in class_colours(terms.classes)]
    for place, (text, word) in enumerate(meanings.items()):
        if word is None and one_by_one:
            continue
        own = place < len(terms.classes)
        key = keys.get(text) if own else {VOID_WORD: "v", UNSURE_WORD: "u"}.get(str(word))
        attributes = {"value": text, **({"hotkey": key} if key else {})}
        if not one_by_one:
            attributes["background"] = colours[place] if own else WHITE if word is None else GREY
        ElementTree.SubElement(control, "Choice" if one_by_one else "Label", attributes)
    # Below the buttons: a tall image would push them off the screen.
    shown = {"name": PICTURE, "value": f"${PICTURE}", "zoom": "true", "zoomControl": "true"}
    ElementTree.SubElement(view, "Image", shown)
    return ElementTree.tostring(view, encoding="unicode")


def check(task: Mapping[str, Any], xml: str) -> None:
    """Raise ValueError if a task does not match the labelling config. The server does not check this."""
    view = ElementTree.fromstring(xml)
    control = next(tag for tag in view if tag.tag in VALUES)
    texts = {tag.get("value") for tag in control}
    picture = view.find("Image")
    assert picture is not None
    for name in (picture.get("value", "")[1:], "round"):
        if name not in task["data"]:
            raise ValueError(f"the task data lacks {name!r}")
    for prediction in task.get("predictions", ()):
        for region in prediction["result"]:
            if (region["from_name"], region["to_name"]) != (control.get("name"), picture.get("name")):
                raise ValueError(
                    f"a prediction has the wrong tags {region['from_name']!r} and {region['to_name']!r}"
                )
            if region["type"] != VALUES[control.tag]:
                raise ValueError(f"a prediction has the wrong type {region['type']!r}")
            said = region["value"][region["type"]]
            if len(said) != 1 or said[0] not in texts:
                raise ValueError(f"a prediction has the value {said}, which is not a button")
