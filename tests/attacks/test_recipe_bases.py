"""A recipe that somebody sent reads no file that is not a recipe of its own folder or of the package."""

import os

import pytest

from tellapart.commands.train import parse


@pytest.fixture
def refusal(tellapart, tmp_path):
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
def test_a_base_does_not_lead_out_of_the_folder(refusal, tmp_path, base, form):
    err = refusal(form.format(base.replace("SECRET", str(tmp_path / "secret.yaml"))))
    assert "is not followed; it must be a file beside or below the recipe, or the name of a recipe." in err
    assert err.isprintable() or err.rstrip("\n").isprintable()


def test_a_link_does_not_lead_out_of_the_folder(refusal, tmp_path):
    (tmp_path / "mine" / "link.yaml").symlink_to(tmp_path / "secret.yaml")
    assert "link.yaml: this is a link to a file outside of the folder, which is not followed." in refusal("base: link")


def test_a_linked_folder_does_not_lead_out_of_the_folder(refusal, tmp_path):
    (tmp_path / "mine" / "sub").symlink_to(tmp_path)
    assert "outside of the folder" in refusal("base: sub/secret.yaml")


def test_a_base_that_is_no_file_is_not_waited_for(refusal, tmp_path):
    os.mkfifo(tmp_path / "mine" / "pipe.yaml")
    assert "pipe.yaml: this is not a regular file." in refusal("base: pipe.yaml")


def test_a_base_of_itself(refusal):
    assert "base leads back to where it came from" in refusal("base: r.yaml")


def test_a_cycle_of_bases_ends(refusal, tmp_path):
    (tmp_path / "mine" / "a.yaml").write_text("base: b")
    (tmp_path / "mine" / "b.yaml").write_text("base: ./a.yaml")
    err = refusal("base: a")
    assert "base leads back to where it came from" in err
    assert err.count("a.yaml") == 2
    assert "b.yaml" in err


def test_a_cycle_through_a_link_ends(refusal, tmp_path):
    (tmp_path / "mine" / "a.yaml").symlink_to(tmp_path / "mine" / "r.yaml")
    assert "base leads back to where it came from" in refusal("base: a")


def test_a_line_of_bases_is_long_enough_at_a_hundred(refusal, tmp_path):
    (tmp_path / "mine" / "0.yaml").write_text("batch_size: 7")
    for number in range(1, 101):
        (tmp_path / "mine" / f"{number}.yaml").write_text(f"base: {number - 1}.yaml")
    assert parse([str(tmp_path / "mine" / "100.yaml")])[0].batch_size == 7
    assert "has more than 100 bases, one upon the other." in refusal("base: 100.yaml")


@pytest.mark.parametrize("base", ["[a, b]", "{a: 1}", "3", "''", "true", "1.5"])
def test_a_base_is_a_name(refusal, base):
    assert "base must be the name of another recipe, not " in refusal(f"base: {base}")


def test_a_base_that_is_missing_is_named_with_one_that_may_be_meant(refusal):
    err = refusal("base: tiny/photo_xe")
    assert "r.yaml: base: there is no recipe 'tiny/photo_xe'; did you mean tiny/photos_xe?" in err


def test_a_chain_is_no_base(refusal, tmp_path):
    (tmp_path / "mine" / "chain.yaml").write_text("stages: [{name: a}]")
    assert "has stages of its own" in refusal("base: chain")


def test_a_base_runs_no_program(refusal, tmp_path):
    (tmp_path / "mine" / "a.yaml").write_text(f"!!python/object/apply:os.system ['touch {tmp_path / 'victim'}']")
    assert "a.yaml: line 1: the tag" in refusal("base: a")
    assert not (tmp_path / "victim").exists()


def test_a_base_of_a_base_is_read_with_the_same_limits(refusal, tmp_path):
    (tmp_path / "mine" / "a.yaml").write_text("base: b")
    (tmp_path / "mine" / "b.yaml").write_text("seed: 1\n" + "#" * (1 << 20))
    assert "b.yaml: the file has, unpacked, more than 1 MB" in refusal("base: a")


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
def test_stages_that_make_no_chain(refusal, stages, answer):
    assert answer in refusal(f"stages: {stages}")


def test_more_stages_than_anybody_needs(refusal):
    assert "more than 1000 stages" in refusal("stages: [" + ", ".join(f"{{name: a{n}}}" for n in range(1002)) + "]")
