// Records how this program changes the files below a folder, and plays the calls back on a file
// system in memory that may have lost some of them.
//
// A program that links file_calls.cpp calls its versions of write(), fsync(), rename() and their
// like. They call those of the C library, and record what succeeded.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace tandem::testing {

struct FileCall {
  enum class Kind : uint8_t {
    kCreate,
    kMakeFolder,
    kWrite,
    kResize,
    kSync,
    kRename,
    kExchange,
    kLink,
    kRemove
  };
  // A name in a folder.
  struct Name {
    uint64_t folder = 0;  // inode
    std::string name{};
  };

  Kind kind = Kind::kWrite;
  int64_t time_ns = 0;  // when it returned, on a clock that all processes of a machine share
  uint64_t file = 0;    // inode of the file or folder
  Name name{};          // kCreate, kMakeFolder, kRemove; kRename, kExchange: the former one
  Name target{};        // kRename, kExchange, kLink: the new one
  int64_t at = 0;       // kWrite: the first byte; kResize: the new size
  std::string bytes{};  // kWrite
  std::string path{};   // as text: the file; for kRename and kExchange "FROM TO"
};

// Starts to record calls on what is below `root`; "" stops. Drops what was recorded before.
void record_file_calls(const std::string& root);
// From now on no directory can be renamed, as on file systems that keep whole paths.
void refuse_folder_renames(bool refuse);
// From now on no file can have a second name, as on file systems without hard links.
void refuse_links(bool refuse);
// From now on a call reads or writes at most so many bytes.
void limit_calls(size_t bytes);
// What was recorded since the last call, in order.
std::vector<FileCall> take_file_calls();

// As bytes, to send them to another rank.
std::string pack(const std::vector<FileCall>& calls);
std::vector<FileCall> unpack(const std::string& bytes);

// A file system that holds what a disk may hold after a power failure.
class FileTree {
 public:
  explicit FileTree(uint64_t root) : root_(root) { nodes_[root].is_folder = true; }

  void apply(const FileCall& call);
  // Every path and content below the root, as one text to compare.
  std::string text() const;
  void write_to(const std::string& folder) const;

 private:
  struct Node {
    bool is_folder = false;
    std::string bytes{};
    std::map<std::string, uint64_t> entries{};
  };
  void collect(const Node& folder, const std::string& path,
               std::map<std::string, const Node*>& found) const;

  uint64_t root_;
  std::map<uint64_t, Node> nodes_;
};

// Of the first `count` calls, those that need not be on the disk yet. A written byte is on the disk
// when its file was synced later; a change of a name, when all folders it concerns were.
std::vector<size_t> unsynced(const std::vector<FileCall>& calls, size_t count);

}  // namespace tandem::testing
