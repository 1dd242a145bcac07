#include "src/data/tokenizer.h"

#include <algorithm>
#include <array>
#include <iomanip>
#include <numeric>
#include <utility>

#include "src/core/error.h"
#include "src/data/chat_template.h"

namespace tandem {
namespace {

class CharTokenizer : public Tokenizer {
 public:
  explicit CharTokenizer(std::vector<int32_t> code_points) : code_points_(std::move(code_points)) {
    require(std::is_sorted(code_points_.begin(), code_points_.end(), std::less_equal<>()),
            "char tokenizer: code points must rise strictly");
    for (const int32_t code_point : code_points_) {
      append_utf8(code_point, &pieces_.emplace_back());
    }
    ascii_.fill(-1);
    for (size_t id = 0; id < code_points_.size() && code_points_[id] < 128; ++id) {
      ascii_[code_points_[id]] = static_cast<int32_t>(id);
    }
  }

  std::string_view kind() const override { return "char"; }
  int64_t vocab_size() const override { return std::ssize(code_points_); }
  std::string_view piece(int32_t token) const override { return pieces_[token]; }

  void append_tokens(std::string_view text, std::vector<int32_t>* tokens,
                     const Drain& drain) override {
    for (size_t at = 0; at < text.size();) {
      const Utf8Step step = read_utf8(text, at);
      tokens->push_back(id_of(step.code_point < 0 ? 0xFFFD : step.code_point));
      at += static_cast<size_t>(step.length);
      drain_if_full(*tokens, drain);
    }
  }

 private:
  void save_vocabulary(H5Writer* file) const override {
    file->write_all<int32_t>("/tokenizer/code_points", code_points_);
  }

  int32_t id_of(int32_t code_point) const {
    if (const auto at = static_cast<size_t>(code_point); at < ascii_.size() && ascii_[at] >= 0) {
      return ascii_[at];
    }
    const auto found = std::lower_bound(code_points_.begin(), code_points_.end(), code_point);
    if (found == code_points_.end() || *found != code_point) {
      std::string shown;
      if (code_point >= 32) {
        append_utf8(code_point, &shown);
      }
      const std::string number =
          str("U+", std::hex, std::uppercase, std::setfill('0'), std::setw(4), code_point);
      fail_data("the character '", shown, "' (", number,
                ") is not in the vocabulary of the char tokenizer, which holds the ",
                code_points_.size(), " characters of its training text");
    }
    return static_cast<int32_t>(found - code_points_.begin());
  }

  std::vector<int32_t> code_points_;
  std::vector<std::string> pieces_;
  std::array<int32_t, 128> ascii_{};
};

class BytesTokenizer : public Tokenizer {
 public:
  BytesTokenizer() { std::iota(bytes_.begin(), bytes_.end(), '\0'); }

  std::string_view kind() const override { return "bytes"; }
  int64_t vocab_size() const override { return 256; }
  std::string_view piece(int32_t token) const override { return {&bytes_[token], 1}; }

  void append_tokens(std::string_view text, std::vector<int32_t>* tokens,
                     const Drain& drain) override {
    for (const char byte : text) {
      tokens->push_back(static_cast<uint8_t>(byte));
      drain_if_full(*tokens, drain);
    }
  }

 private:
  std::array<char, 256> bytes_{};
};

std::string_view checked_piece(const Tokenizer& tokenizer, int32_t token) {
  if (token < 0 || token >= tokenizer.vocab_size()) {
    fail_data("token id ", token, " is outside the ", tokenizer.kind(), " vocabulary of ",
              tokenizer.vocab_size());
  }
  return tokenizer.piece(token);
}

}  // namespace

std::vector<int32_t> Tokenizer::encode(std::string_view text) {
  std::vector<int32_t> tokens;
  append_tokens(text, &tokens);
  return tokens;
}

std::string Tokenizer::decode(std::span<const int32_t> tokens) const {
  std::string text;
  for (const int32_t token : tokens) {
    text += checked_piece(*this, token);
  }
  repair_utf8(&text);
  return strips_space() && text.starts_with(' ') ? text.substr(1) : text;
}

void Tokenizer::save(H5Writer* file) const {
  file->create_group("/tokenizer");
  file->set_attribute("/tokenizer", "kind", std::string(kind()));
  if (!chat_template.empty()) {
    file->set_attribute("/tokenizer", "chat_template", chat_template);
  }
  save_vocabulary(file);
}

std::string StreamDecoder::push(int32_t token) {
  std::string_view piece = checked_piece(tokenizer_, token);
  if (std::exchange(strips_space_, false) && piece.starts_with(' ')) {
    piece.remove_prefix(1);
  }
  return stream_.push(piece);
}

std::unique_ptr<Tokenizer> make_char_tokenizer(std::vector<int32_t> code_points) {
  return std::make_unique<CharTokenizer>(std::move(code_points));
}

std::unique_ptr<Tokenizer> make_bytes_tokenizer() { return std::make_unique<BytesTokenizer>(); }

namespace {

std::unique_ptr<Tokenizer> read_tokenizer(const H5Reader& file) {
  const std::string kind = file.string_attribute("/tokenizer", "kind");
  if (kind == "bytes") {
    return make_bytes_tokenizer();
  }
  if (kind == "gpt2") {
    return read_gpt2_tokenizer(file);
  }
  if (kind == "bpe") {
    return read_bpe_tokenizer(file);
  }
  if (kind != "char") {
    fail_data(file.path(), ": unknown tokenizer '", kind,
              "' (char, bytes, gpt2 and bpe are known)");
  }
  auto code_points = file.read_all<int32_t>("/tokenizer/code_points");
  if (code_points.empty() || code_points.front() < 0 || code_points.back() > 0x10FFFF ||
      !std::is_sorted(code_points.begin(), code_points.end(), std::less_equal<>())) {
    fail_data(file.path(), ": /tokenizer/code_points is damaged");
  }
  return make_char_tokenizer(std::move(code_points));
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const H5Reader& file) {
  if (!file.exists("/tokenizer")) {
    fail_data(file.path(), ": holds no tokenizer (/tokenizer)");
  }
  auto tokenizer = read_tokenizer(file);
  if (file.has_attribute("/tokenizer", "chat_template")) {
    tokenizer->chat_template = file.string_attribute("/tokenizer", "chat_template");
    if (!is_chat_template(tokenizer->chat_template)) {
      fail_data(file.path(), ": unknown chat template '", tokenizer->chat_template, "'");
    }
  }
  return tokenizer;
}

}  // namespace tandem
