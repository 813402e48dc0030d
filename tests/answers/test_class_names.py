"""Names of classes that people could not say, or that would mean something else."""

from pathlib import Path

import pytest

from ducats.answers.answer import kind_of
from ducats.data import toy
from ducats.errors import UserError
from ducats.oracles import People


@pytest.mark.parametrize("name", ["void", "Unsure", "skip"])
def test_a_class_that_is_called_like_another_answer_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=name):
        People(tmp_path, toy().pool, ["cat", name])


@pytest.mark.parametrize("word", ["cat ", "cat", " CAT"])
def test_a_folder_with_a_space_at_its_end_is_a_class_that_can_be_said(word: str) -> None:
    assert kind_of(word, ["cat ", "dog"]) == ("class", "cat ")
