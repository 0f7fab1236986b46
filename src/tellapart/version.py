"""The version, kept apart so that asking for it imports nothing else."""

__version__ = "0.1.0"


def commit() -> str:
    """The commit that this is a build of, or a working copy of; "" if unknown."""
    import subprocess
    from pathlib import Path

    here = Path(__file__).parent
    if (built := here / "commit.txt").is_file():  # setup.py writes it into wheels and source archives
        return built.read_text(encoding="ascii").strip()
    if not (here.parents[1] / ".git").exists():  # or git would name the commit of whatever folder this is installed in
        return ""
    ask = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(ask, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):  # no git here
        return ""
