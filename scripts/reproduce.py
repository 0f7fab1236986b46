"""The embedded captioners `plain` and `distinctive` again, from photos and captions to packed models: `make reproduce`.

    python scripts/reproduce.py DATA --detector yolox_nano.onnx --out reproduced

DATA has flickr8k/captions.json, coco/captions.json and text/{flickr30k,coco}.json.gz; with msrvtt/captions.json beside
them `clips` is made as well.  An hour and a half on two cores.  Started again, it goes on where it stopped.  Another
--seed, with another --out, shows how much chance decides.  The package is changed only with --bundle, at the end.
"""

import argparse
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

EMBEDDED = {  # by run
    "distinctive/word": "word",
    "plain/plain": "plain",
    "distinctive/distinctive": "distinctive",
    "clips": "clips",
}


def run(*command: object, folder: Path) -> None:
    """A command of tellapart, or a script, inside a folder."""
    words = [str(word) for word in command]
    print("$", *words, flush=True)
    program = [] if words[0].endswith(".py") else ["-m", "tellapart"]
    if code := subprocess.run([sys.executable, *program, *words], cwd=folder, check=False).returncode:
        sys.exit(f"{words[0]} ended with {code}; the same command continues from here.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--detector", required=True, help="a YOLOX export of COCO's classes")
    parser.add_argument("--out", type=Path, default=Path("reproduced"), help="its folder runs/ gets everything")
    parser.add_argument("--seed", type=int, default=0, help="added to the seeds of all runs, such as 100 (default: 0)")
    parser.add_argument("--split", default="test", help="photos of the table; val: to choose by (default: test)")
    parser.add_argument("--bundle", action="store_true", help="put the models into the package")
    request = parser.parse_args()
    began, data, detector = time.monotonic(), request.data.absolute(), Path(request.detector).absolute()
    request.out.mkdir(parents=True, exist_ok=True)
    tellapart = partial(run, folder=request.out)
    photos = [data / name / "captions.json" for name in ("flickr8k", "coco")]
    texts = [data / "text" / f"{name}.json.gz" for name in ("flickr30k", "coco")]
    test_photos = ["--data.exclude", f"[{', '.join(map(str, photos))}]"]

    again = ["--seed", request.seed, "--resume"]
    both = ["--threads", 2]  # nothing runs beside it
    tellapart("train", "retrievers/text", "--data", *texts, *test_photos, *both, *again, "--out", "runs/text")
    settings = ["--data", *photos, "--data.features", "runs/features", "--jobs", 2, *again]
    tellapart("train", "album/plain", *settings, "--out", "runs/plain")
    rewards = ["--detector", detector, "--objective.rewards.fluency_text", f"[{', '.join(map(str, texts))}]"]
    tellapart("train", "album/distinctive", *settings, *rewards, "--out", "runs/distinctive")
    models = ["runs/plain/plain", "runs/distinctive/distinctive"]
    how = ["--split", request.split, "--features", "runs/features", "--detector", detector]
    how += ["--retriever", "runs/distinctive/word", "judge", "--against", models[0], "--out", f"runs/{request.split}"]
    tellapart("evaluate", *models, "human", "--data", *photos, *how)
    clips = data / "msrvtt" / "captions.json"
    if clips.exists():
        features = ["--data.features", "runs/features"]
        tellapart("train", "album/clips", "--data", *photos, clips, *features, *again, "--out", "runs/clips")
    if request.bundle:
        scripts, runs = Path(__file__).absolute().parent, request.out.absolute() / "runs"
        tellapart(scripts / "bundle_encoder.py", "efficientnet_lite2_tuned", runs / "plain" / "tuned")
        for stage, name in EMBEDDED.items():
            if (runs / stage).exists():
                tellapart(scripts / "bundle_model.py", runs / stage, name)
    print(f"done after {(time.monotonic() - began) / 60:.0f} minutes")


if __name__ == "__main__":
    main()
