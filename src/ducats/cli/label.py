"""The command `ducats label`, which serves the labelling page."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators

from ducats.cli.base import app, print_line, print_warning


@app.command
def label(
    run: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    annotator: str = "",
    blind: Annotated[bool, Parameter(negative=())] = False,
    accept_threshold: Annotated[float, Parameter(validator=validators.Number(gte=0, lte=1))] = 0.5,
    token_file: Annotated[Path | None, Parameter(negative=())] = None,
    open_browser: Annotated[bool, Parameter(name="--open", negative="--no-open")] = True,
) -> int:
    """Label images, pixels or groups of similar images of a run in the browser, with keyboard shortcuts.

    The run may be waiting (`ducats run --wait`) or paused; if it is paused, run it again once the round is
    complete. Ctrl-C stops the server. Saved answers are on disk.

    Args:
        run: Run folder.
        host: Address to listen on; the default is reachable from this machine only.
        port: Port to listen on; default: derived from the path of the run, the same each time.
        annotator: Annotator name for all answers; default: the page asks each annotator once.
        blind: Hide the model's predictions and uncertainties.
        accept_threshold: Probability from which Enter accepts the model's guess. Below it, the page asks for
            the class. 0 always accepts, 1 hardly ever.
        token_file: File in which to keep the access token, so that the URL stays the same.
        open_browser: Open the page in a browser.
    """
    from ducats.annotation.page import server
    from ducats.utils.network import is_loopback

    server.check_installed()
    server.check_run_folder(run)
    token = server.load_or_create_token(token_file)
    sock = server.open_socket(host, port, run)
    url = server.page_url(sock, host, token)
    if not is_loopback(host):
        print_warning(
            f"{host} is reachable from other machines. Anyone with the token can see the images and "
            "answer, and the connection is not encrypted. It is safer to omit --host and use a tunnel: "
            "`ssh -L PORT:localhost:PORT THIS-MACHINE`."
        )
    print_line(f"labelling page at {url}")
    print_line("Ctrl-C stops the server", "dim")
    server.serve_page(
        run,
        sock,
        host=host,
        token=token,
        annotator=annotator,
        blind=blind,
        accept_threshold=accept_threshold,
        open_browser=open_browser,
    )
    return 0
