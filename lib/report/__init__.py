"""Executed notebooks as web pages: one file each, which loads nothing, and an index of experiments and verdicts."""

from __future__ import annotations

from lib.report.index import build, index
from lib.report.page import check_offline, export
from lib.report.reference import publish, readme

__all__ = ["build", "check_offline", "export", "index", "publish", "readme"]
