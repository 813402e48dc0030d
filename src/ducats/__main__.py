"""``python -m ducats``."""

from ducats.cli import main

if __name__ == "__main__":
    main()
