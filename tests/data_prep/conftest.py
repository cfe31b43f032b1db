"""Small raw files, and the real samples where they lie beside the checkout."""

from pathlib import Path

import pytest

SAMPLES = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture(scope="session")
def samples():
    """The folder of real samples."""
    if not SAMPLES.is_dir():
        pytest.skip("the real samples are not here")
    return SAMPLES


@pytest.fixture
def raw(tmp_path):
    """A folder for raw files: `raw(name, text)` writes one and returns the folder."""
    folder = tmp_path / "raw"

    def write(name: str, data: str | bytes) -> Path:
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(data.encode() if isinstance(data, str) else data)
        return folder

    return write
