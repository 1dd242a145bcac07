#include "src/serve/json_answer.h"

namespace tandem {

std::string dumped(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string error_json(int status, const std::string& why) {
  const char* type = status == 429   ? "rate_limit_error"
                     : status >= 500 ? "server_error"
                                     : "invalid_request_error";
  return dumped(
      {{"error", {{"message", why}, {"type", type}, {"param", nullptr}, {"code", nullptr}}}});
}

void send_error(HttpAnswer& answer, int status, const std::string& why) {
  HttpHeaders headers;
  if (status == 429 || status == 503) {
    headers.emplace_back("Retry-After", "1");
  }
  answer.send(status, "application/json", error_json(status, why), headers);
}

}  // namespace tandem
