"""Check that data and model fit the task: labels per image or per pixel."""

from collections.abc import Iterator

from ducats.config import Config


def task_mismatches(config: Config) -> Iterator[str]:
    """Yield messages about components that are known not to fit the task; no data is read."""
    from ducats.data import resolve_dataset
    from ducats.models import model_names, resolve_model

    data, model, is_segmentation = config.data.name, config.model.name, config.task.name == "segmentation"
    if resolve_dataset(data).per_pixel is (not is_segmentation):
        yield (
            f"the data {data!r} has one label per image, but task.name is segmentation (set by methods such "
            "as ripu): start with -c segmentation and give data with label maps, or choose another --method"
            if is_segmentation
            else f"the data {data!r} has one label per pixel, but task.name is classification: start with "
            "-c segmentation, which provides matching settings"
        )
    elif resolve_model(model).per_pixel is (not is_segmentation):
        yield (
            f"the model {model!r} outputs one class per image, but task.name is segmentation: start with "
            f"-c segmentation, or set model.name={model_names(per_pixel=True)}"
            if is_segmentation
            else f"the model {model!r} outputs one class per pixel, but task.name is classification: set "
            f"model.name={model_names(per_pixel=False)}, or start with -c segmentation"
        )
    elif not is_segmentation and (config.evaluation.average_flipped or config.evaluation.miou_star_exclude):
        yield (
            "evaluation.average_flipped and evaluation.miou_star_exclude apply only to segmentation: remove "
            "them"
        )
