#include "src/io/file_lock.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <thread>

#include "src/core/error.h"
#include "src/core/visible_text.h"

namespace tandem {

namespace {

std::string on_this_host() {
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  return str(" on ", host, " since ");
}

std::string this_process() {
  char time[64] = "";
  const std::time_t now = std::time(nullptr);
  std::strftime(time, sizeof time, "%Y-%m-%d %H:%M:%S UTC", std::gmtime(&now));
  return str("process ", ::getpid(), on_this_host(), time);
}

}  // namespace

// An open-file-description lock: unlike those of POSIX, it does not go when another descriptor of
// the same file is closed.
FileLock::FileLock(const std::string& path, const std::string& owner, int folder,
                   std::chrono::milliseconds patience)
    : descriptor_(path, O_RDWR | O_CREAT, "open for writing", folder) {
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  const auto began = std::chrono::steady_clock::now();
  for (bool is_first = true; ::fcntl(descriptor_, F_OFD_SETLK, &whole) != 0; is_first = false) {
    const int error_number = errno;
    if (error_number != EAGAIN && error_number != EACCES) {
      complain(str(path, ": cannot be locked (", std::strerror(error_number),
                   "); make sure that no other job writes here"));
      return;
    }
    const std::string holder = visible(read_file(path));
    const bool is_elsewhere = !holder.empty() && holder.find(on_this_host()) == std::string::npos;
    if (!is_elsewhere || std::chrono::steady_clock::now() - began >= patience) {
      fail(is_elsewhere ? ExitCode::kTemporary : ExitCode::kConfig, owner, " is in use by ",
           holder.empty() ? "another process" : holder,
           "; wait until it ends, or choose another run.name");
    }
    if (is_first) {
      complain(str(owner, " is in use by ", holder, "; waits, as its host may be lost"));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  const std::string text = this_process();
  const bool written =
      ::ftruncate(descriptor_, 0) == 0 &&
      ::pwrite(descriptor_, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
  static_cast<void>(written);  // the text only serves a message; the lock holds without it
}

bool FileLock::is_held(const std::string& path) {
  const Descriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (descriptor < 0) {
    return false;
  }
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  return ::fcntl(descriptor, F_OFD_GETLK, &whole) == 0 && whole.l_type != F_UNLCK;
}

}  // namespace tandem
