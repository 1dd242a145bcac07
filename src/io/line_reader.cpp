#include "src/io/line_reader.h"

#include <cstring>
#include <string_view>

#include "src/core/error.h"

namespace tandem {

bool LineReader::next(std::string* line) {
  constexpr int64_t kBlock = int64_t{1} << 20;
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  line->clear();
  ended_in_newline_ = false;
  for (;;) {
    if (at_ == buffer_.size()) {
      const bool is_first = stream_.position() == 0;
      buffer_.resize(kBlock);
      buffer_.resize(static_cast<size_t>(stream_.read(buffer_.data(), kBlock)));
      const std::string_view text(buffer_.data(), buffer_.size());
      at_ = is_first && text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
      if (at_ == buffer_.size()) {
        number_ += line->empty() ? 0 : 1;
        return !line->empty();
      }
    }
    const char* begin = buffer_.data() + at_;
    const size_t left = buffer_.size() - at_;
    const void* found = std::memchr(begin, '\n', left);
    const size_t length =
        found == nullptr ? left : static_cast<size_t>(static_cast<const char*>(found) - begin);
    line->append(begin, length);
    limit_.check(std::ssize(*line), [&] { return str(stream_.path(), ":", number_ + 1); });
    at_ += length;
    if (found != nullptr) {
      ++at_;
      ++number_;
      ended_in_newline_ = true;
      return true;
    }
  }
}

}  // namespace tandem
