// An HTTP/1.1 server with one thread. Clients are not trusted: each takes bounded memory and time.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/serve/http/http_request.h"

namespace tandem {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

// The answer to one request: send(), or begin(), any number of write(), and end(). Any thread may
// call these functions, which do not block, and do nothing once the client is gone or the answer is
// complete. If all holders let an answer go before it is complete, the client gets 500; if it is
// being streamed, the connection is closed.
class HttpAnswer {
 public:
  virtual ~HttpAnswer() = default;
  // A whole answer. An empty content type is left out. No text may have control characters.
  virtual void send(int status, std::string content_type, std::string body,
                    HttpHeaders headers = {}) = 0;
  // A streamed answer: its pieces are sent as they come, in chunks whose borders mean nothing.
  virtual void begin(int status, std::string content_type, HttpHeaders headers = {}) = 0;
  virtual void write(std::string piece) = 0;
  virtual void end() = 0;
  // Nobody waits for more: the client hung up or left too much unread, the time is over, or the
  // server ends. May also be true once the answer is complete.
  virtual bool is_gone() const = 0;
};

class HttpServer {
 public:
  // Called on the server's thread, which must not be held up. An exception is answered with 500.
  using Handler = std::function<void(HttpRequest, std::shared_ptr<HttpAnswer>)>;
  // The JSON body of the errors that the server itself answers with.
  using ErrorBody = std::function<std::string(int status, const std::string& what)>;
  // Called on the server's thread when a request is over, with the status of the answer if it was
  // sent whole. Otherwise with 499 where the client hung up or did not read, 504 where the time was
  // over, 500 where a streamed answer was let go, 503 where the server ended.
  using OnEnd = std::function<void(int status)>;

  // Listens on an IPv4 or IPv6 address; 0 is any free port. Throws Error(kConfig) if that cannot
  // be.
  HttpServer(const std::string& host, int port, const HttpLimits& limits, Handler handler,
             ErrorBody error_body, OnEnd on_end);
  ~HttpServer();  // finish(0)

  int port() const;
  int64_t connections() const;  // open ones, and those that are being refused or closed
  void start();                 // starts the thread; clients that came earlier waited
  // Takes no new connections and no new requests; idle connections are closed. Waits until all
  // answers are sent whole, or `grace` is over. Then closes everything and ends the thread.
  void finish(std::chrono::milliseconds grace);

 private:
  struct Core;
  std::shared_ptr<Core> core_;  // answers keep it
};

}  // namespace tandem
