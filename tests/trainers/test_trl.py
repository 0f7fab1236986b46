"""The example of docs/trainers.md in a real run of TRL, on a vision-language model that is made here."""

import re
from pathlib import Path

import pytest
import torch

from support import tiny_vlms

pytest.importorskip("trl")
pytest.importorskip("datasets")

PAGE = Path(__file__).parents[2] / "docs" / "trainers.md"
EXAMPLE = re.search(r"```python grpo\n(.*?)```", PAGE.read_text(), re.S)[1]


@pytest.mark.slow
def test_the_grpo_example_trains_with_each_photos_own_rewards(tmp_path, six_photos, monkeypatch):
    from tellapart import trainers

    calls = []

    class Watched(trainers.reward_function):
        def __call__(self, completions, **columns):
            calls.append((self.__name__, completions, columns["photo"], super().__call__(completions, **columns)))
            return calls[-1][3]

    monkeypatch.setattr(trainers, "reward_function", Watched)
    torch.manual_seed(0)
    settings = {"use_cpu": True, "max_steps": 2, "report_to": "none", "logging_steps": 1, "disable_tqdm": True}
    model = tiny_vlms.llava(tmp_path / "llava")
    part = "{{ '<image>' if part['type'] == 'image' else part['text'] }} "
    template = f"{{% for m in messages %}}{{% for part in m['content'] %}}{part}{{% endfor %}}{{% endfor %}}"
    (model / "chat_template.jinja").write_text(template)
    names = {"POOL": str(six_photos.pool), "MODEL": str(model), "OUT": str(tmp_path / "out"), "SETTINGS": settings}
    exec(compile(EXAMPLE, str(PAGE), "exec"), names)

    log = names["trainer"].state.log_history
    assert sum("rewards/geg_avg/mean" in line for line in log) == 2
    assert all("rewards/repetition/mean" in line for line in log if "rewards/geg_avg/mean" in line)
    asked = [call for call in calls if call[0] == "geg_avg"]
    assert len(asked) == 2
    for _, completions, photos, scores in asked:
        assert sorted(map(photos.count, set(photos))) == [4, 4]  # G completions of each of two photos
        texts = [completion[-1]["content"] for completion in completions]
        wanted = [six_photos.gap(text, int(photo[-1])) for text, photo in zip(texts, photos, strict=True)]
        assert scores == pytest.approx(wanted, abs=1e-4)
        wrong = [six_photos.gap(t, (int(p[-1]) + 1) % 6) for t, p in zip(texts, photos, strict=True)]
        assert scores != pytest.approx(wrong, abs=1e-4)
