"""Networks that get logits for new classes."""

import pytest
import torch
from torch import Tensor, nn

from ducats.models.growing import grow_classes, grow_tensor
from ducats.utils.errors import UserError


class TwoHeads(nn.Module):
    """Parallel layers whose outputs are added, after a layer with as many outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Conv2d(3, 4, 1)
        self.heads = nn.ModuleList([nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 1, bias=False)])

    def forward(self, images: Tensor) -> Tensor:
        features = self.trunk(images)
        logits: Tensor = self.heads[0](features) + self.heads[1](features)
        return logits


@pytest.mark.parametrize(
    "network", [nn.Sequential(nn.Flatten(), nn.Linear(48, 4), nn.ReLU(), nn.Linear(4, 4)), TwoHeads()]
)
def test_a_new_logit_has_no_evidence_and_changes_no_other(network: nn.Module) -> None:
    images = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    before = network(images)
    grow_classes(network, 4, 6)
    after = network(images)
    assert after.shape[1] == 6
    torch.testing.assert_close(after[:, :4], before)
    assert not after[:, 4:].any()


def test_networks_without_such_a_layer_say_so() -> None:
    with pytest.raises(UserError, match=r"grow_classes\(classes\)"):
        grow_classes(nn.Linear(3, 5), 4, 5)
    with pytest.raises(ValueError, match="cannot grow"):
        grow_tensor(torch.zeros(3), torch.Size([2]))
