"""A run that was trained over another model names its base; it does not decide what is read from this machine."""

import pytest

from capscore.errors import UserError
from tellapart.models import _allowed


@pytest.mark.parametrize("name", ["../secret", "models/../../secret", "secret", "/elsewhere/secret"])
def test_a_base_outside_of_the_folder_is_refused(tmp_path, monkeypatch, name):
    (tmp_path / "here" / "secret").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(UserError, match="does not decide what is read"):
        _allowed(name, tmp_path / "sent" / "run")


def test_embedded_models_hub_ids_and_neighbours_are_bases(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("plain", "Salesforce/blip-image-captioning-base", str(tmp_path / "before")):
        assert _allowed(name, tmp_path / "run") == name
