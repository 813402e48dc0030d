"""Check the examples, links, commands and settings of the README and the docs; see CONTRIBUTING."""

import re
from pathlib import Path

import pytest
import torch
from cyclopts import CycloptsError

from command_checks import (
    Quote,
    check_config_file,
    check_quote,
    code_blocks,
    find_commands,
    inline_code,
    shell_lines,
)
from commands import write_images
from ducats.config import find_config
from ducats.utils.errors import UserError

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
DOCUMENTED = [page for page in PAGES if page.name != "CHANGELOG.md"]  # it has names of earlier versions

EXAMPLES = [(page, example) for page in PAGES for _, example in code_blocks(page, "python")]


@pytest.mark.parametrize(
    ("page", "example"), EXAMPLES, ids=[str(page.relative_to(ROOT)) for page, _ in EXAMPLES]
)
def test_python_examples_run(
    page: Path,
    example: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_images(Path("images"), [torch.zeros(3, 8, 8, dtype=torch.uint8)], [""])
    Path("next").mkdir()
    Path("next", "picks.csv").write_text("key\n000.png\n", encoding="utf-8")
    code = compile(example, str(page), "exec")
    if '"runs/' in example:  # of a run that the reader has
        return
    exec(code, {"__name__": "example"})
    for score in re.findall(r"^(0\.\d+)", capsys.readouterr().out, flags=re.M):
        assert float(score) > 0.4


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_exist(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if not link.startswith("http"):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


@pytest.mark.parametrize("page", DOCUMENTED, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_and_settings_exist(page: Path) -> None:
    errors = []
    for quote in (*shell_lines(page), *inline_code(page)):
        try:
            check_quote(quote)
        except (ValueError, UserError, CycloptsError) as error:
            errors.append(f"{page.relative_to(ROOT)}:{quote.line}: {quote.text}: {error}")
    assert not errors, "\n".join(errors)


@pytest.mark.parametrize("page", DOCUMENTED, ids=lambda p: str(p.relative_to(ROOT)))
def test_config_files_are_valid(page: Path, tmp_path: Path) -> None:
    for line, text in code_blocks(page, "yaml"):
        file = tmp_path / "mine.yaml"
        file.write_text(text, encoding="utf-8")
        try:
            check_config_file(file)
        except UserError as error:
            pytest.fail(f"{page.relative_to(ROOT)}:{line}: {error}")


@pytest.mark.parametrize(
    "code",
    [
        "ducats rnu",
        "ducats run --budegt 5",
        "ducats run --seed many",
        "ducats run --set train.lrr=1",
        "ducats run --set train.lr=fast",
        "ducats run --set query.params.kappo=5",
        "ducats run --set train.lrr=FILE",
        "ducats run --until gain<1",
        "ducats run --method dcu …",
        "ducats run -c data/digits --set engine.loggers=[wandb]",
        "KEY=1 ducats run --tset DIR",
        "srun ducats run … --tset DIR",
        "ducats labels RUN | head && ducats reprot RUN",
        "ducats score RUN POOL --budget 5",
        "ducats score RUN POOL --budget 5 --out DIR --query tqs",
        "ducats sweep digits --methods dcu",
        "ducats sweep digits --set train.lrr=1",
        "ducats tune --grid train.lrr=1,2",
        "ducats figure simplx RUN",
    ],
)
def test_wrong_commands_are_found(code: str) -> None:
    with pytest.raises((ValueError, UserError, CycloptsError)):
        check_quote(Quote(1, code, is_inline=False))


@pytest.mark.parametrize(
    "code", ["train.lrr", "train.lr=fast", "--set task.unit=regoin --budget 5", "ducats push RUN"]
)
def test_wrong_inline_code_is_found(code: str) -> None:
    with pytest.raises((ValueError, UserError, CycloptsError)):
        check_quote(Quote(1, code, is_inline=True))


@pytest.mark.parametrize(
    "text", ["trian: {lr: 0.1}", "query: {name: duc, params: {kappo: 5}}", "extends: digits\nmethods: [dcu]"]
)
def test_wrong_config_files_are_found(text: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UserError):
        check_config_file(file)


def test_many_commands_are_found() -> None:
    lines = [quote.text for page in DOCUMENTED for quote in (*shell_lines(page), *inline_code(page))]
    assert sum(len(list(find_commands(line))) for line in lines) > 250


@pytest.mark.parametrize("page", DOCUMENTED, ids=lambda p: str(p.relative_to(ROOT)))
def test_configs_exist(page: Path) -> None:
    names = re.findall(
        r"(?:-c |`)((?:data|methods|ablation|backbones|parity)/[\w-]+)", page.read_text(encoding="utf-8")
    )
    for name in names:
        assert find_config(name)
