"""Questions to people and what they answered. Needs no torch: pages, tools and reports read it.

A run's ``questions`` folder is the desk: the run lays questions on it and takes labels from it; our page, CSV
files and labelling tools read the questions and hand in answers, in any order and from several processes.
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
