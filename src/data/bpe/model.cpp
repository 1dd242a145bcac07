#include "src/data/bpe/model.h"

#include <algorithm>
#include <unordered_set>

#include "src/core/error.h"
#include "src/data/bpe/byte_alphabet.h"

namespace tandem {

TokenIds ordinary_tokens(const BpeModel& model, const std::string& place) {
  std::unordered_set<int32_t> others;
  for (const AddedToken& token : model.added) {
    if (token.special || !token.in_vocabulary) {
      others.insert(token.id);
    }
  }
  TokenIds ids;
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    if (model.pieces[i].empty() ||
        (!others.contains(id) && !ids.emplace(model.pieces[i], id).second)) {
      fail_data(place, ": token id ", id, " is missing or repeats another token");
    }
  }
  for (int byte = 0; byte < 256; ++byte) {
    if (!ids.contains(byte_piece(model, byte))) {
      fail_data(place, ": no token for byte ", byte);
    }
  }
  return ids;
}

std::string byte_piece(const BpeModel& model, int byte) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  return model.byte_fallback ? str("<0x", kDigits[byte / 16], kDigits[byte % 16], ">")
                             : std::string(1, static_cast<char>(byte));
}

std::string printed_piece(const BpeModel& model, std::string_view piece) {
  return model.byte_fallback ? std::string(piece) : printed_form(piece);
}

std::optional<std::string> piece_of_printed(const BpeModel& model, std::string_view printed) {
  return model.byte_fallback ? std::string(printed) : bytes_of_printed(printed);
}

void add_merge(std::string_view left, std::string_view right, const TokenIds& ids,
               const std::string& place, BpeModel* model) {
  const std::string result = std::string(left) + std::string(right);
  if (!ids.contains(left) || !ids.contains(right) || !ids.contains(result)) {
    fail_data(place, ": the merge of '", printed_piece(*model, left), "' and '",
              printed_piece(*model, right),
              "' has no token in the vocabulary; do the two belong together?");
  }
  model->merges.push_back({ids.at(left), ids.at(right), ids.at(result)});
}

}  // namespace tandem
