"""Survey the data: list images, labels and sizes of source, target and test set."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from torch import Tensor

from ducats.config import Config
from ducats.data import DatasetSpec, resolve_dataset
from ducats.data.benchmarks import class_order, list_task
from ducats.data.decoding import memory_budget
from ducats.data.domain import AdaptationData, Images, Labels
from ducats.data.evaluation_split import same_images
from ducats.data.folders import check_disjoint, existing_folder, list_images
from ducats.data.manifest import ManifestRow, scan_manifest
from ducats.data.segmentation import SegmentationReader
from ducats.doctor.finding import Finding, collect_findings, join_names, join_quoted
from ducats.doctor.segmentation_files import survey_segmentation_files
from ducats.doctor.survey_result import (
    ROLES,
    DataSurvey,
    SplitRole,
    SplitSurvey,
    SurveyResult,
    get_data_param,
)
from ducats.utils.errors import UserError

MAX_ROWS_NAMED = 20  # maximum number of manifest rows that are reported one by one


def survey_data(config: Config) -> SurveyResult:
    """Survey the data as far as it is readable, and report what is not."""
    try:
        spec = resolve_dataset(config.data.name)
    except UserError as error:
        return DataSurvey(), [Finding("error", str(error))]
    survey, findings = _surveyor(spec)(config)
    if survey.splits and spec.benchmark is not None:
        survey.expected_counts = spec.benchmark.expected_counts(get_data_param(config, findings, "task"))
    return survey, findings


def _surveyor(spec: DatasetSpec) -> Callable[[Config], SurveyResult]:
    if spec.file_layout is not None:
        return _survey_folders if spec.file_layout == "class_folders" else _survey_manifest
    if spec.benchmark is not None and spec.benchmark.list_files is not None:
        return _survey_benchmark
    return survey_segmentation_files if isinstance(spec.load, SegmentationReader) else _survey_built


def _survey_folders(config: Config) -> SurveyResult:
    """Survey class folders."""
    survey, findings = _storage_survey(config)
    survey.has_ground_truth = get_data_param(config, findings, "ground_truth") or False
    folders: dict[SplitRole, Path] = {}
    for role in ROLES:
        path = get_data_param(config, findings, role)
        if path is not None:
            findings += collect_findings(_add_folder(survey, folders, role, Path(path)))
    if "source" in folders and "target" in folders:
        test = folders.get("test")
        survey.target_is_test = test is not None and test.resolve() == folders["target"].resolve()
        findings += collect_findings(_check_disjoint(folders["source"], folders["target"], test))
    return survey, findings


def _add_folder(
    survey: DataSurvey, folders: dict[SplitRole, Path], role: SplitRole, path: Path
) -> Iterator[Finding]:
    """Add the images of a folder to the survey; report images outside class folders."""
    folder = folders[role] = existing_folder(role, path)
    images = list_images(folder)
    labelled = role != "target" or survey.has_ground_truth
    labels = [key.partition("/")[0] if labelled and "/" in key else "" for key, _ in images]
    description = f"the {role} folder {folder}"
    paths = [file for _, file in images]
    survey.splits[role] = SplitSurvey(role, description, [str(file) for file in paths], labels, paths)
    if not labelled or not images:
        return
    outside = [key for key, _ in images if "/" not in key]
    if outside:
        yield Finding(
            "error",
            f"{description} has {len(outside)} images outside class folders, such as {outside[0]}; "
            "move each into a subfolder named after its class",
        )
    subfolders = {
        entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")
    }
    empty = sorted(subfolders - set(labels))
    if empty:
        yield Finding(
            "error",
            f"{description} has class folders without images: {join_quoted(empty)}; add images or remove the "
            "folders",
        )


def _check_disjoint(source: Path, target: Path, test: Path | None) -> Iterator[Finding]:
    check_disjoint(source, target, test)
    yield from ()  # errors are raised


def _survey_manifest(config: Config) -> SurveyResult:
    """Survey the rows of a manifest."""
    survey, findings = _storage_survey(config)
    path = get_data_param(config, findings, "path")
    if path is None:
        return survey, findings
    manifest = Path(path).expanduser()
    try:
        rows, problems = scan_manifest(manifest)
    except (UserError, OSError) as error:
        return survey, [*findings, Finding("error", str(error))]
    findings += [Finding("error", problem) for problem in problems[:MAX_ROWS_NAMED]]
    if len(problems) > MAX_ROWS_NAMED:
        findings.append(
            Finding(
                "error",
                f"{manifest} has {len(problems) - MAX_ROWS_NAMED} more bad rows; fix the others first",
            )
        )
    if not rows:
        return survey, findings
    for role in ROLES:
        role_rows = [row for row in rows if _row_role(row) == role]
        if role_rows or role != "test":
            description = f"the {role} rows of {manifest}"
            names, labels = [str(row.path) for row in role_rows], [row.label for row in role_rows]
            survey.splits[role] = SplitSurvey(
                role, description, names, labels, [row.path for row in role_rows]
            )
    paths = {role: [row.path for row in rows if _row_role(row) == role] for role in ("target", "test")}
    survey.target_is_test = bool(paths["test"]) and paths["test"] == paths["target"]
    unlabelled = [row for row in rows if _row_role(row) == "target" and not row.label]
    pool = len(survey.splits["target"])
    survey.has_ground_truth = not unlabelled if pool else None
    if 0 < len(unlabelled) < pool:
        findings.append(
            Finding(
                "error",
                f"{manifest}: {len(unlabelled)} of {pool} target rows lack a label "
                f"({join_names([row.line_label for row in unlabelled])}); label all of them, or none",
            )
        )
    return survey, findings


def _survey_benchmark(config: Config) -> SurveyResult:
    """Survey the files of a benchmark task."""
    survey, findings = _storage_survey(config)
    root, task = (get_data_param(config, findings, name) for name in ("root", "task"))
    if root is None or task is None:
        return survey, findings
    benchmark = resolve_dataset(config.data.name).benchmark
    assert benchmark is not None
    try:
        task_files = list_task(benchmark, root, task)
    except UserError as error:
        return survey, [*findings, Finding("error", str(error))]
    for role, file_list in task_files.by_role.items():
        paths = [path for _, path in file_list.files]
        survey.splits[role] = SplitSurvey(
            role, file_list.description, [str(path) for path in paths], file_list.labels, paths
        )
    survey.has_ground_truth = True
    try:
        survey.classes = class_order(benchmark, task_files)
    except UserError as error:
        findings.append(Finding("error", str(error)))
    return survey, findings


def _row_role(row: ManifestRow) -> SplitRole:
    return "test" if row.split == "test" else "source" if row.domain == "source" else "target"


def _survey_built(config: Config) -> SurveyResult:
    """Build a data set that is not read from files, and survey it."""
    try:
        from ducats.run.factory import load_data

        data = load_data(config)
        if not isinstance(data, AdaptationData):
            raise TypeError(f"it returned {type(data).__name__}, not AdaptationData")
    except UserError as error:
        return DataSurvey(), [Finding("error", str(error))]
    except Exception as error:  # user code, or a parameter of an unexpected type
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        problem = f"the data set {config.data.name!r} cannot be built ({reason})"
        return DataSurvey(), [Finding("error", f"{problem}; check data.params: {config.data.params}")]
    survey = DataSurvey(has_ground_truth=data.ground_truth is not None, per_pixel=data.source.per_pixel)
    classes = data.classes
    if survey.per_pixel:
        survey.classes = classes
    _add_split(survey, "source", data.source.images, data.source.labels, classes)
    _add_split(survey, "target", data.pool, data.ground_truth, classes)
    if data.test is not None:
        _add_split(survey, "test", data.test.images, data.test.labels, data.test.classes)
        survey.target_is_test = same_images(data.test.images, data.pool)
    return survey, []


def _add_split(
    survey: DataSurvey, role: SplitRole, images: Images, labels: Labels | None, classes: Sequence[str]
) -> None:
    channels, height, width = images.pixels.shape[1:]
    survey.stored_shapes[role] = (channels, height, width)
    no_labels, description = [""] * len(images), f"the {role}"
    if not survey.per_pixel:
        class_names = no_labels if labels is None else _class_names(labels[:], classes)
        survey.splits[role] = SplitSurvey(role, description, images.keys, class_names, pixels=images.pixels)
        return
    original_sizes = (
        [(height, width)] * len(images) if images.original_sizes is None else images.original_sizes.tolist()
    )
    sizes = [(int(image_height), int(image_width)) for image_height, image_width in original_sizes]
    survey.splits[role] = SplitSurvey(
        role,
        description,
        images.keys,
        no_labels,
        pixels=images.pixels,
        label_maps=labels,
        original_sizes=sizes,
    )


def _class_names(labels: Tensor, classes: Sequence[str]) -> list[str]:
    """Return class names: empty for void (negative), the number itself for an unknown class."""
    names_by_index = dict(enumerate(classes))
    return ["" if label < 0 else names_by_index.get(label, str(label)) for label in labels.tolist()]


def _storage_survey(config: Config) -> SurveyResult:
    """Return a survey with the storage settings for images from files."""
    findings: list[Finding] = []
    size, cache = get_data_param(config, findings, "size"), get_data_param(config, findings, "cache")
    survey = DataSurvey(memory_gb=memory_budget(get_data_param(config, findings, "memory_gb")))
    survey.stored_shapes = {} if size is None else dict.fromkeys(ROLES, (3, size, size))
    survey.cache = None if cache is None else Path(cache).expanduser()
    return survey, findings
