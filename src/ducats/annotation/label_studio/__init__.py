"""Label Studio (community edition): push questions and pull answers through its REST API."""

from ducats.annotation.label_studio.api import LabelStudio
from ducats.annotation.label_studio.client import JsonClient
from ducats.annotation.label_studio.pull import PullResult, pull_answers
from ducats.annotation.label_studio.push import PushResult, push_questions
from ducats.annotation.label_studio.sync_state import SyncState
from ducats.annotation.label_studio.token import ApiToken, load_token

__all__ = [
    "ApiToken",
    "JsonClient",
    "LabelStudio",
    "PullResult",
    "PushResult",
    "SyncState",
    "load_token",
    "pull_answers",
    "push_questions",
]
