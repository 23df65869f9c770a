import jaxtyping
import pytest


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """No test touches the user's own data folder."""
    folder = tmp_path / "home"
    monkeypatch.setenv("DMB_DATA", str(folder))
    return folder


@pytest.fixture
def no_type_checks():
    """The library's own messages are what users see: type checks of shapes are on in tests only."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
