// A server with a handler for tests, and a client of plain sockets. Whatever does not come within a
// generous time is an error.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/serve/http/http_server.h"

namespace tandem::testing {

constexpr std::chrono::seconds kGenerous{60};

// Waits until the condition holds; false if it does not within the generous time.
template <class F>
bool eventually(const F& condition);

struct Reply {
  int status = 0;
  std::string head{}, body{};
  bool is_cut = false;  // the connection ended before the body did

  std::string field(const std::string& name) const;  // its value; empty where there is none
};

class Client {
 public:
  // A receive buffer of 0 is the system's.
  explicit Client(int port, int receive_buffer = 0, const std::string& address = "127.0.0.1");
  Client(Client&& other) noexcept
      : socket_(std::exchange(other.socket_, -1)), input_(std::move(other.input_)) {}
  Client& operator=(Client&&) = delete;
  ~Client() { close(); }

  void send(std::string_view bytes);      // all of them, if the server takes them
  bool try_send(std::string_view bytes);  // false if the connection is broken
  Reply read(bool has_body = true);       // the next reply; status 0 where the connection ends
  std::string read_some();                // what comes next, which must not be the end
  std::string read_to_end();
  void close();
  void reset();                          // RST
  bool has_input(int milliseconds = 0);  // or the end, within this time
  void half_close();                     // FIN, but the client still reads

 private:
  bool fill();  // more input; false at the end

  int socket_ = -1;
  std::string input_{};
};

// Paths: /echo... answers with METHOD PATH BODY, /hold keeps the answer for the test, /throw
// throws, /drop forgets the answer, /none is 204, /big is 4 MiB, /bad-header breaks the contract.
class TestServer {
 public:
  explicit TestServer(const HttpLimits& limits = {}, const std::string& host = "127.0.0.1");
  ~TestServer();

  HttpServer& operator*() { return *server_; }
  HttpServer* operator->() { return server_.get(); }
  void end() { server_.reset(); }
  Client client() { return Client(server_->port()); }
  Reply ask(const std::string& request) {
    Client one = client();
    one.send(request);
    return one.read();
  }

  // The next answer that the handler kept; waits for it.
  std::shared_ptr<HttpAnswer> held();
  size_t count_held();                   // those that were not fetched
  std::vector<int> statuses();           // of the requests that are over
  bool ends_with(int status);            // waits until a request is over, and forgets it
  bool has_connections(int64_t wanted);  // waits for so many

 private:
  void handle(HttpRequest request, std::shared_ptr<HttpAnswer> answer);

  std::mutex mutex_{};
  std::condition_variable changed_{};
  std::deque<std::shared_ptr<HttpAnswer>> held_{};
  std::vector<int> statuses_{};
  std::unique_ptr<HttpServer> server_{};
};

std::string get(const std::string& path, const std::string& fields = "");
std::string post(const std::string& path, const std::string& body, const std::string& fields = "");

template <class F>
bool eventually(const F& condition) {
  const auto last = std::chrono::steady_clock::now() + kGenerous;
  std::mutex mutex;
  std::condition_variable never;
  for (std::unique_lock lock(mutex); !condition();) {
    if (std::chrono::steady_clock::now() > last) {
      return false;
    }
    never.wait_for(lock, std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace tandem::testing
