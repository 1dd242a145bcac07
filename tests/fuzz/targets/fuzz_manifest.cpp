// The manifest of a checkpoint: src/io/checkpoint/manifest.cpp
#include <nlohmann/json.hpp>

#include "src/io/checkpoint/manifest.h"
#include "src/io/content_hash.h"
#include "tests/fuzz/support/fuzz.h"

using namespace tandem;
using Json = nlohmann::ordered_json;

namespace {

void read(const std::string& text) {
  fuzz::accepts(ExitCode::kData, [&] {
    const std::string written = to_json(manifest_from_json(text, "manifest.json"));
    fuzz::check(to_json(manifest_from_json(written, "manifest.json")) == written,
                "a manifest reads back as it was written");
  });
}

}  // namespace

// The text as it is, and with the hash that its content has, which no damage by chance has.
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text = fuzz::text_of(data, size);
  read(text);
  bool is_deep = false;  // dump() is recursive
  const auto note_depth = [&](int depth, Json::parse_event_t, const Json&) {
    is_deep = is_deep || depth > 100;
    return true;
  };
  Json json = Json::parse(text, note_depth, false);
  if (json.is_object() && !is_deep) {
    json.erase("xxh3_128");
    json["xxh3_128"] = hash_of(json.dump(-1, ' ', false, Json::error_handler_t::replace)).hex();
    read(json.dump());
  }
  return 0;
}
