// Bytes of an HTTP client: src/serve/http/http_parser.cpp
#include <string>

#include "src/serve/http/http_parser.h"
#include "tests/fuzz/support/fuzz.h"

using namespace tandem;

namespace {

// What is read of the bytes, `step` at a time; a refusal is its status.
std::string read(const std::string& bytes, size_t step) {
  HttpParser parser({.body_bytes = 1000, .header_bytes = 500});
  std::string seen;
  size_t taken = 0;
  try {
    for (size_t end = step; taken < bytes.size(); end = std::min(end, bytes.size()) + step) {
      taken += parser.take(std::string_view(bytes).substr(taken, end - taken));
      if (parser.is_complete()) {
        const bool is_kept = parser.keeps_alive();
        const HttpRequest request = parser.next();
        fuzz::check(request.body.size() <= 1000, "a body has a limit");
        seen += str(request.method, " ", request.path, " ", request.content_type, " ", request.body,
                    " ", is_kept, "\n");
      }
    }
  } catch (const HttpError& error) {
    return seen + std::to_string(error.status);
  }
  return seen;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes = fuzz::text_of(data, size), whole = read(bytes, bytes.size() + 1);
  for (const size_t step : {1, 3, 64}) {
    fuzz::check(read(bytes, step) == whole, "pieces make no difference");
  }
  return 0;
}
