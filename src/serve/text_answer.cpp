#include "src/serve/text_answer.h"

#include <algorithm>

namespace tandem {

std::string server_sent(const nlohmann::ordered_json& event) {
  return "data: " + dumped(event) + "\n\n";
}

int64_t characters(std::string_view text) {
  return std::ranges::count_if(text, [](char byte) { return (byte & 0xC0) != 0x80; });
}

void TextAnswer::on_token(size_t index, TextWriter& writer) {
  if (is_over_) {
    return;
  }
  WrittenText& text = texts_[index];
  std::string piece = writer.take();
  text.text += piece;
  if (text.tokens == 0) {
    text.offset = writer.request().tells_prompt ? 0 : characters(text.text) - characters(piece);
    piece = form_->tells_prompt_in_event() ? text.text : piece;
  }
  std::ranges::move(writer.take_tokens(), std::back_inserter(text.chosen));
  text.tokens = writer.tokens();
  text.has_ended = writer.has_ended();
  text.is_cut = writer.is_cut();
  ended_ += text.has_ended ? 1 : 0;
  if (streams_) {
    if (!std::exchange(has_begun_, true)) {
      answer_->begin(200, "text/event-stream");
    }
    if (const auto event = form_->event(index, text, piece, writer.last()); !event.is_null()) {
      answer_->write(server_sent(event));
      text.is_told = true;
      for (const ChosenToken& told : std::exchange(text.chosen, {})) {
        text.offset += characters(told.chosen.text);
      }
    }
  }
  if (ended_ < texts_.size()) {
    return;
  }
  is_over_ = true;
  if (streams_) {
    answer_->write(form_->end(texts_));
    answer_->end();
  } else {
    answer_->send(200, "application/json", dumped(form_->whole(texts_)));
  }
}

void TextAnswer::fail(int status, const std::string& why) {
  if (std::exchange(is_over_, true)) {
    return;
  }
  if (has_begun_) {
    answer_->write("data: " + error_json(status, why) + "\n\n");
    answer_->end();
    return;
  }
  send_error(*answer_, status, why);
}

}  // namespace tandem
