"""The command `ducats classes`."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from ducats.cli.base import app, console, login_name, print_line
from ducats.utils.errors import UserError
from ducats.utils.findings import pluralise

if TYPE_CHECKING:
    from ducats.runfolder.class_changes import ClassList
    from ducats.runfolder.run_folder import RunFolder


@app.command
def classes(
    run: Path,
    *,
    add: str | None = None,
    rename: str | None = None,
    merge: str | None = None,
    annotator: str | None = None,
) -> int:
    """List the classes of a run; add, rename or merge them.

    Labels, reports, predictions and new exports follow at once, and earlier names are kept as history. A run
    that is not finished trains with merged labels from its next round on.

    Args:
        run: Run folder.
        add: Offer a new class to the annotators of the open round. On the labelling page, the key n does the
            same.
        rename: OLD=NEW: give a class another name, also one that has no label yet.
        merge: NAME=INTO: make a class part of another, for example --merge lorry=truck.
        annotator: With --merge: name of the person who merges; default: the login name.
    """
    from ducats.annotation import AnnotationStore
    from ducats.annotation.change_classes import add_class, current_classes, merge_class, rename_class
    from ducats.runfolder.run_folder import RunFolder

    run_folder = RunFolder(run)
    run_folder.check_format()
    if sum(option is not None for option in (add, rename, merge)) > 1:
        raise UserError("give one of --add, --rename and --merge at a time")
    if add is not None:
        print_line(f"annotators can now choose {add_class(run_folder, add)!r}")
    elif rename is not None:
        old, new = _pair("--rename", rename, "OLD=NEW")
        rename_class(run_folder, old, new)
        print_line(f"{old!r} is now {new!r}")
    elif merge is not None:
        name, into = _pair("--merge", merge, "NAME=INTO")
        n_labels = merge_class(run_folder, name, into, login_name() if annotator is None else annotator)
        print_line(f"{name!r} is now part of {into!r}; {pluralise(n_labels, 'label')} changed")
    else:
        _print_classes(run_folder, current_classes(run_folder, AnnotationStore(run_folder.questions_path)))
    return 0


def _pair(option: str, text: str, form: str) -> tuple[str, str]:
    old, separator, new = text.partition("=")
    if not (separator and old.strip() and new.strip()) or "=" in new:
        raise UserError(f"{option} {text!r} must have the form {form}, for example {option} lorry=truck")
    return old.strip(), new.strip()


def _print_classes(run_folder: "RunFolder", class_list: "ClassList") -> None:
    labels, added = run_folder.count_class_labels(), dict(class_list.added)
    records = run_folder.read_records("added_classes")
    predicted = class_list.predicted_images(records[-1]) if records else {}
    table = Table("class", "labels", "added in", "predicted", "earlier names", header_style="bold")
    for column in table.columns[1:4]:
        column.justify = "right"
    for number, name in zip(class_list.current_numbers, class_list.current, strict=True):
        table.add_row(
            escape(name),
            f"{labels[number]:,}",
            f"round {added[name]}" if name in added else "",
            f"{predicted[number]:,}" if number in predicted else "",
            escape(", ".join(_earlier_names(class_list, name))),
        )
    console.print(table)


def _earlier_names(class_list: "ClassList", name: str) -> list[str]:
    """Return the former names of a class, and those of classes that were merged into it."""
    from ducats.runfolder.class_changes import translate_word

    known = dict.fromkeys([change.name for change in class_list.changes if change.kind != "added"])
    return [word for word in known if word != name and translate_word(word, class_list.changes) == name]
