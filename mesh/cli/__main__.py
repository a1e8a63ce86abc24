"""``python -m mesh.cli``: the console script, where no script is on PATH."""

from mesh.cli import main

if __name__ == "__main__":
    main()
