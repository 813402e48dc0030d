"""Whether data, model and task speak of the same thing: a label for each image, or for each pixel."""

from collections.abc import Iterator

from ducats.config import Config

DATA_WITH_MAPS = frozenset(
    {"carla_camvid", "gtav_cityscapes", "map_folders", "streets", "synthia_cityscapes"}
)
MODELS_OF_PIXELS = frozenset({"deeplab_v2", "deeplab_v3plus", "small_fcn"})


def misfits(config: Config) -> Iterator[str]:
    """What does not fit the task, in sentences, by the names of our own parts; nothing is read."""
    from ducats.data import DATASETS
    from ducats.models import MODELS

    data, model, pixels = config.data.name, config.model.name, config.task.name == "segmentation"
    if data in DATASETS and (data in DATA_WITH_MAPS) != pixels:
        yield (
            f"the data {data!r} has a label for each image, but task.name is segmentation, which buys pixels "
            "(methods such as ripu set it): begin with -c segmentation and give data with label maps, or "
            "choose another --method"
            if pixels
            else f"the data {data!r} has a label for each pixel, but task.name is classification: begin with "
            "-c segmentation, which brings the fitting settings"
        )
    elif model in MODELS and (model in MODELS_OF_PIXELS) != pixels:
        yield (
            f"the model {model!r} says one class for an image, but task.name is segmentation: begin with "
            "-c segmentation, or set model.name=deeplab_v2, deeplab_v3plus or small_fcn"
            if pixels
            else f"the model {model!r} says a class for each pixel, but task.name is classification: set "
            "model.name=timm or small_cnn, or begin with -c segmentation"
        )
    elif not pixels and (config.evaluation.flip or config.evaluation.star_without):
        yield "evaluation.flip and evaluation.star_without are for segmentation: leave them out"
