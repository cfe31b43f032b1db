"""Runs the notebooks: papermill, but strict, and with whole results or none.

A notebook runs in its own folder with the kernel `python3`. Its figures and verdicts go to a stage beside the reports
and are put in place by renaming when its last cell has succeeded; after a failure the notebook as far as it came stays
as `<name>.failed.ipynb`, and an earlier report stays as it was.
"""

from __future__ import annotations

from reports.runner.execution import PROFILES, NotebookFailed, complete, facts, run
from reports.runner.notebook_files import Experiment, around, experiments, read, resolve, source, title
from reports.runner.notebook_parameters import check_parameters, parameters, parse_parameters, repeat
from reports.runner.papers import Paper, papers
from reports.runner.parallel import run_together
