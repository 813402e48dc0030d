"""Check the examples, links and commands of the README and the docs."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def python_examples(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.S)


def test_the_python_examples_run_in_under_ten_and_twenty_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    estimator, run = python_examples("README.md")
    for code, limit in ((estimator, 10), (run, 20)):
        assert len([line for line in code.splitlines() if line.strip()]) < limit
    monkeypatch.chdir(tmp_path)
    exec(compile(estimator, "README.md", "exec"), {})
    assert float(capsys.readouterr().out) > 0.9
    exec(compile(run, "README.md", "exec"), {})
    output = capsys.readouterr().out.splitlines()
    assert len(output) == 41
    assert output[-1].endswith("with 40 labels")
    assert float(output[-1].split()[0]) > 0.5


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
