"""Check that data and model fit the task: labels per image or per pixel."""

from collections.abc import Iterator

from ducats.config import Config

SEGMENTATION_DATASETS = frozenset(
    {"carla_camvid", "gtav_cityscapes", "segmentation_folders", "streets", "synthia_cityscapes"}
)
SEGMENTATION_MODELS = frozenset({"deeplab_v2", "deeplab_v3plus", "small_fcn"})


def task_mismatches(config: Config) -> Iterator[str]:
    """Yield messages about built-in components that do not fit the task; no data is read."""
    from ducats.data import DATASETS
    from ducats.models import MODELS

    data, model, is_segmentation = config.data.name, config.model.name, config.task.name == "segmentation"
    if data in DATASETS and (data in SEGMENTATION_DATASETS) != is_segmentation:
        yield (
            f"the data {data!r} has one label per image, but task.name is segmentation (set by methods such "
            "as ripu): start with -c segmentation and give data with label maps, or choose another --method"
            if is_segmentation
            else f"the data {data!r} has one label per pixel, but task.name is classification: start with "
            "-c segmentation, which provides matching settings"
        )
    elif model in MODELS and (model in SEGMENTATION_MODELS) != is_segmentation:
        yield (
            f"the model {model!r} outputs one class per image, but task.name is segmentation: start with "
            "-c segmentation, or set model.name=deeplab_v2, deeplab_v3plus or small_fcn"
            if is_segmentation
            else f"the model {model!r} outputs one class per pixel, but task.name is classification: set "
            "model.name=timm or small_cnn, or start with -c segmentation"
        )
    elif not is_segmentation and (config.evaluation.average_flipped or config.evaluation.miou_star_exclude):
        yield (
            "evaluation.average_flipped and evaluation.miou_star_exclude apply only to segmentation: remove "
            "them"
        )
