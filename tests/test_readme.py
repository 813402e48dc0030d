"""Check the examples, links and commands of the README and the docs."""

import re
from pathlib import Path

import pytest
import torch

from commands import write_images

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


EXAMPLES = [
    (page, example)
    for page in PAGES
    for example in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.S)
]


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


def test_configs_and_commands_in_pages_exist() -> None:
    from ducats.cli import app
    from ducats.config import find_config

    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for name in re.findall(r"(?:-c |`)((?:data|methods|ablation|backbones|parity)/[\w-]+)", text):
            assert find_config(name)
        for command in re.findall(r"^(?:.*`)?ducats ([a-z]+)\b", text, flags=re.M):
            assert command in app, f"{page.name}: ducats {command}"
