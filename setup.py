"""What pyproject.toml cannot say: a build knows its commit, and a source archive is the same bytes each time.

Wheels are the same bytes by themselves if SOURCE_DATE_EPOCH is set (`make package` sets it to the commit's time).
"""

import gzip
import os
import runpy
import tarfile
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = Path(__file__).parent
os.umask(0o022)  # archives keep the permissions of files


def write_commit(package: Path) -> None:
    commit = runpy.run_path(str(HERE / "src" / "tellapart" / "version.py"))["commit"]()
    if commit:
        package.mkdir(parents=True, exist_ok=True)
        (package / "commit.txt").write_text(f"{commit}\n", encoding="ascii")


class BuildPackage(build_py):
    def run(self):
        super().run()
        if not self.editable_mode:  # a working copy asks git
            package = Path(self.build_lib) / "tellapart"
            write_commit(package)
            for file in package.rglob("*"):
                file.chmod(0o755 if file.is_dir() else 0o644)


class SourceArchive(sdist):
    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        write_commit(Path(base_dir) / "src" / "tellapart")

    def make_archive(self, base_name, format, root_dir=None, base_dir=None, owner=None, group=None):
        """In order of names, by nobody, of one time."""
        time = int(os.environ.get("SOURCE_DATE_EPOCH", "315532800"))

        def plain(entry):
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mtime = time
            entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
            return entry

        name = f"{base_name}.tar.gz"
        with (
            Path(name).open("wb") as file,
            gzip.GzipFile("", "wb", mtime=time, fileobj=file) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for path in sorted([Path(base_dir), *Path(base_dir).rglob("*")]):
                archive.add(path, recursive=False, filter=plain)
        return name


setup(cmdclass={"build_py": BuildPackage, "sdist": SourceArchive})
