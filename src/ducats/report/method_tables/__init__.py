"""Tables of methods by tasks, with published results and paired tests."""
