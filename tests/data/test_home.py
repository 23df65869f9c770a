import os
from pathlib import Path

import pytest

from dmb.data import data_home
from dmb.data.reading import existing


def test_the_data_folder_is_made_where_the_environment_says(home):
    assert not home.exists()
    assert data_home() == home
    assert home.is_dir()


def test_without_the_variable_the_data_folder_is_in_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.delenv("DMB_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_home() == tmp_path / ".cache" / "dmb"


def test_a_data_folder_that_cannot_be_made_is_a_clear_error(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("DMB_DATA", str(tmp_path / "file" / "folder"))
    with pytest.raises(ValueError, match=r"data folder .*file/folder cannot be made .*\$DMB_DATA"):
        data_home()


def test_a_data_folder_that_is_not_writable_is_a_clear_error(monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(ValueError, match="is not writable"):
        data_home()


def test_without_a_home_directory_the_message_says_what_to_set(monkeypatch):
    def nowhere(self):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("DMB_DATA")
    monkeypatch.setattr(Path, "expanduser", nowhere)  # a user without an entry and without $HOME
    with pytest.raises(ValueError, match=r"~/.cache/dmb is in a home directory that does not exist: set \$DMB_DATA"):
        data_home()


def test_only_a_file_with_content_is_existing(tmp_path):
    (tmp_path / "empty").touch()
    (tmp_path / "full").write_text("x")
    assert existing(tmp_path / "full") == tmp_path / "full"
    for name, message in {"": "got a folder", "empty": "is empty", "none": "no file called"}.items():
        with pytest.raises(ValueError, match=message):
            existing(tmp_path / name)
    with pytest.raises(ValueError, match="got a device"):
        existing(Path(os.devnull))


def test_a_file_without_permission_is_a_clear_error(tmp_path, monkeypatch):
    (tmp_path / "full").write_text("x")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ValueError, match="must be readable"):
        existing(tmp_path / "full")
