"""The labelling config: what Label Studio's page shows, and which words its buttons stand for."""

from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from ducats.answers import UNSURE_WORD, VOID_WORD, Terms
from ducats.palette import palette

PICTURE, CONTROL = (
    "image",
    "class",
)  # names of the two tags; the first also of the picture among a task's data
KEYS = "1234567890qwertasdfgzxcb"  # for classes, as far as they go
GREY, WHITE = "#888888", "#ffffff"

TAGS = {"image": "Choices", "pixel": "KeyPointLabels"}  # all other units are areas
VALUES = {"Choices": "choices", "KeyPointLabels": "keypointlabels", "BrushLabels": "brushlabels"}


def tool(terms: Terms) -> str:
    """The tag with which a round's questions are answered."""
    return TAGS.get(terms.unit, "BrushLabels")


def words(classes: Sequence[str]) -> dict[str, str | None]:
    """What each button's text means; None: nobody has said anything yet.

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
    """The button's text for a word; None: for what is open."""
    if word is not None and word in classes:
        return word
    special = list(words(classes).items())[len(classes) :]
    return next(text for text, meant in special if meant == word)


def hot_keys(classes: Sequence[str]) -> dict[str, str]:
    """A key for each class as far as they go: its own name if that is one.

    >>> hot_keys(["2", "cat", "1", "dog"])
    {'2': '2', '1': '1', 'cat': '3', 'dog': '4'}
    """
    found = {name: name for name in classes if len(name) == 1 and name in KEYS}
    others = [name for name in classes if name not in found]
    free = [key for key in KEYS if key not in found]
    return {**found, **dict(zip(others, free, strict=False))}


def config(terms: Terms) -> str:
    """The XML of a project for such questions."""
    tag = tool(terms)
    one_by_one = tag == "Choices"
    view = ElementTree.Element("View")
    asked = "which class does it show?" if one_by_one else "name each marked place: select it, press a key"
    ElementTree.SubElement(view, "Header", value=f"Round $round – {asked}")
    look = (
        {"choice": "single", "showInline": "true", "required": "true"} if one_by_one else {"opacity": "0.6"}
    )
    if tag == "KeyPointLabels":
        look["strokeWidth"] = "3"
    control = ElementTree.SubElement(view, tag, {"name": CONTROL, "toName": PICTURE, **look})
    keys = hot_keys(terms.classes)
    meanings = words(terms.classes)
    colours = ["#{:02x}{:02x}{:02x}".format(*colour) for colour in palette(terms.classes)]
    for place, (text, word) in enumerate(meanings.items()):
        if word is None and one_by_one:
            continue
        own = place < len(terms.classes)
        key = keys.get(text) if own else {VOID_WORD: "v", UNSURE_WORD: "u"}.get(str(word))
        attributes = {"value": text, **({"hotkey": key} if key else {})}
        if not one_by_one:
            attributes["background"] = colours[place] if own else WHITE if word is None else GREY
        ElementTree.SubElement(control, "Choice" if one_by_one else "Label", attributes)
    # Below: a tall picture would push the buttons off the screen.
    shown = {"name": PICTURE, "value": f"${PICTURE}", "zoom": "true", "zoomControl": "true"}
    ElementTree.SubElement(view, "Image", shown)
    return ElementTree.tostring(view, encoding="unicode")


def check(task: Mapping[str, Any], xml: str) -> None:
    """A ValueError if a task does not fit the config: the server itself takes anything.

    Args:
        task: to be imported.
        xml: the project's config.
    """
    view = ElementTree.fromstring(xml)
    control = next(tag for tag in view if tag.tag in VALUES)
    texts = {tag.get("value") for tag in control}
    picture = view.find("Image")
    assert picture is not None
    for name in (picture.get("value", "")[1:], "round"):
        if name not in task["data"]:
            raise ValueError(f"a task has no {name!r}")
    for prediction in task.get("predictions", ()):
        for region in prediction["result"]:
            if (region["from_name"], region["to_name"]) != (control.get("name"), picture.get("name")):
                raise ValueError(f"a prediction names {region['from_name']!r} and {region['to_name']!r}")
            if region["type"] != VALUES[control.tag]:
                raise ValueError(f"a prediction is of type {region['type']!r}")
            said = region["value"][region["type"]]
            if len(said) != 1 or said[0] not in texts:
                raise ValueError(f"a prediction says {said}, which is no button")
