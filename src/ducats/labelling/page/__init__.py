"""Our page: one screen in a browser, at which a person answers a run's questions, mostly by keys."""
