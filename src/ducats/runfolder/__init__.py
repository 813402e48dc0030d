"""The files of a run: read and written here."""
