"""A page's setting: real data in place of synthetic, and what a folder must hold."""

import re

import pytest

from lib import BadOption
from notebooks import setting, study
from reports import runner


def test_every_page_with_a_paper_takes_data_by_one_name():
    """Pages of quality end in `setting.use(profile, data, device)`; a page that takes a folder under another name fails here."""
    takes = {page.name for page in runner.experiments() if "data" in runner.parameters(page.path)}
    uses = {page.name for page in runner.experiments() if "setting.use(profile, data, device)" in page.path.read_text()}
    assert takes == uses and len(takes) > 20
    folders = {page.name: [*runner.parameters(page.path)] for page in runner.experiments()}
    assert not [name for name, declared in folders.items() if {"images", "questions", "folder"} & {*declared}]


def test_a_folder_that_was_not_prepared_is_refused(tmp_path):
    with pytest.raises(BadOption, match=re.escape("expected a folder that `python -m data_prep` wrote")):
        setting.use("smoke", str(tmp_path))


def test_a_folder_of_another_kind_is_refused_with_what_is_needed(monkeypatch):
    monkeypatch.setitem(study.PAGE, "data", "mine")
    monkeypatch.setattr(
        setting.prepared_datasets, "Partitions", lambda folder: type("P", (), {"manifest": {"kind": "triples"}})
    )
    with pytest.raises(BadOption, match="data='mine' holds triples; this page needs a folder of clicks, as"):
        setting.served({"criteo": "clicks"})
    assert setting.served({"criteo": "clicks", "graph": "triples"}) == ["graph"]
