// The instance metadata service of EC2, by IMDSv2: every request carries a token that expires.
// Format: "Instance metadata and user data" in the EC2 user guide.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>

namespace tandem {

class InstanceMetadata {
 public:
  using Clock = std::chrono::steady_clock;

  struct Options {
    std::string server = "169.254.169.254:80";  // ADDRESS:PORT
    std::chrono::milliseconds timeout{1000};    // of one request
    std::chrono::seconds token_lifetime{6 * 60 * 60};
  };

  // Throws Error(kConfig) if the server is no ADDRESS:PORT.
  explicit InstanceMetadata(Options options);

  // The text at a path; empty where there is none (404). Gets a token first, if there is none or
  // half of its lifetime is over, and another one if the service does not accept it. Sends four
  // requests at most, and waits no longer than the time-out for each. Throws Error(kTemporary) if
  // the service does not answer, or answers anything else. `stop` ends the waiting.
  std::optional<std::string> get(const std::string& path, const std::stop_token& stop);

  bool has_had_token() const { return !token_.empty(); }

 private:
  void renew_token(const std::stop_token& stop);

  Options options_;
  std::string address_;
  uint16_t port_ = 0;
  std::string token_;
  Clock::time_point renew_at_;
};

}  // namespace tandem
