"""Survey the files of a segmentation data set; nothing is decoded."""

import inspect
from pathlib import Path

from ducats.config import Config
from ducats.data import resolve_dataset
from ducats.data.decoding import displayed_size, memory_budget
from ducats.data.segmentation import LabelEncoding, SegmentationListing, SegmentationReader, SplitFiles
from ducats.data.store import ReadFailure, try_files
from ducats.doctor.finding import Finding
from ducats.doctor.survey_result import DataSurvey, SplitRole, SplitSurvey, SurveyResult, get_data_param
from ducats.utils.errors import UserError


def survey_segmentation_files(config: Config) -> SurveyResult:
    """Survey folders of images and label files."""
    findings: list[Finding] = []
    survey, data = DataSurvey(per_pixel=True), config.data
    reader = resolve_dataset(data.name).load
    assert isinstance(reader, SegmentationReader)
    memory_gb, cache = (get_data_param(config, findings, name) for name in ("memory_gb", "cache"))
    survey.memory_gb = memory_budget(memory_gb)
    survey.cache = None if cache is None else Path(cache).expanduser()
    parameters = inspect.signature(reader).parameters
    required = [name for name, parameter in parameters.items() if parameter.default is parameter.empty]
    if not all(map(data.params.get, required)) or not data.params.keys() <= parameters.keys():
        return survey, findings  # reported elsewhere
    try:
        listing: SegmentationListing = reader.list_files(**data.params)
        shapes = listing.stored_sizes
    except UserError as error:
        return survey, [*findings, Finding("error", str(error))]
    except Exception as error:  # a parameter of an unexpected type
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        problem = f"the files of the data set {data.name!r} cannot be listed ({reason})"
        return survey, [*findings, Finding("error", f"{problem}; check data.params: {data.params}")]
    survey.classes = listing.encodings[0].classes
    survey.has_ground_truth = listing.pool_files.labels is not None
    _add_split(survey, findings, "source", listing.source_files, listing.encodings[0], shapes[0])
    _add_split(survey, findings, "target", listing.pool_files, listing.encodings[1], shapes[1])
    if listing.test_files is not None:
        _add_split(survey, findings, "test", listing.test_files, listing.encodings[1], shapes[1])
        survey.target_is_test = _same_images(listing.pool_files, listing.test_files)
    return survey, findings


def _add_split(
    survey: DataSurvey,
    findings: list[Finding],
    role: SplitRole,
    files: SplitFiles,
    encoding: LabelEncoding,
    shape: tuple[int, int],
) -> None:
    findings += [Finding("error", problem) for problem in files.problems]
    paths = [path for _, path in files.images]
    sizes = [None if isinstance(size, ReadFailure) else size for size in try_files(displayed_size, paths)]
    labels, masks = ([path for _, path in file_list or ()] for file_list in (files.labels, files.masks))
    survey.stored_shapes[role] = (3, *shape)
    survey.splits[role] = SplitSurvey(
        role,
        f"the {role}",
        [str(path) for path in paths],
        [""] * len(paths),
        paths,
        label_files=labels,
        mask_files=masks,
        encoding=encoding,
        original_sizes=sizes,
    )


def _same_images(first: SplitFiles, second: SplitFiles) -> bool:
    """Return whether two sets are the same images, even if given by different paths."""
    keys = [[key for key, _ in files.images] for files in (first, second)]
    return bool(keys[0]) and keys[0] == keys[1] and first.images[0][1].samefile(second.images[0][1])
