"""Exported captioners, for all tests that need one: an export takes seconds, so there is one."""

import contextlib
import io
import shutil

import pytest

from tellapart.__main__ import main
from tellapart.models.onnx import int8


class Exported:
    """What `tellapart export` wrote and said."""

    def __init__(self, source, folder):
        out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
        with contextlib.redirect_stdout(out):
            self.code = main(["export", str(source), "--out", str(folder)])
        self.source, self.folder, self.out = source, folder, out.buffer.getvalue().decode()


@pytest.fixture(scope="session")
def exported_model(small_model, tmp_path_factory):
    return Exported(small_model, tmp_path_factory.mktemp("exported") / "new" / "model")


@pytest.fixture(scope="session")
def int8_model(exported_model, tmp_path_factory):
    """The same folder with its graphs in 8 bits, small as their matrices are."""
    import onnx

    folder = tmp_path_factory.mktemp("int8") / "model"
    shutil.copytree(exported_model.folder, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(int8, "SMALLEST", 64)
        for name in ("encode.onnx", "step.onnx"):
            onnx.save(int8.quantised(onnx.load(folder / name)), folder / name)
    return folder
