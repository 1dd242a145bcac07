#include "src/io/file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <vector>

#include "src/core/error.h"

namespace tandem {

namespace fs = std::filesystem;

namespace {

bool cannot_rename_directories(int error_number) {
  return error_number == EXDEV || error_number == ENOSYS || error_number == EOPNOTSUPP ||
         error_number == EINVAL;
}

// Throws as fail_file() does. The error is kTemporary if storage does not answer, such as a network
// file system that has lost its server: another start may read the file.
[[noreturn]] void fail_read(const std::string& path, std::string_view doing, int error_number) {
  constexpr std::array kPassing = {EIO, ESTALE, ETIMEDOUT, ENOTCONN, ESHUTDOWN, EHOSTDOWN};
  if (std::ranges::count(kPassing, error_number) > 0) {
    fail(ExitCode::kTemporary, path, ": cannot ", doing, ": ", std::strerror(error_number));
  }
  fail_file(path, doing, error_number);
}

// What `folder` calls the file.
std::string name_in(int folder, const std::string& path) {
  return folder == AT_FDCWD ? path : fs::path(path).filename().string();
}

// Renames a directory. Where that is not possible, the files in it.
void move_directory(const std::string& from, const std::string& to, std::string_view last) {
  if (::rename(from.c_str(), to.c_str()) == 0) {
    return;
  }
  if (!cannot_rename_directories(errno)) {
    fail_file(from, str("rename to ", to), errno);
  }
  make_directories(to);
  for (const fs::directory_entry& file : fs::directory_iterator(from)) {
    if (const std::string name = file.path().filename().string(); name != last) {
      rename_path(from + "/" + name, to + "/" + name);
    }
  }
  const auto sync_both = [&] {
    sync_path(to);
    sync_path(from);
  };
  sync_both();
  if (const std::string end = str(from, "/", last); fs::exists(end)) {
    rename_path(end, str(to, "/", last));
    sync_both();
  }
  remove_tree(from);
}

}  // namespace

std::string parent_of(const std::string& path) {
  const std::string parent = fs::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

bool is_disk_full(int error_number) {
  return error_number == ENOSPC || error_number == EDQUOT || error_number == EFBIG;
}

void fail_file(const std::string& path, std::string_view doing, int error_number) {
  fail_data(path, ": cannot ", doing, ": ", std::strerror(error_number),
            is_disk_full(error_number)
                ? " (disk full or quota reached: free some space, or write elsewhere)"
                : "");
}

std::string require_replaceable(const std::string& path) {
  std::error_code unknown;
  const fs::file_status there = fs::status(path, unknown);
  if (fs::exists(there) && !fs::is_regular_file(there)) {
    fail_data(path, ": cannot write: not a file, but a ",
              fs::is_directory(there) ? "directory" : "device");
  }
  return path;
}

Descriptor::Descriptor(const std::string& path, int flags, std::string_view doing, int folder)
    : Descriptor(::openat(folder, name_in(folder, path).c_str(),
                          flags | O_CLOEXEC | O_NONBLOCK | (flags & O_CREAT ? O_NOFOLLOW : 0),
                          0666)) {
  if (number_ < 0 && errno == ELOOP && (flags & O_CREAT) != 0) {
    fail_data(path, ": a symbolic link, which is not written through; remove it");
  }
  if (number_ < 0 && errno != ENXIO) {
    (flags & O_ACCMODE) == O_RDONLY ? fail_read(path, doing, errno) : fail_file(path, doing, errno);
  }
  struct stat status {};
  if (::fstat(number_, &status) != 0 || !(S_ISREG(status.st_mode) || S_ISDIR(status.st_mode))) {
    fail_data(path, ": not a file");
  }
}

Descriptor::~Descriptor() {
  if (number_ >= 0) {
    ::close(number_);
  }
}

bool is_same_file(int descriptor, const std::string& path) {
  struct stat held {
  }, there{};
  if (::stat(path.c_str(), &there) != 0) {
    return errno != ENOENT && errno != ENOTDIR;
  }
  if (::fstat(descriptor, &held) != 0) {
    return errno != ESTALE;
  }
  return held.st_dev == there.st_dev && held.st_ino == there.st_ino;
}

std::string read_file(const std::string& path, RecordLimit limit) {
  const Descriptor descriptor(path, O_RDONLY);
  const auto name = [&] { return path; };
  struct stat status {};
  limit.check(::fstat(descriptor, &status) == 0 ? status.st_size : 0, name);
  std::string text;
  char buffer[1 << 16];
  ssize_t got = 0;
  do {
    got = ::read(descriptor, buffer, sizeof(buffer));
    text.append(buffer, got > 0 ? static_cast<size_t>(got) : 0);
    limit.check(std::ssize(text), name);  // a file may grow, or say less, as in /proc
  } while (got > 0 || (got < 0 && errno == EINTR));
  if (got < 0) {
    fail_read(path, "read", errno);
  }
  return text;
}

int write_at(int descriptor, int64_t at, const void* bytes, int64_t count) {
  const char* from = static_cast<const char*>(bytes);
  while (count > 0) {
    const ssize_t put = ::pwrite(descriptor, from, static_cast<size_t>(count), at);
    if (put < 0 && errno == EINTR) {
      continue;
    }
    if (put <= 0) {
      return put == 0 ? ENOSPC : errno;
    }
    from += put;
    at += put;
    count -= put;
  }
  return 0;
}

FileReader::FileReader(const std::string& path) : path_(path), descriptor_(path, O_RDONLY) {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    fail_data(path, ": not a file");
  }
  bytes_ = status.st_size;
}

void FileReader::read(int64_t at, int64_t count, void* out) const {
  char* bytes = static_cast<char*>(out);
  while (count > 0) {
    const ssize_t got = ::pread(descriptor_, bytes, static_cast<size_t>(count), at);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      fail_read(path_, str("read byte ", at), errno);
    }
    if (got == 0) {
      fail_data(path_, ": cannot read byte ", at, ": the file was cut short");
    }
    bytes += got;
    at += got;
    count -= got;
  }
}

FileWriter::FileWriter(const std::string& path, Start start, int folder)
    : path_(path),
      descriptor_(path, O_WRONLY | O_CREAT | (start == Start::kEmpty ? O_TRUNC : O_APPEND),
                  "open for writing", folder),
      bytes_(::lseek(descriptor_, 0, SEEK_END)) {}

void FileWriter::write(std::string_view bytes) {
  if (const int problem = write_at(descriptor_, bytes_, bytes.data(), std::ssize(bytes))) {
    // Best effort: the failure is reported either way.
    static_cast<void>(::ftruncate(descriptor_, bytes_) == 0);
    fail_file(path_, "write", problem);
  }
  bytes_ += std::ssize(bytes);
}

void FileWriter::sync() {
  if (::fsync(descriptor_) != 0) {
    fail_file(path_, "write to the disk", errno);
  }
}

bool FileWriter::is_removed() const {
  struct stat status {};
  return ::fstat(descriptor_, &status) == 0 ? status.st_nlink == 0 : errno == ESTALE;
}

NewFile::NewFile(const std::string& path, int folder)
    : path_(require_replaceable(path)),
      folder_(folder),
      file_(path + ".partial", FileWriter::Start::kEmpty, folder) {}

NewFile::~NewFile() {
  if (!is_finished_) {
    ::unlinkat(folder_, name_in(folder_, file_.path()).c_str(), 0);
  }
}

void NewFile::finish() {
  file_.sync();
  rename_path(file_.path(), path_, folder_);
  is_finished_ = true;
  sync_path(folder_ == AT_FDCWD ? parent_of(path_) : ".", folder_);
}

void replace_file(const std::string& path, std::string_view content, int folder) {
  NewFile file(path, folder);
  file.write(content);
  file.finish();
}

void make_directories(const std::string& path) {
  std::error_code error;
  std::vector<std::string> changed;  // folders that get a new name, the innermost first
  for (std::string missing = path; !fs::exists(missing, error); missing = parent_of(missing)) {
    changed.push_back(parent_of(missing));
  }
  fs::create_directories(path, error);
  if (error) {
    fail_file(path, "create the directory", error.value());
  }
  for (size_t i = changed.size(); i-- > 0;) {
    sync_path(changed[i]);
  }
}

void remove_tree(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) {
    fail_file(path, "remove", error.value());
  }
}

void rename_path(const std::string& from, const std::string& to, int folder) {
  if (::renameat(folder, name_in(folder, from).c_str(), folder, name_in(folder, to).c_str()) != 0) {
    fail_file(from, str("rename to ", to), errno);
  }
}

void sync_path(const std::string& path, int folder) {
  const Descriptor descriptor(path, O_RDONLY, "open", folder);
  // EINVAL: a file system that has nothing to sync for a directory.
  if (::fsync(descriptor) != 0 && errno != EINVAL) {
    fail_file(path, "write to the disk", errno);
  }
}

void replace_directory(const std::string& from, const std::string& to, std::string_view last) {
  if (std::error_code unknown; fs::exists(to, unknown)) {
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) {
      sync_path(parent_of(to));
      remove_tree(from);
      return;
    }
    if (!cannot_rename_directories(errno)) {
      fail_file(from, str("rename to ", to), errno);
    }
    remove_tree(to);
  }
  move_directory(from, to, last);
  sync_path(parent_of(to));
}

}  // namespace tandem
