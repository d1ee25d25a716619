"""Files that are whole or not there: a report or a checkpoint is never left half written."""

import errno
import os
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path

from eigenclock.errors import EigenclockError

_REASONS = {
    errno.ENOSPC: ("no space is left on the device", "free some space or choose another folder"),
    errno.EDQUOT: ("the disk quota is used up", "free some space or choose another folder"),
    errno.EFBIG: ("the file would be larger than is allowed here", "raise the file size limit (ulimit -f) or choose another folder"),
    errno.EACCES: ("permission denied", "choose a place you may use, or change its permissions"),
    errno.EPERM: ("permission denied", "choose a place you may use, or change its permissions"),
    errno.EROFS: ("the file system is read-only", "choose another folder"),
    errno.ENOENT: ("there is no such file or folder", "check the path"),
    errno.EISDIR: ("it is a folder", "give the path of a file"),
    errno.EEXIST: ("a part of the path is a file, not a folder", "check the path"),  # from making the folders
    errno.ENOTDIR: ("a part of the path is a file, not a folder", "check the path"),
    errno.ENAMETOOLONG: ("the name is too long", "choose a shorter one"),
}


def file_error(action: str, path: str | os.PathLike[str], error: OSError) -> EigenclockError:
    """The error to raise for an ``OSError``: what was tried on which path, why it failed, what to do.

    Example:
        >>> print(file_error("write", "run/report.html", OSError(errno.ENOSPC, "No space left on device")))
        cannot write run/report.html: no space is left on the device; free some space or choose another folder
    """
    reason, remedy = _REASONS.get(error.errno or 0, (error.strerror or str(error), ""))
    return EigenclockError(f"cannot {action} {os.fspath(path)}: {reason}" + (f"; {remedy}" if remedy else ""))


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _regular(path: str) -> os.stat_result | None:
    """The state of the file that is there, None where there is none."""
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def write_whole(path: str | os.PathLike[str], data: bytes | str | Iterable[bytes]) -> Path:
    """Write ``data`` (text as UTF-8, or pieces one after another) so that the file has either its old content or all of the new one.

    The data go to a temporary file in the same folder, are flushed to the disk, and take the name in one step. Pieces are asked for one at
    a time; where making one fails, nothing is written. Folders that are missing are made. A device or a pipe is written to directly.

    Raises:
        EigenclockError: the file cannot be written; the message names the path and the reason.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_whole(Path(folder) / "runs" / "metrics.json", "{}").read_text()
        '{}'
    """
    pieces = (
        [data.encode("utf-8")] if isinstance(data, str) else [bytes(data)] if isinstance(data, bytes | bytearray | memoryview) else data
    )
    try:
        # Through a link, the file it points to is replaced, not the link.
        target = os.path.realpath(os.fspath(path))
        folder = os.path.dirname(target)
        os.makedirs(folder, exist_ok=True)
        there = _regular(target)
        if there is not None and not stat.S_ISREG(there.st_mode):
            with open(target, "wb", buffering=0) as device:
                for piece in pieces:
                    _write_all(device.fileno(), piece)
        else:
            _replace(target, folder, pieces, None if there is None else stat.S_IMODE(there.st_mode))
    except OSError as error:
        raise file_error("write", path, error) from error
    return Path(path)


def _replace(target: str, folder: str, pieces: Iterable[bytes], mode: int | None) -> None:
    temporary = os.path.join(folder, f".eigenclock-{secrets.token_hex(8)}.tmp")
    # 0o666 less the umask, as for any new file; a file that is replaced keeps its permissions.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        try:
            if mode is not None:
                os.chmod(temporary, mode)
            for piece in pieces:
                _write_all(descriptor, piece)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, target)
    except BaseException:  # Ctrl-C too: nothing is left behind
        os.unlink(temporary)
        raise
    _sync_folder(folder)


def _sync_folder(folder: str) -> None:
    """Make the new name itself survive a power cut, where the system can do that."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def append_line(path: str | os.PathLike[str], line: str) -> None:
    """Add one line to a file such as JSONL metrics; when it does not fit, the file keeps only its whole lines.

    Raises:
        EigenclockError: the file cannot be written; the message names the path and the reason.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     log = Path(folder) / "metrics.jsonl"
        ...     append_line(log, '{"step": 1}'); append_line(log, '{"step": 2}')
        ...     log.read_text().splitlines()
        ['{"step": 1}', '{"step": 2}']
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            before = os.fstat(descriptor).st_size
            try:
                _write_all(descriptor, line.rstrip("\n").encode("utf-8") + b"\n")
            except BaseException:
                if stat.S_ISREG(os.fstat(descriptor).st_mode):
                    os.ftruncate(descriptor, before)
                raise
        finally:
            os.close(descriptor)
    except OSError as error:
        raise file_error("write", path, error) from error
