"""Label Studio (community edition): push questions and pull answers through its REST API."""

from ducats.labelling.studio.api import Studio
from ducats.labelling.studio.client import Client
from ducats.labelling.studio.pull import Pulled, pull
from ducats.labelling.studio.push import Pushed, push
from ducats.labelling.studio.state import State
from ducats.labelling.studio.token import Token, find_token

__all__ = ["Client", "Pulled", "Pushed", "State", "Studio", "Token", "find_token", "pull", "push"]
