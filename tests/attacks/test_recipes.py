"""Hostile recipes: none runs a program, grows without bound, hangs, or ends in a traceback."""

from __future__ import annotations

import gzip
import json
import os
import re
import sys
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest

from capscore.errors import UserError
from tellapart.captioners import CAPTIONERS
from tellapart.commands.train import parse
from tellapart.models import is_size
from tellapart.recipe import Recipe
from tellapart.recipe_files import flat, plain
from tellapart.retrievers import RETRIEVERS
from tellapart.training.preparation import check


@pytest.fixture
def refusal(tellapart, tmp_path):
    """What `tellapart train` answers: exit code 2 and one sentence, as quickly as for any other mistake."""

    def run(*arguments):
        code, out, err = tellapart("train", *arguments, "--out", tmp_path / "run")
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert len(err) < 600
        return err

    return run


@pytest.fixture
def recipe(tmp_path):
    def write(content):
        file = tmp_path / "r.yaml"
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return file

    return write


# Programs


def touch(victim):
    return {"class_path": "os.system", "init_args": {"command": f"touch {victim}"}}


def every_place():
    """All fields of a recipe and its parts, and inside of those that hold more than one value."""
    parts = [name for name in flat(plain(Recipe())) if not name.startswith("objective.rewards.weights")]
    parts += {name.rpartition(".")[0] for name in parts} - {""}
    parts += {part.rpartition(".")[0] for part in parts} - {""}
    return sorted(
        {*parts, "model.width", "model.a.b", "objective.rewards.weights.x", "objective.rewards.dataset_weights.x.y"}
    )


def nested(place, value):
    for name in reversed(place.split(".")):
        value = {name: value}
    return value


@pytest.mark.slow
@pytest.mark.parametrize("how", ["run", "print_config", "tiny"])
@pytest.mark.parametrize("of", ["function", "class", "in a list"])
def test_no_field_of_a_recipe_runs_a_program(recipe, tmp_path, of, how):
    victim = tmp_path / "PWNED"
    attack = {
        "function": touch(victim),
        "class": {"class_path": "logging.FileHandler", "init_args": {"filename": str(victim), "mode": "w"}},
        "in a list": [touch(victim)],
    }[of]
    options = {"run": [], "print_config": ["--print_config"], "tiny": ["--tiny"]}[how]
    words = {name for name, value in flat(plain(Recipe())).items() if isinstance(value, str)}
    for place in every_place():
        with pytest.raises(UserError):
            parse([str(recipe(json.dumps(nested(place, attack)))), *options])
        if place in words or place == "data":  # on the command line a name like any other, or one of a data file
            continue
        with pytest.raises(UserError):
            parse([f"--{place}", json.dumps(attack), *options])
        with pytest.raises(UserError):
            parse([f"--{place}={json.dumps(attack)}", *options])
        for key in ("class_path", "init_args", "init_args.command", "dict_kwargs", "help"):
            with pytest.raises(UserError):
                parse([f"--{place}.{key}", "os.system", *options])
    assert not victim.exists()


def test_a_recipe_imports_nothing_that_it_names(recipe, tmp_path, monkeypatch):
    (tmp_path / "payload.py").write_text("class Settings: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    for place in ("model", "model.width", "optim", "objective.policy", "encoder"):
        for attack in ({"class_path": "payload.Settings"}, "payload.Settings"):
            with pytest.raises(UserError):
                check(parse([str(recipe(json.dumps(nested(place, attack))))])[0])
            with pytest.raises(UserError):
                check(parse([f"--{place}", json.dumps(attack)])[0])
    assert "payload" not in sys.modules


def test_a_part_of_a_recipe_is_not_read_from_another_file(refusal, recipe, tmp_path):
    (tmp_path / "more.yaml").write_text("lr: 0.5\n")
    assert "optim" in refusal(recipe(f"optim: {tmp_path / 'more.yaml'}\n"))
    assert "optim" in refusal("--optim", tmp_path / "more.yaml")


# Memory and time


def test_anchors_that_do_not_multiply_are_read(recipe):
    weights = "dataset_weights: {a: &f {x: 2}, b: {<<: *f, y: 3}}"
    text = f"optim: {{lr: &rate 0.25}}\nobjective: {{margin: *rate, rewards: {{{weights}}}}}\n"
    read, _, _ = parse([str(recipe(text))])
    assert (read.optim.lr, read.objective.margin) == (0.25, 0.25)
    assert read.objective.rewards.dataset_weights == {"a": {"x": 2.0}, "b": {"x": 2.0, "y": 3.0}}


def test_a_value_on_the_command_line_has_the_same_limits(refusal):
    assert "nested" in refusal("--model", "[" * 50_000)
    laughs = "[&a [x,x,x,x,x,x,x,x,x]," + ",".join(
        f"&{one} [{','.join([f'*{other}'] * 9)}]" for other, one in zip("abcdefgh", "bcdefghi", strict=True)
    )
    assert "aliases" in refusal("--data.files", laughs + "]")


def test_a_gzipped_recipe_is_a_recipe(recipe):
    assert parse([str(recipe(gzip.compress(b"epochs: 3\n")))])[0].epochs == 3


# Values


def laughs(first, mapping):
    """Twenty anchors, each of nine times the one before it."""
    lines = [f"a0: &a0 {first}", *(f"a{i}: &a{i} {mapping(i, ', '.join([f'*a{i - 1}'] * 9))}" for i in range(1, 20))]
    return "\n".join([*lines, "model: *a19", ""])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        *(
            (f"epochs: !!{tag} ['touch PWNED']\n", "tag")  # makes nothing
            for tag in ("python/object/apply:os.system", "python/name:os.system", "python/module:os", "binary")
        ),
        ("recipe: other.yaml\n", "recipe"),
        ("out: /somewhere/else\n", "out"),
        (laughs("[x, x, x, x, x, x, x, x, x]", lambda i, nine: f"[{nine}]"), "aliases"),
        (laughs("{k: 1, l: 2}", lambda i, nine: f"{{<<: [{nine}], k{i}: 1}}"), "aliases"),
        *((text, "") for text in ("model: &a {b: *a}\n", "model: {b: *a}\n", "model: &a [*a]\n", "<<: 3\n")),
        ("model: " + "[" * 100_000, ""),
        *((start * 50_000, "") for start in ("- ", "? ")),
        ("model: " + "{a: " * 50_000, ""),
        ("a:\n" + " a:\n" * 9, ""),
        ("\n".join(["a0: &a0 [x]", *(f"a{i}: &a{i} [[[[[*a{i - 1}]]]]]" for i in range(1, 50))]), "nested"),
        (b"# " + b"x" * 2_000_000, "1 MB"),
        (gzip.compress(b"# " + b"x" * 100_000_000), "1 MB"),
        ("encoder: {grid: }\n", "encoder.grid must be a whole number, not null"),
        ('data: "\\0"\n', "data must be an object, not "),
        ("data:\n", "data must be an object, not null"),
        ("epochs: \0\n", "not YAML"),
        (f"optim: {{lr: {'9' * 400}}}\n", "optim.lr must be a number"),
        (f"optim: {{lr: {'9' * 5000}}}\n", "optim.lr must be a number"),
        (f"epochs: {'9' * 5000}\n", "epochs must be a whole number"),
        (f"epochs: {'1:' * 5000}1\n", "epochs must be a whole number"),
        ("epochs: 0x7fffffff\n", "epochs must be a whole number"),
        ("epochs: 1\nepochs: 2\n", "epochs twice"),
        ("1: 2\n", "names"),
        ("[1]: 2\n", "names"),
        ("{a: 1}: 2\n", "names"),
        ("a: 1\n---\nb: 2\n", "more than one"),
        ("", "empty"),
        ("# nothing\n", "empty"),
        ("just a sentence\n", "`key: value`"),
        ("epochs: true\n", "epochs must be a whole number"),
        ("init_from: 3\n", "init_from must be a string"),
        ("data: {files: x.json}\n", "data.files must be a list"),
        ("data: {files: [[x.json]]}\n", "data.files"),
        ("optim: {betas: [0.1]}\n", "optim.betas"),
        ("optim: {betas: {a: 1}}\n", "optim.betas"),
        ("dtype: fp64\n", "dtype must be auto, fp32 or bf16, not 'fp64'"),
        ("epocs: 3\n", "did you mean epochs?"),
        ("optim: {rate: 3}\n", "optim.rate"),
    ],
    ids=lambda value: ascii(value[:30]),
)
def test_a_hostile_recipe_or_a_wrong_value_is_one_sentence(refusal, recipe, tmp_path, monkeypatch, text, named):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.yaml").write_text("epochs: 3\n")
    assert named in refusal(recipe(text))
    assert named in refusal(recipe(text), "--print_config")
    assert not (tmp_path / "PWNED").exists()


def test_control_characters_of_a_recipe_do_not_reach_the_terminal(refusal, recipe):
    err = refusal(recipe('data: {limit: "\\e]0;TITLE\\a\\e[31m"}\n'))
    assert "data.limit" in err
    assert not {"\x1b", "\a"} & set(err)
    err = refusal(recipe('"\\e[31m\\u202e": 1\n'))
    assert not {"\x1b", "\u202e"} & set(err)


@pytest.mark.parametrize(
    "place", ["optim.lr", "objective.rewards.weights.cider_d", "objective.rewards.dataset_weights.cider_d.data"]
)
def test_numbers_are_finite(place):
    for bad in (".nan", ".inf", "-.inf"):
        recipe, _, _ = parse(["--objective.name=policy_gradient", f"--{place}={bad}"])
        with pytest.raises(UserError, match=f"^{place} must be "):
            check(recipe)


NETWORKS = [*(("captioner", name) for name in CAPTIONERS), *(("retriever", name) for name in RETRIEVERS)]


@pytest.mark.parametrize(("kind", "name"), NETWORKS)
def test_every_setting_of_a_network_has_a_range(kind, name):
    table = CAPTIONERS if kind == "captioner" else RETRIEVERS
    network = ["--retriever", name, "--objective.name", "info_nce", "--validation.metric", "R@1"]
    network += ["--data.captions_per_photo", "2"]
    arguments = ["--captioner", name] if kind == "captioner" else network
    _, config = table[name].load()
    checked = 0
    for field in fields(config):
        if is_size(field.name):
            continue
        checked += 1
        for bad in (".nan", ".inf", "-1", "2147483648", "-0.5", "1.5e+300"):
            recipe, _, _ = parse([*arguments, f"--model.{field.name}={bad}"])
            with pytest.raises(UserError, match=f"^model.{field.name}"):
                check(recipe)
    assert checked
    check(parse(arguments)[0])
    tiny = import_module(table[name].module).TINY if kind == "captioner" else table[name].tiny
    check(parse([*arguments, f"--model={json.dumps(tiny)}"])[0])


# Bases and stages


@pytest.fixture
def refused_beside(tellapart, tmp_path):
    """What a recipe in the folder mine/ is answered with; beside that folder lies what it must not read."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "secret.yaml").write_text("batch_size: 7\n")

    def run(content, name="r.yaml"):
        file = tmp_path / "mine" / name
        file.write_text(content)
        code, out, err = tellapart("train", file, "--print_config")
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert err.startswith(f"tellapart train: {tmp_path / 'mine'}")
        assert len(err) < 600
        return err

    return run


@pytest.mark.parametrize(
    "base",
    [
        "../secret.yaml",
        "../secret",
        "./../secret.yaml",
        "x/../../secret.yaml",
        "SECRET",
        "~/secret.yaml",
        "file:../secret.yaml",
        "http://example.org/r.yaml",
        "..\\\\secret.yaml",
        "C:\\\\secret.yaml",
        "/dev/stdin",
        "/etc/passwd",
        "a\\0b",
        "a\\x1b[2Jb",
    ],
)
@pytest.mark.parametrize("form", ['base: "{}"', 'stages: [{{name: a, recipe: "{}"}}]'])
def test_a_base_does_not_lead_out_of_the_folder(refused_beside, tmp_path, base, form):
    err = refused_beside(form.format(base.replace("SECRET", str(tmp_path / "secret.yaml"))))
    assert "is not followed; it must be a file beside or below the recipe, or the name of a recipe." in err
    assert err.isprintable() or err.rstrip("\n").isprintable()


@pytest.mark.parametrize(
    ("files", "base", "answer"),
    [
        ({"link.yaml": Path("../secret.yaml")}, "link", "link.yaml: this is a link to a file outside of the folder"),
        ({"sub": Path("..")}, "sub/secret.yaml", "outside of the folder"),
        ({"pipe.yaml": None}, "pipe.yaml", "pipe.yaml: this is not a regular file."),
        ({}, "r.yaml", "base leads back to where it came from"),
        ({"a.yaml": "base: b", "b.yaml": "base: ./a.yaml"}, "a", r"came from \(.*a\.yaml, .*b\.yaml, .*a\.yaml\)"),
        ({"a.yaml": Path("r.yaml")}, "a", "base leads back to where it came from"),
        ({}, "tiny/photo_xe", "r.yaml: base: there is no recipe 'tiny/photo_xe'; did you mean tiny/photos_xe?"),
        ({"chain.yaml": "stages: [{name: a}]"}, "chain", "has stages of its own"),
        ({"a.yaml": "!!python/object/apply:os.system ['touch PWNED']"}, "a", "a.yaml: line 1: the tag"),
        ({"a.yaml": "base: b", "b.yaml": "#" * (1 << 20) + "#\n"}, "a", "b.yaml: the file has, unpacked, more"),
        *(({}, base, "base must be the name of another recipe, not ")
          for base in ("[a, b]", "{a: 1}", "3", "''", "true", "1.5")),
    ],
)  # fmt: skip
def test_a_base_that_is_no_recipe_beside(refused_beside, tmp_path, monkeypatch, files, base, answer):
    monkeypatch.chdir(tmp_path)
    for name, content in files.items():
        file = tmp_path / "mine" / name
        if content is None:
            os.mkfifo(file)
        elif isinstance(content, Path):
            file.symlink_to(tmp_path / "mine" / content)
        else:
            file.write_text(content)
    assert re.search(answer, refused_beside(f"base: {base}"))
    assert not (tmp_path / "PWNED").exists()


def test_a_line_of_bases_is_long_enough_at_a_hundred(refused_beside, tmp_path):
    (tmp_path / "mine" / "0.yaml").write_text("batch_size: 7")
    for number in range(1, 101):
        (tmp_path / "mine" / f"{number}.yaml").write_text(f"base: {number - 1}.yaml")
    assert parse([str(tmp_path / "mine" / "100.yaml")])[0].batch_size == 7
    assert "has more than 100 bases, one upon the other." in refused_beside("base: 100.yaml")


# Stages


@pytest.mark.parametrize(
    ("stages", "answer"),
    [
        ("[]", "stages is empty; a chain needs at least one."),
        ("{a: {}}", "stages must be a list of stages, not an object."),
        ("3", "stages must be a list of stages, not a number."),
        ("[3]", "stage 1 must be an object with a name, not a number."),
        ("[{seeds: [1]}]", "stage 1 has no name."),
        ("[{name: [a]}]", "stage 1 has no name."),
        ("[{name: a}, {name: ../b}]", "stage 2: '../b' cannot be a stage's name"),
        ("[{name: /etc}]", "stage 1: '/etc' cannot be a stage's name"),
        ("[{name: a.before1}]", "cannot be a stage's name"),
        ("[{name: chain.json}]", "cannot be a stage's name"),
        ('[{name: ""}]', "cannot be a stage's name"),
        (f"[{{name: {'a' * 65}}}]", "cannot be a stage's name"),
        ("[{name: a}, {name: a}]", "two stages are called a; every stage needs a name of its own."),
        ("[{name: a}, {name: A}]", "two stages are called A"),
        ("[{name: a, init_from: a}]", "stage a: init_from names the stage itself"),
        ("[{name: a, init_from: b}, {name: b}]", "stage a: init_from names the later stage b"),
        ("[{name: a, init_from: b/seed1}, {name: b, seeds: [1]}]", "stage a: init_from names the later stage b/seed1"),
        ("[{name: a, init_from: zz}]", "stage a: init_from: there is no stage or model 'zz'."),
        ("[{name: xe1}, {name: b, init_from: xe}]", "there is no stage or model 'xe'; did you mean xe1?"),
        ("[{name: a, validation: {judges: [b]}}, {name: b}]", "stage a: validation.judges names the later stage b"),
        ("[{name: a, mean: {b: 1}}, {name: b}]", "stage a: mean names the later stage b"),
        ("[{name: a, mean: {a: 1}}]", "stage a: mean names the stage itself"),
        ("[{name: a}, {name: b, mean: {a: x}}]", "stage b: mean: every stage needs a number"),
        ("[{name: a}, {name: b, mean: {}}]", "stage b: mean: every stage needs a number"),
        ("[{name: a}, {name: b, mean: {a: -1}}]", "stage b: mean: every stage needs a number"),
        ("[{name: a}, {name: b, mean: {a: .nan}}]", "stage b: mean: every stage needs a number"),
        ("[{name: a}, {name: b, mean: {a: 1}, seeds: [1]}]", "a mean of other stages trains nothing; it has no seeds."),
        ("[{name: a, mean: 3}]", "stage a: mean must be true, or stages with their shares, not a number."),
        ("[{name: a, mean: true}]", "stage a: mean: true is the mean of its seeds; it needs two or more."),
        ("[{name: a, mean: true, seeds: [1, 2]}]", "that start from the same weights; give init_from."),
        ("[{name: a, seeds: 3}]", "stage a: seeds must be a list of whole numbers"),
        ("[{name: a, seeds: [-1]}]", "stage a: seeds must be a list of whole numbers"),
        ("[{name: a, seeds: [true]}]", "stage a: seeds must be a list of whole numbers"),
        ("[{name: a, seeds: [9223372036854775808]}]", "stage a: seeds must be a list of whole numbers"),
        ("[{name: a, seeds: [1, 1]}]", "stage a: seeds has a number twice."),
        ("[{name: a, seeds: [1], seed: 2}]", "stage a: it has both seed and seeds."),
        ("[{name: a, base: tiny/toy_xe}]", "stage a: a stage has neither a base nor stages"),
        ("[{name: a, stages: [{name: b}]}]", "stage a: a stage has neither a base nor stages"),
        ("[{name: a, seeds: [1, 2]}, {name: b, init_from: a}]", "stage b: a has 2 seeds and no mean; say which one"),
        ("[{name: a, optim: {rate: 1}}]", "stage a: optim.rate: a recipe has no such field"),
        ("[{name: a, epochs: 0}]", "stage a: epochs must be at least 1, not 0."),
        ("[{name: a, recipe: tiny/toy_xf}]", "recipe: there is no recipe 'tiny/toy_xf'; did you mean tiny/toy_xe?"),
        ("[{name: a, recipe: r.yaml}]", "recipe leads back to where it came from"),
    ],
)
def test_stages_that_make_no_chain(refused_beside, stages, answer):
    assert answer in refused_beside(f"stages: {stages}")


def test_more_stages_than_anybody_needs(refused_beside):
    assert "more than 1000 stages" in refused_beside(
        "stages: [" + ", ".join(f"{{name: a{n}}}" for n in range(1002)) + "]"
    )
