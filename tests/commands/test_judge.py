"""`gmmae judge`, from arrays in files to the page."""

import json

import numpy as np
import pytest

from gmmae.base.errors import InputError
from gmmae.commands.judge import command
from gmmae.generation import two_samples
from tests.generation.nodules import balls

OPTIONS = ("--data.size", "8", "--data.edge", "whole", "--data.workers", "1")


@pytest.fixture(autouse=True)
def few_divisions(monkeypatch):
    """Of folds, so that the tests are quick."""
    monkeypatch.setattr(two_samples, "REPETITIONS", 1)


def stored(path, nodules):
    names = dict(names=np.array(nodules.names), groups=np.array(nodules.groups), categories=np.array(nodules.categories))
    masks = {} if nodules.masks is None else {"masks": nodules.masks}
    np.savez(path, volumes=nodules.values, **names, **masks)
    return str(path)


@pytest.fixture
def files(tmp_path):
    real = stored(tmp_path / "real.npz", balls(0, 60))
    generated = stored(tmp_path / "generated.npz", balls(1, 30, "new"))
    train = stored(tmp_path / "train.npz", balls(2, 60, "trained"))
    return real, generated, train, (*OPTIONS, "--data.cache", str(tmp_path / "cache"), "--out", str(tmp_path / "out"))


def test_a_judgement_is_a_page_plain_data_and_a_dozen_lines(files, tmp_path, capsys):
    real, generated, train, options = files
    assert command([real, generated, "--train", train, *options], "gmmae judge") == 0
    out = tmp_path / "out"
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "30 generated, 60 real nodules; compared: 30 of each"
    assert said[1].split() == ["generated", "real", "perfect"]
    assert said[-3:] == [str(out / name) for name in ("judgement.html", "judgement.md", "judgement.json")]
    found = json.loads((out / "judgement.json").read_text())
    assert f"C2ST, AUC                   {found['generated']['c2st'][0]:.2f} (" in said[2]
    assert 0.8 < found["novelty"]["nn"][0] < 1.2
    assert next(iter(found["novelty"]["nearest_distance"])) == "new0"
    assert len(found["floor"]["ks"]) == 29
    page = (out / "judgement.md").read_text()
    for words in (
        "| C2ST, AUC |",
        "| novelty NNsym |",
        "## Nearest training nodules",
        "](figures/slices.png)",
        "Generated are A",
    ):
        assert words in page
    assert (out / "judgement.html").read_text().count("data:image/") == 4
    # The folder of an earlier judgement is replaced.
    (out / "stale").write_text("")
    assert command([real, generated, *options], "gmmae judge") == 0
    assert not (out / "stale").exists()
    assert "novelty was not judged: likeness alone may be copying" in capsys.readouterr().out


def test_split_divides_the_real_nodules_as_training_did(files, tmp_path, capsys):
    real, generated, _, options = files
    assert command([real, generated, "--split", "--data.validation", "26", *options], "gmmae judge") == 0
    assert capsys.readouterr().out.startswith("30 generated, 26 real nodules; compared: 26 of each")
    assert "novelty" in json.loads((tmp_path / "out" / "judgement.json").read_text())


def test_what_differs_beside_the_figures_is_told(files, tmp_path, capsys):
    real, _, _, options = files
    others = balls(1, 30, "new")._replace(categories=("solid",) * 20 + ("part-solid",) * 10, masks=None)
    command([real, stored(tmp_path / "others.npz", others), *options], "gmmae judge")
    said = capsys.readouterr().out
    assert "shapes are those of intensity masks, because not both have masks" in said
    assert "of real and generated part-solid 0% and 33%, solid 100% and 67%" in said


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda real, generated, train: [real, generated, "--split", "--train", train], "must not be given together"),
        (lambda real, generated, train: ["nowhere", generated], "REAL: data.root must be a folder of volumes or one .npz"),
        (lambda real, generated, train: [real, "nowhere"], "GENERATED: data.root must be a folder of volumes"),
        (lambda real, generated, train: [real, generated, "--train", "nowhere"], "--train: data.root must be a folder"),
        (lambda real, generated, train: [real, generated, "--train", real], "30 of its 30 patients are in --train"),
    ],
)
def test_what_is_wrong_is_told_in_a_line(files, change, message):
    *names, options = files
    with pytest.raises(InputError) as error:
        command([*change(*names), *options], "gmmae judge")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_folder_with_other_files_is_not_replaced(files, tmp_path):
    real, generated, *_ = files
    kept = tmp_path / "mine" / "thesis.tex"
    kept.parent.mkdir()
    kept.write_text("")
    with pytest.raises(
        InputError, match=r"--out must be a folder that is new or empty, or one with judgement\.json, which is replaced"
    ):
        command([real, generated, *OPTIONS, "--data.cache", str(tmp_path / "cache"), "--out", str(kept.parent)], "gmmae judge")
    assert kept.exists()
