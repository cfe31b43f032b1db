"""Executed notebooks as web pages: one file each, which loads nothing, and an index of experiments and verdicts."""

from __future__ import annotations

from reports.index import build, index
from reports.page import check_offline, export
