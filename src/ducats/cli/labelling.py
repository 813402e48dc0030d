"""The command that serves our page to people who answer."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ducats.cli.base import app, console


@app.command
def label(
    run: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    who: str = "",
    blind: Annotated[bool, Parameter(negative=())] = False,
    token_file: Annotated[Path | None, Parameter(negative=())] = None,
    browser: Annotated[bool, Parameter(name="--open", negative="--no-open")] = True,
) -> int:
    """Answer a run's questions on a page in the browser, by keys: images, pixels, many alike at once.

    The run may wait for answers meanwhile, or have paused: start it again when the round is complete. Ctrl-C
    ends the page; what it called saved is on disk.

    Args:
        run: The run's folder.
        host: Where to listen. Only this machine reaches the usual one.
        port: By default one made of the run's path: the same each time.
        who: Name under which all answers are kept; by default the page asks each person once.
        blind: Do not show the model's guess and its uncertainties.
        token_file: Keep the address's token in this file, so that it is the same next time.
        browser: Open the page in a browser.
    """
    from ducats.labelling.page import serving

    serving.check_installed()
    serving.check_run(run)
    token = serving.token_from(token_file)
    listening = serving.listen(host, port, run)
    url = serving.address(listening, host, token)
    if not serving.is_loopback(host):
        console.print(
            f"beware: {host} is reached from other machines. Everyone who reaches it and has the token sees "
            "the images and can answer, and nothing is encrypted. Safer: leave --host out and come through a "
            "tunnel, `ssh -L PORT:localhost:PORT THIS-MACHINE`.",
            style="yellow",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    console.print(f"answer at {url}", highlight=False, markup=False, soft_wrap=True)
    console.print("Ctrl-C ends the page", style="dim")
    serving.serve(run, listening, host=host, token=token, who=who, blind=blind, opened=browser)
    return 0
