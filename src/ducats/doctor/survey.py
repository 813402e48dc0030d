"""Survey the data: list images, labels and sizes of source, target and test set."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from torch import Tensor

from ducats.config import Config
from ducats.data import BENCHMARKS, DATASETS
from ducats.data.benchmarks import class_order, list_task
from ducats.data.decoding import memory_budget
from ducats.data.evaluation_split import same_images
from ducats.data.folders import check_disjoint, existing_folder, list_images
from ducats.data.manifest import ManifestRow, scan_manifest
from ducats.data.maps import Reader
from ducats.doctor.finding import Finding, gather, quoted, some
from ducats.doctor.found import ROLES, Found, Part, Role, Survey, knob
from ducats.doctor.map_files import in_map_files
from ducats.domain import Images, Labels, Shift
from ducats.errors import UserError

NAMED = 20  # maximum number of manifest rows that are reported one by one


def survey(config: Config) -> Found:
    """Survey the data as far as it is readable, and report what is not."""
    readers: dict[str, Callable[[Config], Found]] = {"folders": _in_folders, "manifest": _in_manifest}
    readers |= {name: _in_benchmark for name, known in BENCHMARKS.items() if known.list_files is not None}
    readers |= {name: in_map_files for name, function in DATASETS.items() if isinstance(function, Reader)}
    found, findings = readers.get(config.data.name, _built)(config)
    if found.parts and config.data.name in BENCHMARKS:
        found.expected = BENCHMARKS[config.data.name].expected_counts(knob(config, findings, "task"))
    return found, findings


def _in_folders(config: Config) -> Found:
    """Survey class folders."""
    found, findings = _stored(config)
    found.truth = knob(config, findings, "ground_truth") or False
    folders: dict[Role, Path] = {}
    for role in ROLES:
        path = knob(config, findings, role)
        if path is not None:
            findings += gather(_listed(found, folders, role, Path(path)))
    if "source" in folders and "target" in folders:
        test = folders.get("test")
        found.target_is_test = test is not None and test.resolve() == folders["target"].resolve()
        findings += gather(_apart(folders["source"], folders["target"], test))
    return found, findings


def _listed(found: Survey, folders: dict[Role, Path], role: Role, path: Path) -> Iterator[Finding]:
    """Add the images of a folder to the survey; report images outside class folders."""
    folder = folders[role] = existing_folder(role, path)
    images = list_images(folder)
    labelled = role != "target" or found.truth
    labels = [key.partition("/")[0] if labelled and "/" in key else "" for key, _ in images]
    where = f"the {role} folder {folder}"
    paths = [file for _, file in images]
    found.parts[role] = Part(role, where, [str(file) for file in paths], labels, paths)
    if not labelled or not images:
        return
    loose = [key for key, _ in images if "/" not in key]
    if loose:
        yield Finding(
            "error",
            f"{where} has {len(loose)} images outside class folders, such as {loose[0]}; "
            "move each into a subfolder named after its class",
        )
    inside = {entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")}
    empty = sorted(inside - set(labels))
    if empty:
        yield Finding(
            "error",
            f"{where} has class folders without images: {quoted(empty)}; add images or remove the folders",
        )


def _apart(source: Path, target: Path, test: Path | None) -> Iterator[Finding]:
    check_disjoint(source, target, test)
    yield from ()  # errors are raised


def _in_manifest(config: Config) -> Found:
    """Survey the rows of a manifest."""
    found, findings = _stored(config)
    path = knob(config, findings, "path")
    if path is None:
        return found, findings
    table = Path(path).expanduser()
    try:
        rows, problems = scan_manifest(table)
    except (UserError, OSError) as error:
        return found, [*findings, Finding("error", str(error))]
    findings += [Finding("error", problem) for problem in problems[:NAMED]]
    if len(problems) > NAMED:
        findings.append(
            Finding("error", f"{table} has {len(problems) - NAMED} more bad rows; fix the others first")
        )
    if not rows:
        return found, findings
    for role in ROLES:
        mine = [row for row in rows if _role(row) == role]
        if mine or role != "test":
            where = f"the {role} rows of {table}"
            names, labels = [str(row.path) for row in mine], [row.label for row in mine]
            found.parts[role] = Part(role, where, names, labels, [row.path for row in mine])
    paths = {role: [row.path for row in rows if _role(row) == role] for role in ("target", "test")}
    found.target_is_test = bool(paths["test"]) and paths["test"] == paths["target"]
    bare = [row for row in rows if _role(row) == "target" and not row.label]
    pool = len(found.parts["target"])
    found.truth = not bare if pool else None
    if 0 < len(bare) < pool:
        findings.append(
            Finding(
                "error",
                f"{table}: {len(bare)} of {pool} target rows lack a label "
                f"({some([row.line_label for row in bare])}); label all of them, or none",
            )
        )
    return found, findings


def _in_benchmark(config: Config) -> Found:
    """Survey the files of a benchmark task."""
    found, findings = _stored(config)
    root, task = (knob(config, findings, name) for name in ("root", "task"))
    if root is None or task is None:
        return found, findings
    benchmark = BENCHMARKS[config.data.name]
    try:
        listing = list_task(benchmark, root, task)
    except UserError as error:
        return found, [*findings, Finding("error", str(error))]
    for role, part in listing.by_role.items():
        paths = [path for _, path in part.files]
        found.parts[role] = Part(role, part.description, [str(path) for path in paths], part.labels, paths)
    found.truth = True
    try:
        found.classes = class_order(benchmark, listing)
    except UserError as error:
        findings.append(Finding("error", str(error)))
    return found, findings


def _role(row: ManifestRow) -> Role:
    return "test" if row.split == "test" else "source" if row.domain == "source" else "target"


def _built(config: Config) -> Found:
    """Build a data set that is not read from files, and survey it."""
    try:
        from ducats.factory import load_data

        shift = load_data(config)
        if not isinstance(shift, Shift):
            raise TypeError(f"it returned {type(shift).__name__}, not a Shift")
    except UserError as error:
        return Survey(), [Finding("error", str(error))]
    except Exception as error:  # user code, or a parameter of an unexpected type
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"
        what = f"the data set {config.data.name!r} cannot be built ({said})"
        return Survey(), [Finding("error", f"{what}; check data.params: {config.data.params}")]
    found = Survey(truth=shift.truth is not None, of_pixels=shift.source.of_pixels)
    classes = shift.classes
    if found.of_pixels:
        found.classes = classes
    _put(found, "source", shift.source.images, shift.source.labels, classes)
    _put(found, "target", shift.pool, shift.truth, classes)
    if shift.test is not None:
        _put(found, "test", shift.test.images, shift.test.labels, shift.test.classes)
        found.target_is_test = same_images(shift.test.images, shift.pool)
    return found, []


def _put(found: Survey, role: Role, images: Images, labels: Labels | None, classes: Sequence[str]) -> None:
    channels, height, width = images.pixels.shape[1:]
    found.shapes[role] = (channels, height, width)
    bare, where = [""] * len(images), f"the {role}"
    if not found.of_pixels:
        named = bare if labels is None else _names(labels[:], classes)
        found.parts[role] = Part(role, where, images.keys, named, pixels=images.pixels)
        return
    own = [(height, width)] * len(images) if images.sizes is None else images.sizes.tolist()
    sizes = [(int(tall), int(wide)) for tall, wide in own]
    found.parts[role] = Part(role, where, images.keys, bare, pixels=images.pixels, maps=labels, sizes=sizes)


def _names(labels: Tensor, classes: Sequence[str]) -> list[str]:
    """Return class names: empty for void (negative), the number itself for an unknown class."""
    known = dict(enumerate(classes))
    return ["" if label < 0 else known.get(label, str(label)) for label in labels.tolist()]


def _stored(config: Config) -> Found:
    """Return a survey with the storage settings for images from files."""
    findings: list[Finding] = []
    size, cache = knob(config, findings, "size"), knob(config, findings, "cache")
    found = Survey(memory_gb=memory_budget(knob(config, findings, "memory_gb")))
    found.shapes = {} if size is None else dict.fromkeys(ROLES, (3, size, size))
    found.cache = None if cache is None else Path(cache).expanduser()
    return found, findings
