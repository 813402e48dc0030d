import inspect
import subprocess
import sys
from functools import partial
from typing import get_type_hints

import pytest

from ducats.data.domain import AdaptationData
from ducats.data.registry import DATASETS


@pytest.mark.parametrize("name", DATASETS)
def test_contract(name: str) -> None:
    load = DATASETS[name].load
    function = load.func if isinstance(load, partial) else load
    assert get_type_hints(function)["return"] is AdaptationData
    kinds = {parameter.kind for parameter in inspect.signature(load).parameters.values()}
    assert kinds == {inspect.Parameter.KEYWORD_ONLY}
    assert (function.__doc__ or "").strip()


def test_import_is_light() -> None:
    heavy = "{'torchvision', 'sklearn', 'matplotlib', 'pyarrow', 'timm'}"
    code = f"import sys, ducats.data.registry; print(sorted({heavy} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
