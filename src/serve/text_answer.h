// The answer to a request for texts, whole or as server-sent events.
#pragma once

#include "src/serve/json_answer.h"
#include "src/serve/text_service.h"

namespace tandem {

// A text of an answer, as far as it is written.
struct WrittenText {
  std::string text{};                 // begins with what is shown of the prompt
  std::vector<ChosenToken> chosen{};  // those that no event told of
  int64_t offset = 0;                 // characters before their texts
  int64_t tokens = 0;
  bool is_told = false;  // an event told of it
  bool has_ended = false, is_cut = false;
  const char* finish_reason() const { return is_cut ? "length" : "stop"; }
};

// How an API forms its answers.
class AnswerForm {
 public:
  virtual ~AnswerForm() = default;
  virtual nlohmann::ordered_json whole(const std::vector<WrittenText>& texts) const = 0;
  // The event of `piece`, which is new at the end of the text with this index, and of text.chosen;
  // null: none.
  virtual nlohmann::ordered_json event(size_t index, const WrittenText& text,
                                       const std::string& piece, int32_t token) const = 0;
  // Whether the piece of a text's first event begins with what is shown of the prompt.
  virtual bool tells_prompt_in_event() const { return true; }
  // Events after the last text's.
  virtual std::string end(const std::vector<WrittenText>&) const { return ""; }
};

std::string server_sent(const nlohmann::ordered_json& event);
int64_t characters(std::string_view text);  // of UTF-8

class TextAnswer final : public TextClient {
 public:
  // `texts` has what is shown of their prompts.
  TextAnswer(std::shared_ptr<HttpAnswer> answer, std::unique_ptr<AnswerForm> form,
             std::vector<WrittenText> texts, bool streams)
      : answer_(std::move(answer)),
        form_(std::move(form)),
        texts_(std::move(texts)),
        streams_(streams) {}

  bool is_gone() const override { return is_over_ || answer_->is_gone(); }
  void on_token(size_t index, TextWriter& writer) override;
  void fail(int status, const std::string& why) override;

 private:
  std::shared_ptr<HttpAnswer> answer_;
  std::unique_ptr<AnswerForm> form_;
  std::vector<WrittenText> texts_;
  bool streams_, has_begun_ = false, is_over_ = false;
  size_t ended_ = 0;
};

}  // namespace tandem
