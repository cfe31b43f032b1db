"""Every page that takes a folder of real data runs at smoke on a twin in its official format: half an hour, nightly."""

import papermill
import pytest

from data_prep.__main__ import main
from lib import paths
from reports import runner

TWINS = {
    "gba": "criteo-kaggle",
    "shadowsync": "criteo-kaggle",
    "oac": "fb15k-237",
    "persia": "avazu",
    "dssync": "cifar-10",
}
"""A paper's folder -> the data set of its pages."""
OTHERS = {
    "95_real_data": "avazu",
    "dssync/figure_2_and_table_4_convergence": "criteo-kaggle",
    "dssync/local_adam": "criteo-kaggle",
    "dssync/smaller_messages_and_groups": "squad",
    "dssync/table_3_accuracy_16_nodes": "squad",
    "gba/figure_6_switching": "taobao",
    "persia/table_2_and_figure_7_convergence": "taobao",
}
PAGES = [each.name for each in runner.experiments() if "data" in runner.parameters(each.path)]


@pytest.fixture(scope="session")
def twin(tmp_path_factory):
    folders = {}

    def made(name):
        if name not in folders:
            raw, folder = (str(tmp_path_factory.mktemp(name) / part) for part in ("raw", "prepared"))
            assert main([name, raw, "--twin", "--rows", "60000"]) == main([name, raw, folder]) == 0
            folders[name] = folder
        return folders[name]

    return made


@pytest.mark.nightly
@pytest.mark.parametrize("name", PAGES)
def test_a_page_trains_on_a_folder_of_real_data(name, twin, tmp_path, monkeypatch):
    monkeypatch.setenv("LOCKSTEP_REPORTS", str(tmp_path))
    data = twin(OTHERS.get(name) or TWINS[name.partition("/")[0]])
    given = {"profile": "smoke", "data": data}
    done = papermill.execute_notebook(str(paths.notebooks() / f"{name}.ipynb"), None, given, progress_bar=False)
    assert not done.metadata["papermill"]["exception"] and list((tmp_path / "runs").iterdir()), "it trained"
