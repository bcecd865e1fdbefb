"""``python -m longlag`` is the command ``longlag``."""

from longlag.cli import app

if __name__ == "__main__":
    app(prog_name="longlag")
