"""Questions to annotators and their answers. Does not import torch.

The annotation store is a run's ``questions`` folder. The run writes questions to it and reads labels from it.
The labelling page, CSV files and labelling tools read the questions and submit answers, in any order and from
several processes.
"""

from ducats.annotation.answer import UNSURE_WORD, VOID_WORD, Answer
from ducats.annotation.answer_log import AnswerLog
from ducats.annotation.question import Question, QuestionArea, QuestionRound, RoundRules
from ducats.annotation.rules import VOTING_RULES, QuestionStatus, question_status
from ducats.annotation.store import AnnotationStore

__all__ = [
    "UNSURE_WORD",
    "VOID_WORD",
    "VOTING_RULES",
    "AnnotationStore",
    "Answer",
    "AnswerLog",
    "Question",
    "QuestionArea",
    "QuestionRound",
    "QuestionStatus",
    "RoundRules",
    "question_status",
]
