"""Files that others read while they are written, and files that may be none."""
import os
import stat

from errors import DATA, Failure


def write(path, text):
    """Writes all or nothing, also for a reader on another host, and when this process is killed."""
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".new", path)


def regular(path, flags):
    """An opener for open(), which would wait for ever for the other end of a FIFO. It writes through no symbolic link."""
    if not (flags & os.O_CREAT and os.path.islink(path)):
        number = os.open(path, flags | os.O_NONBLOCK, 0o666)
        if stat.S_ISREG(os.fstat(number).st_mode):
            return number
        os.close(number)
    raise Failure(DATA, f"{path}: is no regular file; remove it, or name another")
