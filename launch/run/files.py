"""Files that others read while they are written."""
import os


def write(path, text):
    """Writes all or nothing, also for a reader on another host, and when this process is killed."""
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".new", path)
