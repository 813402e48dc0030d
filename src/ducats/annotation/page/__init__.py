"""Browser page on which annotators answer a run's questions, mostly by keyboard."""
