// One connection of a client: requests come, and answers go, one after the other.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "src/serve/http/http_outbox.h"
#include "src/serve/http/http_parser.h"
#include "src/serve/http/http_server.h"

namespace tandem {

class HttpConnection;

// What all connections share. Only the server's thread uses it, except for the counts.
struct HttpService {
  HttpLimits limits{};
  HttpServer::Handler handler{};
  HttpServer::ErrorBody error_body{};
  HttpServer::OnEnd on_end{};
  boost::asio::io_context io{};
  std::set<HttpConnection*> open{};
  std::atomic<int64_t> served = 0, refused = 0;  // connections
};

// Lives as long as an operation on its socket or timer is under way.
class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(std::shared_ptr<HttpService> service, boost::asio::ip::tcp::socket socket);
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;
  ~HttpConnection();

  void serve();
  void refuse();           // one connection too many
  void drain();            // the answer that is under way is the last one
  void close(int status);  // with the status of the request that ends by that, if there is one

 private:
  enum class Phase {
    kRequest,   // waits for one, or reads it
    kContinue,  // sends "100 Continue"
    kAnswer,    // waits for the answer, or sends it
    kLinger,    // has sent its last answer, and waits until the client has read it
    kClosed,
  };

  // What is called after an operation: keeps the connection, does nothing once it is closed.
  template <class F>
  auto then(F f);
  void set_deadline(std::chrono::milliseconds time);
  void on_deadline();
  void read();
  void on_read(const boost::system::error_code& error, size_t bytes);
  void parse();
  void handle();
  void collect();
  void write(std::string bytes);
  void on_written();
  void answer_error(int status, const std::string& what);
  void finish();
  void linger();

  const std::shared_ptr<HttpService> service_;
  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer timer_;
  std::atomic<int64_t>* count_ = nullptr;  // of the service; it has this connection
  Phase phase_ = Phase::kRequest;
  HttpParser parser_;
  std::array<char, 16 << 10> input_{};
  std::string ahead_{};     // bytes that came and were not parsed yet
  bool has_begun_ = false;  // a byte of the request came
  bool is_reading_ = false, is_writing_ = false;
  bool has_hung_up_ = false;

  // The answer under way.
  std::shared_ptr<HttpOutbox> outbox_{};  // none for errors of the server itself
  std::string output_{};                  // what is being written
  size_t pieces_ = 0;                     // bytes of it that came from the outbox
  int status_ = 0;                        // 0: not yet known
  bool is_head_ = false, is_http_11_ = true, keeps_alive_ = true;
  bool has_body_ = true, is_chunked_ = false, is_complete_ = false;
};

}  // namespace tandem
