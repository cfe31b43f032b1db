"""Executed notebooks as web pages: one file each, which loads nothing, and an index of experiments and verdicts."""

from __future__ import annotations

from lib.reporting.index import build, index
from lib.reporting.page import check_offline, export
