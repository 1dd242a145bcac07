// The first step of BPE: what text becomes before it is cut into words, by the component
// "normalizer" of a tokenizer.json.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

// The normal form C of valid UTF-8 (Unicode Standard Annex 15): as few characters as compose, "e"
// and an accent as one. It stands in `storage`, or is the text itself where nothing changes.
std::string_view in_normal_form_c(std::string_view text, std::string* storage);

// The text with `content` for each `replaced`, which is not empty, from left to right. What is
// longer than `most` bytes may be left unfinished.
std::string with_replaced(std::string_view text, std::string_view replaced,
                          std::string_view content, size_t most = SIZE_MAX);

class Normalizer {
 public:
  // `json`: null, NFC, Prepend, Replace of a fixed text, or a Sequence of them. Throws kData,
  // beginning with `place`, and naming what is not supported.
  Normalizer(std::string_view json, const std::string& place);

  // Valid UTF-8 after all steps. It stands in `storage`, or is the text itself without any. Throws
  // kData where it grows without measure.
  std::string_view normalize(std::string_view text, std::string* storage) const;

 private:
  struct Step {
    enum { kNfc, kPrepend, kReplace } kind;
    std::string replaced, content;
  };
  void read(const nlohmann::json& json);

  std::string place_;
  std::vector<Step> steps_;
};

}  // namespace tandem
