"""The command `ducats label`, which serves the labelling page."""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter, validators

from ducats.cli.base import app, print_line, print_warning
from ducats.config.options import ConfigFiles, RunOptions
from ducats.utils.errors import UserError
from ducats.utils.findings import pluralise

if TYPE_CHECKING:
    from socket import socket

    from ducats.run.live_run import LiveRun


@app.command
def label(
    folder: Path,
    *,
    classes: str | None = None,
    source: Path | None = None,
    test: Path | None = None,
    backbone: str | None = None,
    out: Path | None = None,
    seed: int | None = None,
    device: str | None = None,
    audit_every: Annotated[int | None, Parameter(validator=validators.Number(gte=0))] = None,
    config: ConfigFiles = [],  # noqa: B006 - never changed
    set: Annotated[list[str], Parameter(negative=(), help="A setting as key=value. Repeatable.")] = [],  # noqa: B006
    host: str = "127.0.0.1",
    port: int = 0,
    annotator: str = "",
    people: str | None = None,
    blind: Annotated[bool, Parameter(negative=())] = False,
    accept_threshold: Annotated[float, Parameter(validator=validators.Number(gte=0, lte=1))] = 0.5,
    token_file: Annotated[Path | None, Parameter(negative=())] = None,
    open_browser: Annotated[bool, Parameter(name="--open", negative="--no-open")] = True,
) -> int:
    """Label a folder of images, or the questions of a run, in the browser, with keyboard shortcuts.

    **A folder of images**, with --classes "cat, dog, other" or --source: each image is embedded once, and the
    model learns from each answer, so that the next question is chosen with all that is known. Classes can be
    added on the page, and similar images confirmed together. Ctrl-C ends the session: a run with all labels
    is trained in --out, for `ducats report`, `predict`, `export` and `triage`. Run the same command again to
    label more. No answer is lost if the command is killed.

    **A run folder**: the run may be waiting (`ducats run --wait`) or paused; if it is paused, run it again
    once the round is complete. Ctrl-C stops the server. Saved answers are on disk.

    Args:
        folder: Folder of images to label live, or run folder.
        classes: Live: names of the classes, separated by commas, or a file with one name per line.
        source: Live: folder of images that are labelled already, one subfolder per class.
        test: Live: folder of labelled images for evaluation only, with the layout of --source.
        backbone: Live: backbone that embeds the images, see `ducats run`.
        out: Live: run folder; default: runs/label-NAME-DIGEST, the same for the same folder of images.
        seed: Live: random seed.
        device: Live: auto, cpu, cuda or mps.
        audit_every: Live: one in this many questions is drawn at random and not trained on; these labels
            give the accuracy. Default: 10; 0: none.
        host: Address to listen on; the default is reachable from this machine only.
        port: Port to listen on; default: derived from the path of the run, the same each time.
        annotator: Annotator name for all answers; default: the page asks each annotator once.
        people: Names of annotators, separated by commas: print one link per person. Answers through a link
            carry its name, and the page does not ask for one. The links stay the same.
        blind: Hide the model's predictions and uncertainties.
        accept_threshold: Probability from which Enter accepts the model's guess. Below it, the page asks for
            the class. 0 always accepts, 1 hardly ever.
        token_file: File in which to keep the access token, so that the URL stays the same; with --people, the
            tokens of all people; default then: people.json in the run folder.
        open_browser: Open the page in a browser.
    """
    from ducats.annotation.page import server

    server.check_installed()
    if people is not None and annotator:
        raise UserError("--people and --annotator exclude each other; omit one of them")
    names = None if people is None else _parse_people(people)
    page: dict[str, Any] = {
        "host": host,
        "annotator": annotator,
        "blind": blind,
        "accept_threshold": accept_threshold,
        "open_browser": open_browser and people is None,  # whose link should it open?
    }
    access = partial(_access, token_file, names)
    if classes is None and source is None:
        server.check_run_folder(folder)
        _check_not_live(folder)
        with server.open_socket(host, port, folder) as sock:
            _serve(folder, sock, page | access(folder))
        return 0
    if audit_every == 1:
        raise UserError(
            "--audit-every 1 leaves no label to train on; give a larger number, or 0 for no audit"
        )
    if server.is_run_folder(folder):
        raise UserError(
            f"{folder} is a run folder; omit --classes and --source to label its questions, or give a folder "
            "of images"
        )
    options = RunOptions(
        config=config,
        set=["model.freeze=backbone", "acquisition.rounds=0", *set],
        source=source,
        target=folder,
        test=test,
        classes=classes,
        backbone=backbone,
        seed=seed,
        device=device,
    )
    out = out or _default_folder(folder)
    with server.open_socket(host, port, out) as sock:  # fails before images are embedded
        return _label_live(options, out, audit_every, sock, page, access)


def _parse_people(text: str) -> list[str]:
    """Return names separated by commas.

    >>> _parse_people("ada, ben")
    ['ada', 'ben']
    """
    from ducats.annotation.page.app import MAX_NAME_LENGTH

    names = [name.strip() for name in text.split(",")]
    for name in names:
        if not name or len(name) > MAX_NAME_LENGTH or not name.isprintable():
            raise UserError(
                f"--people needs names of at most {MAX_NAME_LENGTH} characters, separated by commas, e.g. "
                f"ada,ben; not {text!r}"
            )
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"--people names {twice[0]!r} twice; each person needs a name of their own")
    return names


def _access(token_file: Path | None, names: Sequence[str] | None, run: Path) -> dict[str, Any]:
    """Return the token of everybody, or those of people."""
    from ducats.annotation.page import server
    from ducats.runfolder.run_folder import RunFolder

    if names is None:
        return {"token": server.load_or_create_token(token_file)}
    return {"people": server.load_or_create_people(token_file or RunFolder(run).people_path, names)}


def _serve(run: Path, sock: "socket", page: dict[str, Any], **more: Any) -> None:
    from ducats.annotation.page import server
    from ducats.utils.network import is_loopback

    host = page["host"]
    if not is_loopback(host):
        print_warning(
            f"{host} is reachable from other machines. Anyone with the token can see the images and "
            "answer, and the connection is not encrypted. It is safer to omit --host and use a tunnel: "
            "`ssh -L PORT:localhost:PORT THIS-MACHINE`."
        )
    if people := page.get("people"):
        print_line("labelling page, one link per person:")
        for token, name in people.items():
            print_line(f"  {name}: {server.page_url(sock, host, token)}")
    else:
        print_line(f"labelling page at {server.page_url(sock, host, page['token'])}")
    print_line("Ctrl-C stops the server" if not more else "Ctrl-C ends the session", "dim")
    server.serve_page(run, sock, **page, **more)


def _check_not_live(folder: Path) -> None:
    """Raise if the newest round of a run is labelled live: a model that learns must choose its questions."""
    from ducats.annotation import AnnotationStore
    from ducats.runfolder.run_folder import RunFolder

    open_round = AnnotationStore(RunFolder(folder).questions_path).open_round()
    if open_round is not None and open_round.rules.live:
        names = ", ".join(open_round.rules.classes)
        raise UserError(
            f"{folder} is labelled live; to label more, give the folder of the images again: ducats label "
            f'IMAGES --classes "{names}" --out {folder}'
        )


def _default_folder(images: Path) -> Path:
    """Return the run folder of a folder of images."""
    resolved = images.expanduser().resolve()
    return Path("runs") / f"label-{resolved.name}-{hashlib.sha256(str(resolved).encode()).hexdigest()[:6]}"


def _label_live(
    options: RunOptions,
    out: Path,
    audit_every: int | None,
    sock: "socket",
    page: dict[str, Any],
    access: Callable[[Path], dict[str, Any]],
) -> int:
    """Label a folder of images while a model learns; train a run when the session ends."""
    from ducats.utils.progress import activity
    from ducats.utils.progress_display import ProgressDisplay

    with ProgressDisplay(transient=True):
        with activity("loading libraries"):
            from ducats.run.factory import check_config, resolve_for_machine
            from ducats.run.live_audit import DEFAULT_EVERY
            from ducats.run.live_run import LiveRun
            from ducats.runfolder.run_folder import RunFolder

            config = resolve_for_machine(options.load())
        run_folder = RunFolder(out)
        check_config(config, is_resumable=run_folder.is_resumable)
        every = DEFAULT_EVERY if audit_every is None else audit_every
        live_run = LiveRun.open(config, run_folder, audit_every=every)
    try:
        with ProgressDisplay(transient=True):
            session = live_run.session()
        data = live_run.data
        print_line(
            f"live labelling of {pluralise(len(data.pool), 'image')} in {options.target}: "
            f"{pluralise(len(data.classes), 'class')}, "
            f"{pluralise(session.learner.n_labels, 'label')} so far; folder {out}"
        )
        with session, suppress(KeyboardInterrupt):
            _serve(out, sock, page | access(out), live=session)
        return _finish(live_run)
    finally:
        run_folder.release()


def _finish(live_run: "LiveRun") -> int:
    """Train a run with all labels and say what can be done with it."""
    from ducats.cli.run import print_results
    from ducats.utils.progress_display import ProgressDisplay

    print_line("training a run with all labels; Ctrl-C postpones it to the next session", "dim")
    with ProgressDisplay() as display:
        has_labels = live_run.finish(display)
    if not has_labels:
        print_line("no labels yet; run the same command again to label")
        return 0
    folder = live_run.run_folder.path
    print_results(live_run.run_folder, has_test=live_run.data.test is not None)
    print_line(
        f"next: ducats report {folder}; ducats predict {folder} IMAGES; label more with the same command; or "
        f"train the whole network on a GPU with ducats run --start-from {folder} --rounds 0 --finetune"
    )
    return 0
