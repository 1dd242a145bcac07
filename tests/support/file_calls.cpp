#include "tests/support/file_calls.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <type_traits>
#include <utility>

#include "src/core/error.h"

namespace tandem::testing {

using Kind = FileCall::Kind;

namespace {

struct Recorder {
  std::mutex mutex;
  std::string root;
  std::vector<FileCall> calls;
  bool refuses_folder_renames = false, refuses_links = false;
  size_t most = SIZE_MAX;  // bytes that a call reads or writes
};

Recorder& recorder() {
  static Recorder recorder;
  return recorder;
}

bool is_recorded(const std::string& path) {
  const std::string& root = recorder().root;
  return !root.empty() && path.starts_with(root + "/");
}

void note(FileCall call) {
  call.time_ns = std::chrono::steady_clock::now().time_since_epoch().count();
  const std::lock_guard lock(recorder().mutex);
  recorder().calls.push_back(std::move(call));
}

uint64_t inode(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 ? status.st_ino : 0;
}

FileCall::Name name_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return {inode(path.substr(0, slash)), path.substr(slash + 1)};
}

// The path of an open file.
std::string path_of(int file) {
  char path[4096];
  const ssize_t length = ::readlink(str("/proc/self/fd/", file).c_str(), path, sizeof path);
  return length > 0 ? std::string(path, static_cast<size_t>(length)) : "";
}

std::string path_at(int folder, const char* path) {
  return path[0] == '/' || folder == AT_FDCWD ? path : path_of(folder) + "/" + path;
}

// A call on an open file.
void note_file(Kind kind, int file, int64_t at = 0, const void* bytes = nullptr,
               ssize_t count = 0) {
  if (recorder().root.empty()) {
    return;
  }
  const std::string path = path_of(file);
  struct stat status {};
  if ((is_recorded(path) || path == recorder().root) && ::fstat(file, &status) == 0) {
    note({.kind = kind,
          .file = status.st_ino,
          .at = at,
          .bytes = std::string(static_cast<const char*>(bytes), static_cast<size_t>(count)),
          .path = path});
  }
}

// Before a call that may remove the name, so that the inode is known.
FileCall about_name(Kind kind, const std::string& path) {
  return {.kind = kind, .file = inode(path), .name = name_of(path), .path = path};
}

// Calls the function of the C library that `own` replaces.
template <class Function, class... Args>
auto call_next(const char* name, Function* own, Args... args) {
  static_cast<void>(own);
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name))(args...);
}

// open(), which may create or empty a file.
template <class Function>
int open_recorded(const char* name, Function* own, int folder, const char* path, int flags,
                  unsigned mode) {
  const std::string whole = path_at(folder, path);
  const bool is_new = is_recorded(whole) && (flags & O_CREAT) != 0 && inode(whole) == 0;
  int file = -1;
  if constexpr (std::is_invocable_v<Function, int, const char*, int, unsigned>) {
    file = call_next(name, own, folder, path, flags, mode);
  } else {
    file = call_next(name, own, path, flags, mode);
  }
  if (file >= 0 && is_recorded(whole)) {
    if (is_new) {
      note(about_name(Kind::kCreate, whole));
    } else if ((flags & O_TRUNC) != 0) {
      note_file(Kind::kResize, file);
    }
  }
  return file;
}

// Records `call` if it is below the root and `status` says that it succeeded.
int noted(int status, FileCall call) {
  if (status == 0 && is_recorded(call.path)) {
    note(std::move(call));
  }
  return status;
}

bool is_refused(const std::string& path) {
  return recorder().refuses_folder_renames && is_recorded(path) &&
         std::filesystem::is_directory(path);
}

FileCall about_names(Kind kind, const std::string& from, const std::string& to) {
  FileCall call = about_name(kind, from);
  call.target = name_of(to);
  call.path = from + " " + to;
  return call;
}

unsigned mode_of(int flags, va_list arguments) {
  return (flags & O_CREAT) != 0 ? va_arg(arguments, unsigned) : 0;
}

}  // namespace
}  // namespace tandem::testing

using namespace tandem::testing;

extern "C" {

ssize_t write(int file, const void* bytes, size_t count) {
  const ssize_t put = call_next("write", &write, file, bytes, count);
  if (put > 0) {
    const int error = errno;
    note_file(Kind::kWrite, file, ::lseek(file, 0, SEEK_CUR) - put, bytes, put);
    errno = error;
  }
  return put;
}

ssize_t pread(int file, void* bytes, size_t count, off_t at) {
  return call_next("pread", &pread, file, bytes, std::min(count, recorder().most), at);
}

ssize_t pread64(int file, void* bytes, size_t count, off64_t at) {
  return call_next("pread64", &pread64, file, bytes, std::min(count, recorder().most), at);
}

ssize_t pwrite(int file, const void* bytes, size_t count, off_t at) {
  count = std::min(count, recorder().most);
  const ssize_t put = call_next("pwrite", &pwrite, file, bytes, count, at);
  if (put > 0) {
    note_file(Kind::kWrite, file, at, bytes, put);
  }
  return put;
}

ssize_t pwrite64(int file, const void* bytes, size_t count, off64_t at) {
  count = std::min(count, recorder().most);
  const ssize_t put = call_next("pwrite64", &pwrite64, file, bytes, count, at);
  if (put > 0) {
    note_file(Kind::kWrite, file, at, bytes, put);
  }
  return put;
}

int ftruncate(int file, off_t size) noexcept {
  const int status = call_next("ftruncate", &ftruncate, file, size);
  if (status == 0) {
    note_file(Kind::kResize, file, size);
  }
  return status;
}

int ftruncate64(int file, off64_t size) noexcept {
  const int status = call_next("ftruncate64", &ftruncate64, file, size);
  if (status == 0) {
    note_file(Kind::kResize, file, size);
  }
  return status;
}

int fsync(int file) {
  const int status = call_next("fsync", &fsync, file);
  if (status == 0) {
    note_file(Kind::kSync, file);
  }
  return status;
}

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const unsigned mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_recorded("open", &open, AT_FDCWD, path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const unsigned mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_recorded("open64", &open64, AT_FDCWD, path, flags, mode);
}

int openat(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const unsigned mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_recorded("openat", &openat, folder, path, flags, mode);
}

int rename(const char* from, const char* to) noexcept {
  if (is_refused(from)) {
    errno = EXDEV;
    return -1;
  }
  FileCall call = about_names(Kind::kRename, from, to);
  return noted(call_next("rename", &rename, from, to), std::move(call));
}

int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  if (is_refused(path_at(from_folder, from))) {
    errno = EXDEV;
    return -1;
  }
  FileCall call = about_names(Kind::kRename, path_at(from_folder, from), path_at(to_folder, to));
  return noted(call_next("renameat", &renameat, from_folder, from, to_folder, to), std::move(call));
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to,
              unsigned flags) noexcept {
  if (is_refused(path_at(from_folder, from))) {
    errno = EINVAL;
    return -1;
  }
  FileCall call = about_names(Kind::kExchange, path_at(from_folder, from), path_at(to_folder, to));
  return noted(call_next("renameat2", &renameat2, from_folder, from, to_folder, to, flags),
               std::move(call));
}

int link(const char* from, const char* to) noexcept {
  if (recorder().refuses_links && is_recorded(from)) {
    errno = EPERM;
    return -1;
  }
  FileCall call = about_names(Kind::kLink, from, to);
  return noted(call_next("link", &link, from, to), std::move(call));
}

int mkdir(const char* path, mode_t mode) noexcept {
  const int status = call_next("mkdir", &mkdir, path, mode);
  return noted(status, about_name(Kind::kMakeFolder, path));
}

int unlink(const char* path) noexcept {
  FileCall call = about_name(Kind::kRemove, path);
  return noted(call_next("unlink", &unlink, path), std::move(call));
}

int unlinkat(int folder, const char* path, int flags) noexcept {
  FileCall call = about_name(Kind::kRemove, path_at(folder, path));
  return noted(call_next("unlinkat", &unlinkat, folder, path, flags), std::move(call));
}

int rmdir(const char* path) noexcept {
  FileCall call = about_name(Kind::kRemove, path);
  return noted(call_next("rmdir", &rmdir, path), std::move(call));
}

int remove(const char* path) noexcept {
  FileCall call = about_name(Kind::kRemove, path);
  return noted(call_next("remove", &remove, path), std::move(call));
}

}  // extern "C"

namespace tandem::testing {

void record_file_calls(const std::string& root) {
  const std::lock_guard lock(recorder().mutex);
  recorder().root = root;
  recorder().calls.clear();
}

void refuse_folder_renames(bool refuse) { recorder().refuses_folder_renames = refuse; }

void refuse_links(bool refuse) { recorder().refuses_links = refuse; }

void limit_calls(size_t bytes) { recorder().most = bytes; }

std::vector<FileCall> take_file_calls() {
  const std::lock_guard lock(recorder().mutex);
  return std::exchange(recorder().calls, {});
}

}  // namespace tandem::testing
