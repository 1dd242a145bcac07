// Files and directories as bytes and names, for what is not HDF5: manifests, logs, event files.
//
// Every failure throws Error(ExitCode::kData) with one line that begins with the path and says what
// to do when the disk is full; but kTemporary where reading fails because storage does not answer.
#pragma once

#include <fcntl.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "src/io/record_limit.h"

namespace tandem {

// Throws the error of a system call: "PATH: cannot DOING: reason".
[[noreturn]] void fail_file(const std::string& path, std::string_view doing, int error_number);

// The folder that a file is in; "." for a name without one.
std::string parent_of(const std::string& path);

// Whether a system call failed for want of space.
bool is_disk_full(int error_number);

// Returns `path`. Throws unless it is a file, or free to become one: a rename to it would replace a
// device such as /dev/null.
std::string require_replaceable(const std::string& path);

// An open file of the system, closed at the end of its life. A `folder` here and below is an open
// directory that holds the file: the file is then opened by the last part of its path, wherever the
// folder has been moved.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  // Opens a file or directory, nothing else: a pipe could be waited for without end, and a device
  // may have no end. With O_CREAT, does not follow a symbolic link, which may come from a stranger.
  // Throws "PATH: cannot DOING: reason" when opening is impossible.
  Descriptor(const std::string& path, int flags, std::string_view doing = "open",
             int folder = AT_FDCWD);
  ~Descriptor();
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  operator int() const { return number_; }
  void swap(Descriptor& other) { std::swap(number_, other.number_); }

 private:
  int number_;
};

// Whether an open file is the one at `path`. True also if the storage does not answer.
bool is_same_file(int descriptor, const std::string& path);

// The whole content of a file. Errors also above the limit.
std::string read_file(const std::string& path, RecordLimit limit = file_limit());

// Writes all bytes at a place of an open file. Returns 0, or the number of the error.
int write_at(int descriptor, int64_t at, const void* bytes, int64_t count);

// A regular file open for reading at any place. Any thread may read.
class FileReader {
 public:
  explicit FileReader(const std::string& path);

  const std::string& path() const { return path_; }
  int64_t bytes() const { return bytes_; }  // the size when the file was opened
  // Fills `out` with `count` bytes from byte `at` on.
  void read(int64_t at, int64_t count, void* out) const;

 private:
  std::string path_;
  Descriptor descriptor_;
  int64_t bytes_ = 0;
};

// A file being written. Every write() goes to the system at once, so that others see it. When a
// write() fails, the file is truncated to its size before the call.
class FileWriter {
 public:
  enum class Start { kEmpty, kEnd };  // replace what the file holds, or append to it

  FileWriter(const std::string& path, Start start, int folder = AT_FDCWD);

  const std::string& path() const { return path_; }
  void write(std::string_view bytes);
  void sync();  // returns when the disk has everything
  // Whether the file has lost its name: what is written to it then is gone when it is closed.
  bool is_removed() const;

 private:
  std::string path_;
  Descriptor descriptor_;
  int64_t bytes_ = 0;
};

// A file that gets its name at the end, durably and in one step: PATH.partial is written, and
// finish() renames it. Without finish(), a file of this name keeps its content, and no
// PATH.partial is left.
class NewFile {
 public:
  explicit NewFile(const std::string& path, int folder = AT_FDCWD);
  ~NewFile();

  void write(std::string_view bytes) { file_.write(bytes); }
  void finish();

 private:
  std::string path_;
  int folder_;
  FileWriter file_;
  bool is_finished_ = false;
};

// Gives a file this content, as a NewFile.
void replace_file(const std::string& path, std::string_view content, int folder = AT_FDCWD);

// Creates a directory and its missing parents, durably; does nothing when it exists.
void make_directories(const std::string& path);

// Removes a file, or a directory with all it holds; does nothing when there is none.
void remove_tree(const std::string& path);

void rename_path(const std::string& from, const std::string& to, int folder = AT_FDCWD);

// Makes the content of a file, or the names in a directory, durable.
void sync_path(const std::string& path, int folder = AT_FDCWD);

// Gives directory `from` the name `to`, durably. When `to` exists, the two are exchanged in one
// step and the old one is removed; on a file system that cannot exchange, it is removed before. On
// a file system that cannot rename directories, the files are moved, and `last` after the others.
void replace_directory(const std::string& from, const std::string& to, std::string_view last);

}  // namespace tandem
