"""Ways for people to answer: our page, and Label Studio. Reads and writes the desk; needs no torch."""
