"""Monitor runs from their folders. Imports no torch."""
