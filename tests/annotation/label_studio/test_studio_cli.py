"""The commands `ducats push` and `ducats pull`."""

from pathlib import Path

import pytest
from fake_studio import LEGACY_TOKEN, choice, serve_fake
from studio_rounds import image_store

from commands import ducats


@pytest.fixture
def token_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("LABEL_STUDIO_API_KEY", raising=False)
    file = tmp_path / "token"
    file.write_text(LEGACY_TOKEN)
    file.chmod(0o600)
    return file


def test_push_and_pull_with_a_token_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], token_file: Path
) -> None:
    run = tmp_path / "lab"
    image_store(run / "questions", 3)
    with serve_fake() as fake:
        assert ducats("push", run, "--url", fake.url + "/", "--token-file", token_file) == 0
        out = capsys.readouterr().out
        assert f"round 1: 3 new tasks, 0 already there, in {fake.url}/projects/1" in out
        assert next(iter(fake.projects.values()))["title"] == "ducats: lab"
        first, second, third = fake.tasks
        fake.annotate(first, choice("cat"))
        fake.annotate(second, choice("cow"))
        assert ducats("pull", run, "--token-file", token_file) == 0
        output = "1 answer accepted; 1 rejected (1 unknown class); round 1 waits for 2 of 3"
        assert output in capsys.readouterr().out
        fake.annotate(second, choice("dog"), user=2)
        fake.annotate(third, choice("dog"))
        assert ducats("pull", run, "--token-file", token_file) == 0
        assert "2 answers accepted; round 1 is complete" in capsys.readouterr().out
        assert ducats("push", run, "--url", fake.url, "--token-file", token_file) == 0
        assert "0 new tasks, 3 already there" in capsys.readouterr().out


AT = ("--url", "http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("push", "{}", *AT), "set LABEL_STUDIO_API_KEY"),
        (("push", "{}/none", *AT), "no questions that can be answered one by one"),
        (("pull", "{}"), "was not pushed to Label Studio"),
        (("pull", "{}", *AT, "--poll", "0"), "--poll must be a positive number"),
        (("pull", "{}", *AT, "--poll", "nan"), "--poll must be a positive number"),
        (("pull", "{}", *AT, "--webhook", "a:1"), "--webhook needs --watch"),
        (("push", "{}", "--url", "127.0.0.1", "--token-file", "{}/token"), "is not a valid address"),
        (("push", "{}", *AT, "--token-file", "{}/token", "--retry-timeout", "0"), "(Connection refused)"),
        (("push", "{}", *AT, "--token-file", "{}/token", "--images", "x"), "--images must be inline"),
    ],
)
def test_user_errors_are_reported_without_the_token(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    token_file: Path,
    arguments: tuple[str, ...],
    words: str,
) -> None:
    image_store(tmp_path / "questions", 1)
    assert ducats(*(argument.format(tmp_path) for argument in arguments)) == 2
    error = capsys.readouterr().err
    assert words in error
    assert LEGACY_TOKEN not in error
