// A lock on a file, held by one process. The kernel frees it when the process ends, however it
// ends.
#pragma once

#include <chrono>
#include <string>

#include "src/io/file.h"

namespace tandem {

class FileLock {
 public:
  // Creates the file where it is missing, locks it, and writes into it who holds the lock. Error
  // kConfig "OWNER is in use by process 123 on HOST since TIME; ..." if another process of this
  // host holds it. Storage may need minutes to see that a host is lost, so one of another host is
  // waited for; then the error is kTemporary. Error kData if the file cannot be written. On a file
  // system that has no locks, this prints a warning.
  FileLock(const std::string& path, const std::string& owner, int folder = AT_FDCWD,
           std::chrono::milliseconds patience = std::chrono::seconds(45));

  // Whether the file of this lock is still at `path`. Elsewhere it keeps nobody out.
  bool is_at(const std::string& path) const { return is_same_file(descriptor_, path); }

  // Whether some process holds a FileLock on this file now. False where there is no such file, and
  // on a file system that has no locks.
  static bool is_held(const std::string& path);

 private:
  Descriptor descriptor_;
};

}  // namespace tandem
