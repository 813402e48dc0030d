"""Wheel and sdist: their content, their metadata, and the wheel in an environment without extras."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
from email import message_from_bytes
from email.message import Message
from importlib.metadata import distribution
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml
from packaging.requirements import Requirement

from commands import set_options

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PACKAGE = f"ducats-{PROJECT['version']}"
TINY_SETTINGS = (
    *("train.epochs=4", "train.steps_per_epoch=2", "acquisition.rounds=1"),
    *("data.params={n_source: 100}", "model.params={width: 4}"),
)


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the wheel and the sdist of this checkout."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", folder], cwd=ROOT, check=True)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    return next(dist.glob("*.whl"))


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with ZipFile(wheel) as archive:
        return message_from_bytes(archive.read(f"{PACKAGE}.dist-info/METADATA"))


def package_files() -> set[str]:
    package = ROOT / "src"
    return {
        path.relative_to(package).as_posix()
        for path in package.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


def test_wheel_has_all_files_of_the_package_and_no_others(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.startswith(f"{PACKAGE}.dist-info/")}
    assert names == package_files()
    for kind in ("yaml", "html", "css", "js", "svg", "typed"):  # configs, templates, assets of the pages
        assert any(name.endswith(f".{kind}") for name in names)


def test_sdist_has_what_a_build_needs(dist: Path) -> None:
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        names = {name.removeprefix(f"{PACKAGE}/") for name in archive.getnames()}
    assert {name.removeprefix("src/") for name in names if name.startswith("src/")} == package_files()
    assert {name for name in names if not name.startswith("src/")} == {
        *("PKG-INFO", "pyproject.toml", "hatch_build.py", ".gitignore"),
        *("README.md", "CHANGELOG.md", "CITATION.cff", "LICENSE"),
    }


def test_links_of_the_package_page_lead_to_files_of_this_version(metadata: Message) -> None:
    page = metadata.get_payload()
    assert isinstance(page, str)
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", page) if not link.startswith("#")]
    relative = re.findall(r"\]\((?!http|#)([^)\s]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    own = re.compile(rf"https://github\.com/\S+/(blob|raw)/v{re.escape(PROJECT['version'])}/([^#]+)")
    found = [match for match in map(own.match, links) if match]
    assert len(found) == len(relative)
    assert all(link.startswith("https://") for link in links)
    for match in found:
        assert (ROOT / match[2]).exists()
        assert (match[1] == "raw") == match[2].endswith(".png")


def test_metadata_names_licence_versions_and_addresses(metadata: Message) -> None:
    assert metadata["License-Expression"] == "Apache-2.0"
    urls = dict(url.split(", ") for url in metadata.get_all("Project-URL", []))
    assert set(urls) == {"Homepage", "Documentation", "Issues", "Changelog"}
    classifiers = metadata.get_all("Classifier", [])
    oldest = PROJECT["requires-python"].removeprefix(">=")
    assert f"Programming Language :: Python :: {oldest}" in classifiers

    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == PROJECT["version"]
    assert citation["repository-code"] == urls["Homepage"]


@pytest.mark.skipif(os.name == "nt", reason="symbolic links need a privilege on Windows")
def test_wheel_works_outside_the_repository_without_extras(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    link_requirements(wheel, next(environment.glob("lib/python*/site-packages")))
    pip = (sys.executable, "-m", "pip", "--python", environment / "bin" / "python", "install", "--quiet")
    subprocess.run([*pip, "--no-deps", "--no-index", wheel], check=True)

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.run(
            [environment / "bin" / command[0], *command[1:]],
            cwd=tmp_path,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )

    for extra in ("starlette", "onnx", "pyarrow", "pytest"):
        assert f"No module named '{extra}'" in run("python", "-c", f"import {extra}").stderr
    assert "Usage: ducats" in run("ducats", "--help").stdout
    assert "ducats" in run("ducats", "methods").stdout
    tiny_run = ("run", "-c", "data/digits", "--out", "run", "--device", "cpu", *set_options(*TINY_SETTINGS))
    for command in (tiny_run, ("report", "run")):
        done = run("ducats", *command)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "<svg" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def link_requirements(wheel: Path, site: Path) -> None:
    """Link the packages that installing the wheel without extras brings, from this environment."""
    with ZipFile(wheel) as archive:
        requires = message_from_bytes(archive.read(f"{PACKAGE}.dist-info/METADATA")).get_all(
            "Requires-Dist", []
        )
    waiting = [(requirement, "") for requirement in map(Requirement, requires)]
    linked = set()
    while waiting:
        requirement, extra = waiting.pop()
        if (
            requirement.marker and not requirement.marker.evaluate({"extra": extra})
        ) or requirement in linked:
            continue
        linked.add(requirement)
        package = distribution(requirement.name)
        for name in {path.parts[0] for path in package.files or []} - {"..", "__pycache__"}:
            if not (site / name).exists():
                (site / name).symlink_to(Path(str(package.locate_file(name))))
        for needed in map(Requirement, package.requires or []):
            waiting += [(needed, name) for name in ("", *requirement.extras)]
