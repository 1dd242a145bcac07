// A request as the server hands it on, and what a client may ask of the server.
#pragma once

#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "src/core/error.h"

namespace tandem {

struct HttpRequest {
  std::string method;          // a request for HEAD says GET here: the server leaves the body out
  std::string path;            // as the client wrote it, with %XX; what follows a '?' is left out
  std::string content_type{};  // "application/json", lower case, without parameters; "": none
  std::string body{};
};

// A request that is answered with an error.
struct HttpError : std::runtime_error {
  template <class... Args>
  explicit HttpError(int code, const Args&... what)
      : std::runtime_error(str(what...)), status(code) {}
  int status;
};

struct HttpLimits {
  int64_t body_bytes = 1 << 20;    // more: 413
  int64_t header_bytes = 8 << 10;  // of all that is not the body, extensions and trailers of chunks
                                   // included; more: 431
  int64_t connections = 1024;      // more: 503 at once, and the connection is closed
  // A request must be complete this long after its first byte: 408. A connection on which no
  // request begins, and one whose client does not take an answer that is complete, is closed.
  std::chrono::milliseconds arrive{10000};
  // No whole answer after so long: 504; if it is being streamed, the connection is closed.
  std::chrono::milliseconds answer{55000};
  // Bytes of a streamed answer that wait for the client, apart from its largest piece and what the
  // system's buffers take; more: the client counts as gone, and the connection is closed.
  int64_t unread_bytes = 64 << 10;
};

}  // namespace tandem
