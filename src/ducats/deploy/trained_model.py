"""Load the model of a finished run."""

from dataclasses import dataclass
from pathlib import Path

import torch
from lightning_fabric import Fabric
from pydantic import ValidationError

from ducats.config import Config
from ducats.data.decoding import parse_value_range
from ducats.data.embedding_cache import EmbeddingCache
from ducats.models import EvidentialModel
from ducats.models.classifier import Classifier
from ducats.models.freezing import embedding_network
from ducats.run.checkpoint import load_model
from ducats.run.factory import make_model
from ducats.runfolder.run_folder import RunFolder
from ducats.training.embed import Embedder, fixed_views
from ducats.training.predictor import Predictor
from ducats.utils.errors import UserError
from ducats.utils.image_files import ValueRange


@dataclass(frozen=True)
class TrainedModel:
    """The model of a finished run, with its config and data format."""

    model: EvidentialModel
    config: Config
    classes: tuple[str, ...]
    size: tuple[int, int]  # height and width of the stored images
    channels: int
    run_folder: RunFolder

    @property
    def per_pixel(self) -> bool:
        """Whether the model predicts a class for each pixel."""
        return self.config.task.name == "segmentation"

    @property
    def value_range(self) -> ValueRange | None:
        """Values of black and white in images with more than 8 bits per value; None if not set."""
        return parse_value_range(self.config.data.params.get("range"))

    @property
    def embedding_cache(self) -> EmbeddingCache | None:
        """The cache of embeddings of a frozen backbone; None if the backbone was trained.

        Feature maps are large, and images are predicted once or twice, so segmentation stores none.
        """
        return EmbeddingCache() if isinstance(embedding_network(self.model.network), Classifier) else None

    def predictor(self, fabric: Fabric, *, seed: int = 0, stream: tuple[str, ...] = ("test",)) -> Predictor:
        """Return the model with the test view; see `Predictor` for the arguments."""
        return Predictor(
            model=fabric.setup(self.model),
            view=self.config.views.test,
            batch_size=self.config.engine.scoring_batch_size,
            fabric=fabric,
            seed=seed,
            stream=stream,
            embedder=self.embedder(fabric),
        )

    def embedder(self, fabric: Fabric) -> Embedder | None:
        """Return the frozen backbone with the cache of embeddings; None if the backbone was trained."""
        network, cache = embedding_network(self.model.network), self.embedding_cache
        if network is None or cache is None:
            return None
        return Embedder.build(network, fixed_views(self.config.views)[:1], fabric, cache)


def load_trained_model(folder: Path, *, trust_code: bool = False) -> TrainedModel:
    """Load the model of a finished run; the weight file cannot execute code.

    Args:
        trust_code: also import the code outside of ducats that the run's config names.
    """
    run_folder = RunFolder(folder)
    config, data = load_run_config(run_folder, trust_code=trust_code), run_folder.data_summary
    classes = run_folder.classes
    model = make_model(config, len(classes), data["channels"], is_resumable=True)
    model.network.load_state_dict(load_model(run_folder))
    if classes.groups is not None:
        model = EvidentialModel(model.unwrap(), model.evidence, classes.groups)
    height, width = data["size"] if isinstance(data["size"], list) else (data["size"], data["size"])
    return TrainedModel(model, config, classes.current, (height, width), data["channels"], run_folder)


def load_run_config(run_folder: RunFolder, *, trust_code: bool = False) -> Config:
    """Return the config of a run, finished or not; raise if it names untrusted code.

    A config is code: ``model.name`` may be any function that Python can import. Someone else's run folder
    must not call one unasked.
    """
    try:
        config = Config.model_validate(run_folder.identity)
    except ValidationError:
        raise UserError(
            f"{run_folder.path} was not made by `ducats run` of this version, so its model cannot be built "
            f"from {run_folder.config_path.name}; build it in Python and load the state dict "
            "ducats.load_model(RunFolder(folder)) into it"
        ) from None
    names = {
        **{kind: getattr(config, kind).name for kind in ("data", "model", "objective", "query", "oracle")},
        "train.schedule": config.train.schedule.name,
    }
    for kind, name in names.items():
        if ":" in name and not trust_code:
            raise UserError(
                f"{run_folder.config_path} has {kind}.name={name}, which is not part of ducats and would be "
                "executed; if you trust its author, add --trust-code (in Python: trust_code=True)"
            )
    return config


def supported_precision(trained: TrainedModel, device: str) -> str:
    """Return the precision of the run, or float32 if a CPU does not support it."""
    precision = trained.config.engine.precision
    gpu = device != "cpu" and torch.cuda.is_available()
    return "32-true" if precision == "16-mixed" and not gpu else precision
