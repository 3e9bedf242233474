"""Files for readers of the repository: citation, changelog, workflows, templates and recipes of containers."""

import re
import tomllib
from itertools import pairwise

import pytest
import yaml

import gmmae
from tests.documents.programs import TARGETS
from tests.documents.reading import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
DOCKERFILE, APPTAINER = ((ROOT / name).read_text(encoding="utf-8") for name in ("Dockerfile", "apptainer.def"))
BUILT_FROM = {"pyproject.toml", "constraints.txt", "README.md", "LICENSE", "gmmae", "configs"}
"""Paths without which no wheel can be built."""


def changelog():
    """The headings of the versions."""
    return re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)


def parsed(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def jobs(workflow):
    return parsed(workflow)["jobs"]


def commands(workflow):
    return [step["run"] for job in jobs(workflow).values() for step in job["steps"] if "run" in step]


def test_citation_and_changelog_have_the_version_of_the_package():
    citation = parsed(ROOT / "CITATION.cff")
    assert str(citation["version"]) == gmmae.__version__
    assert changelog()[:2] == ["Unreleased", f"{gmmae.__version__} ({citation['date-released']})"]
    assert citation["license"] == PROJECT["license"]


def test_the_citation_names_paper_and_data():
    paper, *data = parsed(ROOT / "CITATION.cff")["references"]
    assert [author["family-names"] for author in paper["authors"]] == ["Cunha", "Rodrigues", "Viana", "Oliveira"]
    assert paper["url"] == PROJECT["urls"]["Paper"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert data[0]["doi"] in readme
    assert "LUNA16" in data[1]["title"]


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_call_targets_of_the_makefile(workflow):
    matrix = {
        target for job in jobs(workflow).values() for target in job.get("strategy", {}).get("matrix", {}).get("target", [])
    }
    called = matrix | {
        target for text in commands(workflow) for target in re.findall(r"^\s*make ([a-z-]+)", text, re.MULTILINE)
    }
    guarded = {target for text in commands(workflow) for target in re.findall(r"grep -q '\^([a-z-]+):' Makefile", text)}
    assert called
    assert called - guarded <= TARGETS


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_may_only_read_and_name_the_versions_of_actions(workflow):
    assert parsed(workflow)["permissions"] == {"contents": "read"}
    used = [step["uses"] for job in jobs(workflow).values() for step in job["steps"] if "uses" in step]
    assert [name for name in used if not re.search(r"@(v\d+|[0-9a-f]{40})$", name)] == []


def test_the_pythons_that_are_tested_are_those_that_the_package_claims():
    claimed = [found[1] for text in PROJECT["classifiers"] if (found := re.fullmatch(r".*Python :: (3\.\d+)", text))]
    assert jobs(ROOT / ".github" / "workflows" / "tests.yml")["tests"]["strategy"]["matrix"]["python"] == claimed
    assert PROJECT["requires-python"] == f">={claimed[0]}"


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_templates_of_issues_have_what_github_asks(template):
    form = parsed(template)
    assert form["name"]
    assert form["description"]
    assert all(item["attributes"]["label"] for item in form["body"])


def base_images():
    return [
        re.search(pattern, text, re.MULTILINE) for pattern, text in ((r"^FROM (.*)$", DOCKERFILE), (r"^From: (.*)$", APPTAINER))
    ]


def test_both_containers_have_one_pinned_base_image():
    docker, apptainer = (found[1] if found else "" for found in base_images())
    assert docker == apptainer
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-[a-z]+", docker)


def copied():
    """The paths that each recipe copies, by its name."""
    docker = {path for line in re.findall(r"^COPY (.*)$", DOCKERFILE, re.MULTILINE) for path in line.split()[:-1]}
    files = re.split(r"^%(\w+)$", APPTAINER, flags=re.MULTILINE)
    section = next(text for name, text in pairwise(files) if name == "files")
    return {"Dockerfile": docker, "apptainer.def": {line.split()[0] for line in section.strip().splitlines()}}


@pytest.mark.parametrize("recipe", ["Dockerfile", "apptainer.def"])
def test_containers_copy_what_the_wheel_is_built_from(recipe):
    assert copied()[recipe] == BUILT_FROM
    assert [path for path in BUILT_FROM if not (ROOT / path).exists()] == []


def test_docker_sends_what_it_copies():
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line.startswith("!")}
    assert kept == BUILT_FROM


def test_containers_start_the_command_of_the_package():
    started = {*re.findall(r'^ENTRYPOINT \["(\w+)"\]$', DOCKERFILE, re.MULTILINE), *re.findall(r"exec (\w+) ", APPTAINER)}
    assert started == set(PROJECT["scripts"])


def test_the_package_says_that_it_is_typed():
    assert (ROOT / "gmmae" / "py.typed").read_text(encoding="utf-8") == ""
    assert "Typing :: Typed" in PROJECT["classifiers"]
