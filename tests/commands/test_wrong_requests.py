"""One table of wrong requests: each is answered by one sentence with a word that helps, exit 2, and nothing written."""

import json

import pytest
import yaml
from PIL import Image

from capscore import progress
from evaluation import world
from support import region_archives as archives
from support.written import put

SERVER = "--endpoint http://localhost:1/v1 --endpoint-model m"
BU = "--from regions.tsv --name bu"
WRONG = {
    "adapt photos": [
        ("--minutes 0", "must be a number from 0.5 to 100000, not '0'"),
    ],
    "alt .": [
        ("--ignore nothing", "there is no rule 'nothing'"),
    ],
    "caption x.jpg": [
        ("--model nothere", "there is no model 'nothere'"),
        ("--beam 0", "--beam"),
        ("--beam x", "--beam"),
        ("--out o.txt", ".jsonl, .csv or .json"),
        ("--out o.json", "COCO results need image ids"),
        ("--out said.json", "is no file of COCO results"),
        ("--out table.csv", "exists and is no file of captions"),
        ("--colour", "--colour"),
        ("--min-words 0", "must be a whole number above 0"),
        ("--among . --k 0", "must be a whole number"),
        ("--among . --strength much", "must be a number"),
        ("--among . --strength -1", "must be a number"),
        ("--among . --contrast letters", "invalid choice"),
        *((f"--segments={text}", "--segments") for text in ("scenes", "0", "-1", "nan")),
        # what needs another option
        *((f"--{option}", f"--{option.split()[0]} needs --among") for option in (
            "retriever word", "k 3", "strength 1", "fluency 1", "candidates f", "contrast words", "bursts share")),
        *((f"--{name} 5", f"--{name} needs --endpoint") for name in ("api-key-env", "max-tokens", "max-requests")),
        *((f"--{name} 5", f"--{name} needs --contrast prompt") for name in ("contrast-prompt", "answers", "images")),
        ("--language German", "--language needs --endpoint"),
        ("--endpoint http://localhost:1", "--endpoint needs --endpoint-model"),
        ("--endpoint-model m", "--endpoint-model needs --endpoint"),
        *((f"--diversity {value}", "--diversity needs --diverse") for value in (0, 1)),
        ("--diverse 2 --model MODEL", "it needs --n-best, to list them, or --among"),
        ("--interval 3", "--interval needs --watch"),
        ("--again", "--again needs --out"),
        ("--again --out x.srt", "--again needs --out F.jsonl"),
        ("--watch", "--watch needs --out F.jsonl or F.csv"),
        ("--watch --out o.json", "--watch needs --out F.jsonl or F.csv"),
        ("--line-length 20", "--line-length is about subtitles: --out F.srt or F.vtt"),
        ("b.mkv --out x.srt --model MODEL", "--out x.srt: subtitles are those of one clip, not of 2."),
        ("--prompt words --model plain", "--prompt"),
        ("--dtype bf16", "--dtype"),
        ("--min-words 20 --model MODEL", "captions have room for 19 words"),
        # what does not go together
        *((f"--candidates f --among . --{name} 2", f"--candidates and --{name} cannot be combined") for name in (
            "model", "prompt", "n-best", "min-words", "no-repeat", "diverse")),
        *((f"{SERVER} --{name} 2", f"--endpoint and --{name} cannot be combined") for name in (
            "model", "n-best", "min-words", "no-repeat", "diverse")),
        ("--candidates f --among . --contrast words", "--contrast words needs a model"),
        ("--candidates f --among . --contrast prompt", "--contrast prompt needs a model"),
        (f"{SERVER} --among . --contrast words", "word by word"),
        ("--ray --among . --contrast words", "word by word"),
        (f"--ray {SERVER}", "--ray and --endpoint cannot be combined"),
        ("--ray --candidates f --among .", "--ray and --candidates cannot be combined"),
        ("--watch --out o.jsonl --n-best 2", "--watch and --n-best cannot be combined"),
        ("--n-best 3 --among .", "--n-best and --among cannot be combined"),
        ("--n-best 3 --context", "--n-best and --context cannot be combined"),
        ("--n-best 3 --style tags", "--n-best and --style cannot be combined"),
        ("--context --among . --contrast words", "--context and --contrast words cannot be combined"),
        ("--diverse 2 --among . --contrast words --model MODEL", "two ways to search"),
    ],
    "check": [
        ("", "--plugin"),
    ],
    "compare": [
        ("", "required: RUN"),
        ("photos", "is not a run folder"),
        ("nothere", "is not a run folder"),
        ("run run", "is named twice"),
        ("run --data x.json", "--data needs --out"),
        ("run --photos 3 --out out", "--photos needs --data"),
        ("run --attention 3 --out out", "--attention needs --data"),
        ("run --photos 0", "above 0"),
        ("run --evaluation photos --out out", "results.json: there is no such file"),
        ("run --data world/data.json --split no --out out", "has no split 'no'"),
    ],
    "demo": [
        *((f"--out {out}", f"--out {out}: this, or a folder above it, is a file") for out in ("old.json", "old.json/x"))
    ],
    "evaluate": [
        ("exact.json", "--data"),
        ("exact.json --data nothere.json", "nothere.json: there is no such file"),
        ("exact.json --data world/data.json --split val", "has no split 'val'"),
        ("nothere --data world/data.json", "there is no model 'nothere'"),
        ("nothere.json --data world/data.json", "nothere.json: there is no such file"),
        ("exact.json ./exact.json --data world/data.json", "exact.json is named twice"),
        ("exact.json --data world/data.json world/data.json", "both called 'world'"),
        ("exact.json --data world/data.json --retriever nothere", "there is no retriever 'nothere'"),
        ("exact.json --data world/data.json --retriever word word", "two that are called 'word'"),
        ("exact.json --data world/data.json --retriever text minilm", "both go by references"),
        ("exact.json --data world/data.json --against plain", "--against plain: this is none of the models"),
        ("exact.json --data world/data.json --metrics CIDRE", "there is no metric 'CIDRE'"),
        ("exact.json --data world/data.json --near-duplicates 7", "--near-duplicates"),
        ("exact.json --data world/data.json --self-retrieval", "none of the models is a captioner"),
        ("exact.json --data world/data.json --attention 2", "--attention needs --out"),
        ("exact.json --data world/data.json --word dog --out out", "--word needs --attention"),
        ("exact.json --data world/data.json --training nothing.json", "nothing.json"),
        ("empty.json --data world/data.json", "empty.json: has no caption for the photos of world"),
        ("world/data.json --data world/data.json", "holds references"),
        ("human --data world", "human: has no reference for the photos of w"),
        ("exact.json --data world/data.json --out exact.json", "exact.json is not a folder"),
        ("exact.json --data world/data.json --out exact.json/out", "exact.json"),
        ("exact.json --data world/data.json --photos 0", "above 0"),
    ],
    "features pets.json": [
        ("--from regions.tsv", "--from needs --name"),
        ("--name bottom_up", "--name needs --from."),
        ("--cap 3", "--cap needs --from."),
        (f"{BU} --grid 3", "--grid is for an encoder"),
        ("--from regions.tsv --name ../away", "--name '../away': letters, digits"),
        ("--from regions.tsv --name resnet50", "--name resnet50: this is the name of an encoder."),
        ("--from nowhere.tsv --name bu", "nowhere.tsv: there is no such file or folder."),
        ("--from pets.json --name bu", "pets.json: features are read from .npz"),
        ("--from nothing --name bu", "nothing: there are no features in this folder"),
        ("--from other.tsv --name bu", "'flickr-1' there and '0' here"),
        ("--encoder eye", "there is no encoder 'eye'"),
        ("--pooling median", "median"),
        ("--image-size 31", "image_size must be from 32"),
        ("--image-size big", "'big'"),
        ("--grid 0", "'0'"),
        ("--device toaster", "device 'toaster' cannot be used here"),
        ("--threshold 0.5", "--threshold needs --attributes"),
        ("--attributes 3", "--attributes needs --encoder"),
        ("--attributes 3 --encoder word --grid 2", "--grid is for features; --attributes are computed"),
        ("--detected 4", "--detected needs --detector, which finds the boxes."),
        ("--detector d.onnx --ray", "--detector and --ray cannot be combined"),
        (f"{BU} --detector d.onnx", "--detector is for an encoder"),
    ],
    "lint": [
        ("", "CAPTIONS"),
        ("nothere.json", "nothere.json: there is no such file"),
        ("said.json --ignore shard", "there is no rule 'shard'; the rules are missing,"),
        ("said.json --out said.json", "choose another name"),
        ("said.json --among nothere", "have no photo in common"),
        ("said.json --among nothing", "there are no photos in this folder"),
        ("pets.json", "holds references"),
        ("table.csv", "line 2: has more cells than there are columns"),
    ],
    "lookalikes photos.json": [
        ("--out groups.txt", "must end in .json, .json.gz or .html"),
        ("--k 0", "whole number above 0"),
        ("--duplicates-above 2", "a number from -1 to 1"),
        ("--duplicates-above nan", "a number from -1 to 1"),
        ("--by smell", "invalid choice"),
        ("--by caption", "no photo has a caption"),
        ("--by caption --metric euclidean", "needs --by image"),
        ("--most -1", "whole number above 0"),
        ("--alike-above 2", "a cosine is a number from -1 to 1"),
        ("--alike-above nan", "a number from -1"),
        ("--captions captions.jsonl", "--captions is for the contact sheet"),
        ("--captions none.jsonl --out sheet.html", "no such file"),
        ("--captions other.json --out sheet.html", "none of the captions is of these photos"),
        ("--out photos.json", "choose another name"),
    ],
    "pool photos": [
        ("", "give --out POOL to write a pool, or --serve TERM to score captions by one."),
    ],
    "prepare": [
        ("", "FORMAT"),
        ("coco", "SOURCE"),
        ("coco x.json", "--out"),
        ("coco x.json --out", "--out"),
        ("vizwiz x.json --out y.json", "vizwiz"),
        ("coco x.json --out y.json --colour red", "--colour"),
        ("coco x.json --out y.json --split a --split-file b", "--split-file"),
        ("folder . --out y.json --photos .", "--photos"),
        (f"coco {'x' * 5000} --out y.json", "x"),
        ("coco captions_val2014.json --out captions_val2014.json", "overwrite"),  # never the source
        ("coco broken.json --out old.json", "broken.json: "),
        ("coco captions_val2014.json --out y.json --split-file interval.txt", "must say which split"),
    ],
    "score said.json told.json": [
        ("--metrics BLUE", "there is no metric 'BLUE'"),
        ("--df nowhere.npz", "nowhere.npz: there is no such file"),
        ("--against nowhere.json", "nowhere.json: there is no such file"),
        ("--split test", "only a data file has splits"),
        ("--metrics BLEU --out .", "this is a folder"),
        *((f"--out {name}.json", "choose another name") for name in ("said", "told", "link")),
    ],
    "serve": [
        ("nowhere", "nowhere: there is no such folder."),
        ("nothing", "there are no photos in this folder"),
        ("photos --port 99999", "must be a number from 0 to 65535"),
        ("photos --model nothere", "nothere"),
        ("photos --database x", "--database: this database cannot be used"),
        ("--database sqlite://", "--database needs FOLDER"),
    ],
}  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch, own_cache):
    """The files that the requests name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(progress, "_QUIET", 1e9)  # however slow the machine
    world.make(tmp_path / "world", 12)
    for name, content in {
        "exact.json": {str(i): "a cat" for i in range(12)},
        "empty.json": {},
        "said.json": {"1": "a dog runs"},
        "told.json": {"1": ["a brown dog"]},
        "other.json": {"elsewhere.png": "a dog"},
        "pets.json": {"dataset": "pets", "images": [{"id": i, "file": f"{i}.jpg"} for i in range(12)]},
        "photos.json": {"dataset": "d", "images": [{"id": 1, "file": "photos/red.png"}]},
        "captions_val2014.json": {"images": [{"id": 0, "file_name": "cat.jpg"}], "annotations": []},
        "broken.json": "{",
        "old.json": "yesterday's",
        "interval.txt": "cat.jpg\n",
        "table.csv": "file,caption\na.jpg,a dog, running\n",
    }.items():
        put(tmp_path / name, content)
    (tmp_path / "link.json").symlink_to(tmp_path / "said.json")
    for name in ("photos", "nothing", "run"):
        (tmp_path / name).mkdir()
    Image.new("RGB", (9, 9), "red").save(tmp_path / "photos" / "red.png")
    archives.as_tsv(tmp_path / "regions", {str(i): archives.photo(i, 1) for i in range(12)})
    archives.as_tsv(tmp_path / "other", {"flickr-1": archives.photo(0, 2)})
    (tmp_path / "run" / "recipe.yaml").write_text(yaml.safe_dump({}))
    (tmp_path / "run" / "log.jsonl").write_text(json.dumps({"step": 1, "loss": 3.0}) + "\n")
    return tmp_path


def contents(folder):
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file() and "cache" not in file.parts}


@pytest.mark.parametrize(
    ("command", "arguments", "word"),
    [(command, *row) for command, rows in WRONG.items() for row in rows],
    ids=lambda text: text[:60] or "nothing",
)
def test_a_wrong_request_is_one_sentence_and_writes_nothing(
    tellapart, small_model, folder, monkeypatch, command, arguments, word
):
    if command == "evaluate":
        world.words_for_photos(monkeypatch)
    before = contents(folder)
    code, out, err = tellapart(*command.split(), *arguments.replace("MODEL", str(small_model)).split())
    assert (code, len(err.splitlines())) == (2, 1), err
    assert out == "" or "--split no" in arguments  # the table of the runs is there by then
    assert err.startswith(f"tellapart {command.split()[0]}: ")
    assert word in err
    assert contents(folder) == before
