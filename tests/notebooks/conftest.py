"""What a test sets for its page ends with the test."""

import pytest

from lib.training.train import DEVICE
from notebooks import study


@pytest.fixture(autouse=True)
def page(monkeypatch):
    monkeypatch.setattr(study, "PAGE", {**study.PAGE})
    monkeypatch.setenv(DEVICE, "")
