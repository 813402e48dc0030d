"""Reserved and unusual class names."""

from pathlib import Path

import pytest

from ducats.annotation.answer import parse_word
from ducats.annotation.oracles import HumanOracle
from ducats.data import toy
from ducats.utils.errors import UserError


@pytest.mark.parametrize("name", ["void", "Unsure", "skip"])
def test_a_reserved_class_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=name):
        HumanOracle(tmp_path, toy().pool, ["cat", name])


@pytest.mark.parametrize("word", ["cat ", "cat", " CAT"])
def test_a_class_name_with_a_trailing_space_matches(word: str) -> None:
    assert parse_word(word, ["cat ", "dog"]) == ("class", "cat ")
