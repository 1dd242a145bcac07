// A stand-in for EC2's instance metadata service, in this process. Its connections are answered one
// after the other.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace tandem::testing {

class FakeMetadata {
 public:
  // The whole reply to a request; empty: none ever comes.
  using Answer = std::function<std::optional<std::string>(const std::string& request)>;

  explicit FakeMetadata(Answer answer);
  ~FakeMetadata();

  std::string server() const { return "127.0.0.1:" + std::to_string(port_); }
  std::vector<std::string> requests() const;

 private:
  void serve();

  Answer answer_;
  int listener_ = -1, port_ = 0;
  mutable std::mutex mutex_;
  std::vector<std::string> requests_;
  std::vector<int> hanging_;  // connections
  std::thread thread_;
};

std::string reply(int status, const std::string& body);

}  // namespace tandem::testing
