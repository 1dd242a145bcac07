// Answers in JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "src/serve/http/http_server.h"

namespace tandem {

// Text as JSON; bytes that are no UTF-8 are replaced.
std::string dumped(const nlohmann::ordered_json& json);
// An error, as OpenAI's API has them.
std::string error_json(int status, const std::string& why);
// Where trying again may help (429, 503), the answer says so.
void send_error(HttpAnswer& answer, int status, const std::string& why);

}  // namespace tandem
