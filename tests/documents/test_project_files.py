"""Files for readers of the repository: citation, changelog, workflows and recipes of containers."""

import re

import pytest
import yaml

import gmmae
from tests.documents import programs
from tests.documents.reading import ROOT

PROJECT = programs.PROJECT["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
README, CHANGELOG, DOCKERFILE, APPTAINER = (
    (ROOT / name).read_text() for name in ("README.md", "CHANGELOG.md", "Dockerfile", "apptainer.def")
)
BUILT_FROM = {"pyproject.toml", "constraints.txt", "README.md", "LICENSE", "gmmae", "configs"}
"""Paths without which no wheel can be built."""


def parsed(path):
    return yaml.safe_load(path.read_text())


def test_citation_and_changelog_have_the_version_of_the_package():
    citation = parsed(ROOT / "CITATION.cff")
    versions = re.findall(r"^## (.*)$", CHANGELOG, re.MULTILINE)
    assert str(citation["version"]) == gmmae.__version__
    assert versions[:2] == ["Unreleased", f"{gmmae.__version__} ({citation['date-released']})"]
    assert citation["license"] == PROJECT["license"]
    paper, *data = citation["references"]
    assert paper["url"] == PROJECT["urls"]["Paper"]
    assert data[0]["doi"] in README


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_call_targets_of_the_makefile_and_may_only_read(workflow):
    content = parsed(workflow)
    assert content["permissions"] == {"contents": "read"}
    text = workflow.read_text()
    called = set(re.findall(r"^\s*(?:- run: |run: )?make ([a-z-]+)", text, re.MULTILINE))
    for job in content["jobs"].values():
        called |= set(job.get("strategy", {}).get("matrix", {}).get("target", []))
    assert called
    assert called - set(re.findall(r"grep -q '\^([a-z-]+):' Makefile", text)) <= programs.TARGETS


def test_the_pythons_that_are_tested_are_those_that_the_package_claims():
    claimed = [text.rpartition(" ")[2] for text in PROJECT["classifiers"] if "Python :: 3." in text]
    assert parsed(WORKFLOWS[0].with_name("tests.yml"))["jobs"]["tests"]["strategy"]["matrix"]["python"] == claimed
    assert PROJECT["requires-python"] == f">={claimed[0]}"


def test_containers_have_one_pinned_base_image_and_copy_what_the_wheel_is_built_from():
    images = re.findall(r"^From:? (.*)$", DOCKERFILE + APPTAINER, re.MULTILINE | re.IGNORECASE)
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-[a-z]+", images[0])
    assert images == images[:1] * 2
    docker = {path for line in re.findall(r"^COPY (.*) \S+$", DOCKERFILE, re.MULTILINE) for path in line.split()}
    sent = re.findall(r"^!(.*)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    apptainer = re.findall(r"^    (\S+) /opt/gmmae/\1$", APPTAINER, re.MULTILINE)
    assert docker == set(sent) == set(apptainer) == BUILT_FROM
