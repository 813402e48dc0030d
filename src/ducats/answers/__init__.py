"""Questions to annotators and their answers. Does not import torch.

The annotation store is a run's ``questions`` folder. The run writes questions to it and reads labels from it.
The labelling page, CSV files and labelling tools read the questions and submit answers, in any order and from
several processes.
"""

from ducats.answers.answer import UNSURE_WORD, VOID_WORD, Answer, Kind
from ducats.answers.book import Book
from ducats.answers.desk import Desk, Taken
from ducats.answers.question import Place, Question, Sheet, Terms
from ducats.answers.rules import RULES, Standing, standing

__all__ = [
    "RULES",
    "UNSURE_WORD",
    "VOID_WORD",
    "Answer",
    "Book",
    "Desk",
    "Kind",
    "Place",
    "Question",
    "Sheet",
    "Standing",
    "Taken",
    "Terms",
    "standing",
]
