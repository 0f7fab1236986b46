import sys

from capscore.command import run

if __name__ == "__main__":
    sys.exit(run())
