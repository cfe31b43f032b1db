"""Runs notebooks by papermill, and keeps whole results or none.

A notebook runs in the current folder with the kernel `python3`, and can import modules from its own folder. Its figures and
verdicts go to a stage in the reports folder, and are moved into place when its last cell has succeeded. After a failure the
executed part is kept as `<name>.failed.ipynb`, and an earlier report stays as it was.
"""

from reports.runner.execution import PROFILES, NotebookFailed, is_complete, run, run_facts
from reports.runner.notebook_files import Experiment, experiments, neighbours, read, resolve, source, title
from reports.runner.notebook_parameters import check_parameters, note_parameters, parameters, parse_parameters, repeat
from reports.runner.papers import Paper, papers
from reports.runner.parallel import run_together
