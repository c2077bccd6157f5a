"""`python -m llm_batch …` is `llm-batch …`."""

import os
import sys

from . import program


def main() -> None:
    os.execvp(program(), ["llm-batch", *sys.argv[1:]])


if __name__ == "__main__":
    main()
