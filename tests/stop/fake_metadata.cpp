#include "tests/stop/fake_metadata.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "src/core/error.h"

namespace tandem::testing {

FakeMetadata::FakeMetadata(Answer answer) : answer_(std::move(answer)) {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  const bool good = ::bind(listener_, generic, size) == 0 && ::listen(listener_, 16) == 0 &&
                    ::getsockname(listener_, generic, &size) == 0;
  require(good, "FakeMetadata: cannot listen");
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { serve(); });
}

FakeMetadata::~FakeMetadata() {
  ::shutdown(listener_, SHUT_RDWR);  // ends accept()
  thread_.join();
  ::close(listener_);
  for (const int connection : hanging_) {
    ::close(connection);
  }
}

std::vector<std::string> FakeMetadata::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

void FakeMetadata::serve() {
  for (int connection; (connection = ::accept(listener_, nullptr, nullptr)) >= 0;) {
    std::string request;
    char bytes[4096];
    ssize_t count = 1;
    while (request.find("\r\n\r\n") == std::string::npos && count > 0) {
      count = ::recv(connection, bytes, sizeof bytes, 0);
      request.append(bytes, static_cast<size_t>(std::max<ssize_t>(count, 0)));
    }
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(request);
    }
    if (const std::optional<std::string> text = answer_(request)) {
      static_cast<void>(::send(connection, text->data(), text->size(), MSG_NOSIGNAL));
      ::close(connection);
    } else {
      hanging_.push_back(connection);
    }
  }
}

std::string reply(int status, const std::string& body) {
  return str("HTTP/1.1 ", status, " Status\r\nContent-Length: ", body.size(), "\r\n\r\n", body);
}

}  // namespace tandem::testing
