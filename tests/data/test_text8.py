import gzip
import hashlib
import os
import urllib.error
import urllib.request
import zipfile
from io import BytesIO

import numpy as np
import pytest

from dmb.data import cache, prepare_text8, text8
from dmb.data.sources import text8 as module

ALPHABET = " abcdefghijklmnopqrstuvwxyz"


def zipped(content, name="text8"):
    file = BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo(name), content)
    return file.getvalue()


PACKED = {"text8": lambda raw: raw, "text8.zip": zipped, "text8.gz": gzip.compress}


@pytest.fixture
def raw(monkeypatch):
    """A Text8 of 4,000 letters, whose digests the module takes for the true ones."""
    letters = np.random.default_rng(0).integers(27, size=4000)
    content = "".join(ALPHABET[letter] for letter in letters).encode()
    monkeypatch.setattr(module, "SIZE", 4000)
    monkeypatch.setattr(module, "RAW_SHA256", hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(module, "ZIP_MD5", hashlib.md5(zipped(content)).hexdigest())
    monkeypatch.setattr(module, "URL", "http://text8.invalid/text8.zip")
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: pytest.fail("no test goes to the network"))
    return content


def left_over(home):
    return sorted(path.relative_to(home).as_posix() for path in home.rglob("*") if path.is_file())


def served(monkeypatch, tmp_path, content):
    """Let the download read a file, by a real URL."""
    (tmp_path / "served.zip").write_bytes(content)
    monkeypatch.setattr(module, "URL", (tmp_path / "served.zip").as_uri())
    monkeypatch.setattr(urllib.request, "urlopen", ORIGINAL)


ORIGINAL = urllib.request.urlopen


@pytest.mark.parametrize("name", PACKED)
def test_a_file_is_encoded_whatever_its_packing(raw, tmp_path, home, name):
    (tmp_path / "download").write_bytes(PACKED[name](raw))  # told by content, not by name
    path = prepare_text8(tmp_path / "download")
    tokens = np.load(path)
    assert tokens.dtype == np.uint8
    assert "".join(ALPHABET[token] for token in tokens).encode() == raw
    assert left_over(home) == [path.relative_to(home).as_posix()]


@pytest.mark.parametrize("folder", ["text8", "."])
@pytest.mark.parametrize("name", PACKED)
def test_a_copy_in_the_data_folder_is_prepared_at_first_use(raw, home, folder, name):
    (home / folder).mkdir(parents=True)
    (home / folder / name).write_bytes(PACKED[name](raw))
    data = text8(length=10)
    assert data.codec.decode(data.train[:1]) == [raw[:10].decode()]
    assert text8(length=10).train[:].equal(data.train[:])


def test_the_split_is_the_official_one(raw, tmp_path):
    (tmp_path / "text8").write_bytes(raw)
    prepare_text8(tmp_path / "text8")
    data = text8(length=20)
    assert (data.name, data.source, data.num_positions, data.num_states) == ("text8", "text8", 20, 27)
    parts = {"train": raw[:3600], "validation": raw[3600:3800], "test": raw[3800:]}
    for part, split in data.splits().items():
        assert "".join(data.codec.decode(split[:])).encode() == parts[part]
        assert isinstance(split._tokens, np.memmap)


def test_the_true_digests_and_sizes_are_these():
    # of http://mattmahoney.net/dc/text8.zip: 31,344,016 bytes that hold 100,000,000
    assert module.ZIP_MD5 == "f26f94c5209bc6159618bad4a559ff81"
    assert module.RAW_SHA256 == "6e890197040d37d85beb962ae1f041ff1d9a9ca8d20c7d99c85027eebf51dca7"
    assert module.SIZE == 100_000_000


def test_without_a_copy_the_message_says_what_to_run(raw):
    with pytest.raises(ValueError, match=r"text8 is not prepared: run `dmb prepare text8`, or .*--from FILE"):
        text8()


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("change", [lambda raw: raw[:-1], lambda raw: raw + b"a", lambda raw: raw[:-1] + b"!"])
def test_content_with_another_digest_is_refused_and_nothing_is_kept(raw, tmp_path, home, name, change):
    (tmp_path / "download").write_bytes(PACKED[name](change(raw)))
    with pytest.raises(ValueError, match=r"download is not Text8: it must have 4,000 bytes with SHA-256"):
        prepare_text8(tmp_path / "download")
    assert left_over(home) == []


def test_a_refused_file_does_not_replace_one_that_was_prepared(raw, tmp_path):
    (tmp_path / "good").write_bytes(raw)
    (tmp_path / "bad").write_bytes(raw[::-1])
    path = prepare_text8(tmp_path / "good")
    before = path.read_bytes()
    with pytest.raises(ValueError, match="not Text8"):
        prepare_text8(tmp_path / "bad")
    assert path.read_bytes() == before


@pytest.mark.parametrize("pack", [zipped, gzip.compress])
def test_a_damaged_archive_is_a_clear_error(raw, tmp_path, home, pack):
    packed = bytearray(pack(raw))
    packed[1000:1100] = bytes(100)
    (tmp_path / "download").write_bytes(packed)
    with pytest.raises(ValueError, match=r"download is (damaged|not Text8)"):
        prepare_text8(tmp_path / "download")
    (tmp_path / "download").write_bytes(pack(raw)[:1500])
    with pytest.raises(ValueError, match="download is damaged"):
        prepare_text8(tmp_path / "download")
    assert left_over(home) == []


def test_an_archive_of_something_else_is_named(raw, tmp_path):
    (tmp_path / "enwik8.zip").write_bytes(zipped(raw, name="enwik8"))
    with pytest.raises(
        ValueError, match=r"enwik8.zip is damaged or not Text8: it must hold a file called text8, got enwik8"
    ):
        prepare_text8(tmp_path / "enwik8.zip")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"no file called .*missing.zip"):
        prepare_text8(tmp_path / "missing.zip")


def test_a_download_is_checked_encoded_and_reported(raw, tmp_path, home, monkeypatch):
    served(monkeypatch, tmp_path, zipped(raw))
    monkeypatch.setattr(cache, "_CHUNK", 1000)
    reports = []
    prepare_text8(progress=lambda done, total: reports.append((done, total)))
    size = len(zipped(raw))
    assert reports == [(min(1000 * (i + 1), size), size) for i in range(-(-size // 1000))]
    assert text8(length=10).codec.decode(text8(length=10).train[:1]) == [raw[:10].decode()]
    assert left_over(home) == [prepare_text8().relative_to(home).as_posix(), "text8/text8.zip"]


def test_what_is_prepared_is_not_downloaded_again(raw, tmp_path):
    (tmp_path / "text8").write_bytes(raw)
    path = prepare_text8(tmp_path / "text8")
    assert prepare_text8() == path  # the fixture fails on any download


def test_a_copy_in_the_data_folder_saves_the_download(raw, home):
    home.mkdir()
    (home / "text8.zip").write_bytes(zipped(raw))
    assert prepare_text8().exists()


def test_a_download_with_another_digest_is_refused_and_nothing_is_kept(raw, tmp_path, home, monkeypatch):
    served(monkeypatch, tmp_path, zipped(raw)[:-1])
    with pytest.raises(ValueError, match=r"served.zip must have the MD5 \w+, got \w+ \([\d,]+ bytes\)"):
        prepare_text8()
    assert left_over(home) == []


@pytest.mark.parametrize(
    "error",
    [
        urllib.error.URLError("Name or service not known"),
        urllib.error.HTTPError("http://text8.invalid", 404, "Not Found", None, None),
        TimeoutError("timed out"),
        ConnectionResetError("reset"),
    ],
    ids=["offline", "404", "timeout", "reset"],
)
def test_without_a_network_the_message_is_one_line_that_offers_a_file(raw, home, monkeypatch, error):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr(urllib.request, "urlopen", fails)
    with pytest.raises(ValueError, match=r"cannot be downloaded \(.+\): .*`dmb prepare text8 --from FILE`") as caught:
        prepare_text8()
    assert "\n" not in str(caught.value)
    assert left_over(home) == []


def test_a_damaged_copy_is_made_again_or_named(raw, tmp_path, home):
    (tmp_path / "mine").write_bytes(raw)
    path = prepare_text8(tmp_path / "mine")
    damaged = bytearray(path.read_bytes())
    damaged[2000] = (damaged[2000] + 1) % 27
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match="text8 is not prepared: run `dmb prepare text8`"):
        text8(length=10)
    (home / "text8.zip").write_bytes(zipped(raw))
    assert "".join(text8(length=1).codec.decode(text8(length=1).train[:])) == raw[:3600].decode()


def test_a_kill_while_encoding_leaves_no_half_file(raw, tmp_path, home, monkeypatch):
    class Killed(BytesIO):
        def read(self, size=-1, /):
            if self.tell() > 0:
                assert len(os.listdir(home / "cache")) == 1  # the temporary file
                raise KeyboardInterrupt
            return super().read(size)

    (tmp_path / "text8").write_bytes(raw)
    monkeypatch.setattr(module, "_CHUNK", 100)
    monkeypatch.setattr(module, "_opened", lambda *_: Killed(raw))
    with pytest.raises(KeyboardInterrupt):
        prepare_text8(tmp_path / "text8")
    assert os.listdir(home / "cache") == []
