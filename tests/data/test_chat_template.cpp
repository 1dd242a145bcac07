#include <gtest/gtest.h>

#include "src/data/bpe/bpe_tokenizer.h"
#include "src/data/chat_template.h"
#include "tests/data/data_files.h"
#include "tests/data/sentence_pieces.h"

namespace tandem::testing {
namespace {

BpeTokenizer tokenizer_with(const std::vector<std::string>& marks) {
  BpeModel model = sentence_pieces();
  for (const std::string& mark : marks) {
    model.added.push_back(
        {.id = static_cast<int32_t>(model.pieces.size()), .in_vocabulary = false});
    model.pieces.push_back(mark);
  }
  return {model, "bpe", "model"};
}

// A model is asked with the tokens that it was trained to answer.
TEST(ChatTemplate, APromptIsWhatStandsBeforeAnAnswer) {
  for (const auto& [name, marks] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"chatml", {"<|im_start|>", "<|im_end|>"}},
           {"llama3",
            {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}}}) {
    BpeTokenizer tokenizer = tokenizer_with(marks);
    ChatTokens prompt, whole;
    append_parts(chat_prompt(name, {{"user", "hi"}}), tokenizer, &prompt);
    append_parts(chat_parts(name, {{"user", "hi"}, {"assistant", "h"}}), tokenizer, &whole);
    const auto size = static_cast<std::ptrdiff_t>(prompt.tokens.size());
    ASSERT_LT(size, std::ssize(whole.tokens));
    EXPECT_TRUE(std::equal(prompt.tokens.begin(), prompt.tokens.end(), whole.tokens.begin()));
    for (std::ptrdiff_t i = 0; i <= size; ++i) {
      EXPECT_EQ(whole.loss[static_cast<size_t>(i)], i == size ? 1 : 0) << name << " " << i;
    }
    EXPECT_EQ(prompt.loss, std::vector<uint8_t>(prompt.tokens.size(), 0));
    EXPECT_EQ(chat_end(name), marks.back());
  }
}

TEST(ChatTemplate, AMissingMarkIsNamed) {
  BpeTokenizer tokenizer = tokenizer_with({"<|im_start|>"});
  ChatTokens tokens;
  expect_error(ExitCode::kConfig, {"no special token <|im_end|>"}, [&] {
    append_parts(chat_parts("chatml", {{"user", "hi"}}), tokenizer, &tokens);
  });
}

TEST(ChatTemplate, WhiteSpaceIsThatOfPython) {
  EXPECT_EQ(stripped(" \t\n\x1c\u3000\u2009a\u00a0b\u200b\u0085\r "), "a\u00a0b\u200b");
  EXPECT_EQ(stripped(" \n"), "");
  EXPECT_EQ(stripped(""), "");
}

}  // namespace
}  // namespace tandem::testing
