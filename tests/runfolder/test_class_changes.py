"""Class lists that grow, are renamed and merged."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ducats.runfolder import checksums
from ducats.runfolder.class_changes import ClassList, load_class_changes
from ducats.runfolder.run_folder import RunFolder
from ducats.utils.errors import UserError


def test_numbers_stay_while_names_change() -> None:
    classes = ClassList(("car", "bus")).with_added(["lorry", "van"], 2).with_renamed("lorry", "truck")
    assert (classes.names, classes.current, classes.groups) == (("car", "bus", "truck", "van"),) * 2 + (None,)
    assert classes.added == (("truck", 2), ("van", 2))
    merged = classes.with_merged("bus", "van").with_merged("van", "truck")
    assert [merged.number(name) for name in ("bus", "van", "lorry", "truck", "car", "tram")] == [
        2,
        2,
        2,
        2,
        0,
        None,
    ]
    assert (merged.current, merged.merged_into, merged.groups) == (
        ("car", "truck"),
        (0, 2, 2, 2),
        (0, 1, 1, 1),
    )
    assert merged.resolved_names == ("car", "truck", "truck", "truck")
    assert merged.merge_counts({0: 5, 1: 1, 2: 2, 3: 3, -2: 9}) == {0: 5, 2: 6}
    assert merged.added == (("truck", 2),)
    assert merged.with_renamed("truck", "heavy").number("bus") == 2


def test_a_class_can_get_the_name_of_one_that_was_merged_into_it() -> None:
    classes = ClassList(("car", "van", "truck")).with_merged("van", "truck").with_renamed("truck", "van")
    assert (classes.names, classes.current) == (("car", "truck", "van"), ("car", "van"))
    assert [classes.number(name) for name in ("van", "truck")] == [2, 2]
    assert classes.with_renamed("van", "lorry").current == ("car", "lorry")
    back = classes.with_renamed("van", "truck")
    assert (back.current, back.number("van")) == (("car", "truck"), 2)
    live = ClassList(classes.current, classes.changes)  # labelling started again with the current classes
    assert (live.names, live.groups) == (("car", "van"), None)


def test_classes_without_a_label_can_be_renamed_and_merged() -> None:
    classes, offered = ClassList(("car", "bus")), ("car", "bus", "lory")
    renamed = classes.with_renamed("lory", "lorry", offered=offered).with_added(["lorry"], 1)
    assert renamed.names == ("car", "bus", "lorry")
    assert renamed.number("lory") == 2
    merged = classes.with_merged("lory", "bus", offered=offered)
    assert (merged.names, merged.number("lory")) == (("car", "bus"), 1)
    with pytest.raises(UserError, match="no label yet"):
        classes.with_merged("bus", "lory", offered=offered)


def test_changes_that_would_be_ambiguous_are_refused() -> None:
    classes = ClassList(("a", "b", "c")).with_renamed("a", "d")
    assert classes.with_renamed("d", "a").current == ("a", "b", "c")
    changes: list[tuple[Callable[[], ClassList], str]] = [
        (lambda: classes.with_renamed("b", "a"), "is or was the name"),
        (lambda: classes.with_renamed("a", "e"), "is not a class"),
        (lambda: classes.with_renamed("b", "b"), "has that name already"),
        (lambda: classes.with_renamed("b", "x", offered=("x",)), "is or was the name"),
        (lambda: classes.with_merged("b", "b"), "into itself"),
        (lambda: classes.with_merged("b", "c").with_merged("c", "d"), "last two"),
    ]
    for change, words in changes:
        with pytest.raises(UserError, match=words):
            change()


def test_changes_are_kept_and_damage_is_noticed(tmp_path: Path) -> None:
    checksums.create(tmp_path)
    run_folder = RunFolder(tmp_path)
    changes = ClassList(("a", "b")).with_added(["né"], 3).changes
    run_folder.save_class_changes(changes)
    assert load_class_changes(run_folder.classes_path) == run_folder.load_class_changes() == changes
    run_folder.classes_path.write_text("[]")
    with pytest.raises(UserError, match="restore it from a backup"):
        run_folder.load_class_changes()
