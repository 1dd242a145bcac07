// Unicode's normal form C, which some tokenizers give text before they cut it into words.
#pragma once

#include <string>
#include <string_view>

namespace tandem {

// The normal form C of valid UTF-8 (Unicode Standard Annex 15): as few characters as compose, "e"
// and an accent as one. It stands in `storage`, or is the text itself where nothing changes.
std::string_view in_normal_form_c(std::string_view text, std::string* storage);

}  // namespace tandem
