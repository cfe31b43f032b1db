"""README's generated parts: what was found, the table of protocols, and the table of papers, all from a reference folder."""

import re
import textwrap
from collections import Counter
from pathlib import Path

from lib import paths
from lib.errors import LockstepError
from notebooks import compare_figure
from reports import claims, runner
from reports.claims import Verdict
from reports.headlines import headline

GENERATED = "`python -m reports.publish` writes this part"
NONE_YET = "No claim has been judged at the laptop profile by these rules yet; `make reproduce PROFILE=laptop` does it."
SAID = {
    "reproduced": "are reproduced",
    "other size": "hold in direction but not in size",
    "mixed": "hold in some cases only",
    "contradicted": "are contradicted",
    "undecided": "are undecided",
    "not comparable": "are not comparable, since our conditions differ from the paper's",
}
