import pytest


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """No test touches the user's own data folder."""
    folder = tmp_path / "home"
    monkeypatch.setenv("DMB_DATA", str(folder))
    return folder
