// A text that a language model writes token by token.
#pragma once

#include <string>
#include <vector>

#include "src/data/tokenizer.h"
#include "src/inference/token_sampler.h"

namespace tandem {

struct TextRequest {
  std::vector<int32_t> prompt{};     // at least one token
  std::vector<int32_t> ends{};       // tokens that end the text
  std::vector<std::string> stops{};  // texts that end it, and are no part of it
  int64_t tokens = 200;              // the most to write; 0: only the prompt is read
  SamplingOptions sampling{};
  uint64_t number = 0;        // of the texts with one seed
  int64_t likeliest = -1;     // how many tokens to tell of beside each chosen one; below 0: of none
  bool tells_prompt = false;  // of its tokens, too, as if they were chosen
  bool is_beginning = true;   // nothing stands before the text, as StreamDecoder says
};

// A token that was chosen.
struct ChosenToken {
  struct Likely {
    std::string text;  // of the token
    // Natural logarithm of what the model gives it, before any temperature. NaN for the first
    // token of a prompt, which nothing precedes.
    double logprob;
  };
  Likely chosen;
  std::vector<Likely> likeliest;  // in falling order
};

class TextWriter {
 public:
  // The tokenizer must outlive it.
  TextWriter(TextRequest request, const Tokenizer& tokenizer);
  const TextRequest& request() const { return request_; }

  // Tells of the prompt's token with this index, after the first, from its logits [vocab].
  void read(size_t index, std::span<const float> logits) { tell(request_.prompt[index], logits); }
  // Chooses the next token from its logits [vocab], or ends a text that has none.
  void next(std::span<const float> logits);
  int32_t last() const { return last_; }      // the token chosen last
  int64_t tokens() const { return tokens_; }  // chosen, with a token of `ends`
  bool has_ended() const { return has_ended_; }
  bool is_cut() const { return is_cut_; }  // it ended because it has so many tokens
  // The text since the last call. What may be the beginning of a stop text is held back.
  std::string take() { return std::exchange(ready_, {}); }
  // The tokens since the last call, if the request wants to know.
  std::vector<ChosenToken> take_tokens() { return std::exchange(chosen_, {}); }

 private:
  bool push(const std::string& text);
  void release(size_t count);
  void tell(int32_t token, std::span<const float> logits);

  TextRequest request_;
  const Tokenizer& tokenizer_;
  TokenSampler sampler_;
  StreamDecoder decoder_;
  std::string held_, ready_;
  std::vector<ChosenToken> chosen_;
  int32_t last_ = 0;
  int64_t tokens_ = 0;
  bool has_ended_ = false, is_cut_ = false;
};

}  // namespace tandem
