"""Files from the network, kept only if they are the right ones."""

import hashlib
import http.client
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from dmb._core.files import written_whole
from dmb.data.cache import tidy
from dmb.data.reading import Progress

_CHUNK = 1 << 20
_TIMEOUT = 30.0  # seconds without a byte


@contextmanager
def downloaded(
    name: str,
    url: str,
    path: Path,
    *,
    digest: str,
    algorithm: str,
    fetch: bool,
    copy: str = "FILE",
    progress: Progress | None = None,
) -> Iterator[BinaryIO]:
    """The file at `url`, once it is complete and its digest right; it is kept as `path` if the block succeeds.

    Args:
        name: of the data set, as `dmb prepare` has it.
        url: of the file.
        path: where to keep it.
        digest: that it must have, as hexadecimal digits.
        algorithm: of the digest, as `hashlib` calls it.
        fetch: whether the user has asked for it; if not, a ValueError says how to.
        copy: what the user's own copy may be.
        progress: called with the bytes so far and in all (0 if the server does not say).
    """
    if not fetch:
        raise ValueError(
            f"{name} is not prepared: run `dmb prepare {name}`, or `dmb prepare {name} --from {copy}` for your own copy"
        )
    otherwise = f"get a copy elsewhere and run `dmb prepare {name} --from FILE`"
    with written_whole(tidy(path.parent) / path.name) as part, part.open("w+b") as file:
        found = hashlib.new(algorithm, usedforsecurity=False)
        done = 0
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer:
                total = int(answer.headers.get("Content-Length") or 0)
                while chunk := answer.read(_CHUNK):
                    file.write(chunk)
                    found.update(chunk)
                    done += len(chunk)
                    if progress is not None:
                        progress(done, total)
        except (OSError, http.client.HTTPException) as error:
            raise ValueError(f"{url} cannot be downloaded ({error}): {otherwise}") from error
        if found.hexdigest() != digest:
            raise ValueError(
                f"{url} must have the {algorithm.upper()} {digest}, got {found.hexdigest()} ({done:,} bytes): "
                f"try again, or {otherwise}"
            )
        yield file
