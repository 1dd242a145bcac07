#include <random>

#include "src/data/bpe/bpe_tokenizer.h"
#include "src/data/bpe/trainer.h"
#include "src/data/dataset.h"
#include "src/data/token_dataset.h"
#include "src/prepare/prepare.h"
#include "tests/data/data_files.h"

namespace tandem::testing {
namespace {

using Tokens = std::vector<uint16_t>;

// The bytes, "ab", and two special tokens: 257 ends a text, 258 begins one.
BpeModel small_model() {
  BpeModel model;
  for (int byte = 0; byte < 256; ++byte) {
    model.pieces.emplace_back(1, static_cast<char>(byte));
  }
  model.pieces.insert(model.pieces.end(), {"ab", "</s>", "<s>"});
  model.merges = {{'a', 'b', 256}};
  model.added = {{.id = 257}, {.id = 258, .in_vocabulary = false}};
  return model;
}

PrepareTextOptions bpe_options(const TemporaryFolder& folder, const std::string& input) {
  PrepareTextOptions options;
  options.input = {input};
  options.output = folder / "out.h5";
  options.tokenizer = TokenizerKind::kBpe;
  options.vocab_size = 300;
  options.threads = 1;
  return options;
}

PrepareTextOptions folder_options(const TemporaryFolder& folder, const std::string& input) {
  PrepareTextOptions options = bpe_options(folder, input);
  options.tokenizer = TokenizerKind::kHuggingFace;
  options.vocab = folder.path();
  options.vocab_size = 0;
  return options;
}

TEST(HuggingFaceTokenizer, FindsTheEndOfText) {
  const TemporaryFolder folder;
  folder.write("tokenizer.json", tokenizer_json(small_model()));
  const auto end_of_text = [&] {
    return load_hugging_face_tokenizer(folder.path())->end_of_text();
  };
  EXPECT_EQ(end_of_text(), std::nullopt);
  folder.write("generation_config.json", R"({"eos_token_id": 258})");
  EXPECT_EQ(end_of_text(), 258);
  folder.write("generation_config.json", R"({"eos_token_id": [256, 258]})");
  EXPECT_EQ(end_of_text(), 256);
  folder.write("tokenizer_config.json", R"({"bos_token": "<s>"})");
  EXPECT_EQ(end_of_text(), 256);
  folder.write("tokenizer_config.json", R"({"eos_token": "</s>"})");
  EXPECT_EQ(end_of_text(), 257);
  folder.write("tokenizer_config.json", R"({"eos_token": {"content": "<s>"}})");
  EXPECT_EQ(end_of_text(), 258);
  folder.write("tokenizer_config.json", R"({"eos_token": "ab"})");
  EXPECT_EQ(end_of_text(), 256);
  const auto expect_wrong = [&](const std::string& file, const std::string& text,
                                const std::string& message) {
    folder.write(file, text);
    expect_error(ExitCode::kData, {file + ": " + message}, end_of_text);
  };
  expect_wrong("tokenizer_config.json", R"({"eos_token": "</t>"})", "eos_token '</t>' is not in");
  expect_wrong("tokenizer_config.json", R"({"eos_token": 7})",
               "\"eos_token\" is missing or is not");
  expect_wrong("tokenizer_config.json", "[]", "not a JSON object");
  folder.write("tokenizer_config.json", "{}");
  expect_wrong("generation_config.json", R"({"eos_token_id": 259})", "eos_token_id has no id");
  expect_wrong("generation_config.json", R"({"eos_token_id": []})", "eos_token_id has no id");
}

TEST(HuggingFaceTokenizer, WritesWhatItRead) {
  BpeModel model = small_model();
  model.ignore_merges = true;
  const std::string json = tokenizer_json(model);
  EXPECT_TRUE(tokenizer_json(parse_tokenizer_json(json, "test")) == json);
}

TEST(PrepareText, TheTemplateStandsAroundEachDocument) {
  const TemporaryFolder folder;
  BpeModel model = small_model();
  folder.write("tokenizer_config.json", R"({"eos_token": "</s>"})");
  const std::string input =
      folder.write("a.jsonl", "{\"text\":\"ab\"}\n{\"text\":\"</s>\"}\n{\"text\":\"d\"}\n");
  const auto prepared = [&] {
    folder.write("tokenizer.json", tokenizer_json(model));
    prepare_text(folder_options(folder, input));
    return H5Reader(folder / "out.h5").read_all<uint16_t>("/train/tokens");
  };
  EXPECT_EQ(prepared(), (Tokens{256, 257, '<', '/', 's', '>', 257}));
  const std::string bos = R"({"SpecialToken": {"id": "<s>", "type_id": 0}})";
  const std::string text = R"({"Sequence": {"id": "A", "type_id": 0}})";
  const std::string eos = R"({"SpecialToken": {"id": "</s>", "type_id": 0}})";
  const auto with_template = [&](const std::string& parts) {
    model.post_processor =
        R"({"type": "TemplateProcessing", "single": [)" + parts +
        R"(], "special_tokens": {"<s>": {"ids": [258]}, "</s>": {"ids": [257]}}})";
  };
  with_template(bos + "," + text);
  EXPECT_EQ(prepared(), (Tokens{258, 256, 257, 258, '<', '/', 's', '>', 257}));
  with_template(bos + "," + text + "," + eos);
  EXPECT_EQ(prepared(), (Tokens{258, 256, 257, 258, '<', '/', 's', '>', 257}));
  with_template(bos);
  folder.write("tokenizer.json", tokenizer_json(model));
  expect_error(ExitCode::kData,
               {"tokenizer.json: a TemplateProcessing that does not name the text"},
               [&] { prepare_text(folder_options(folder, input)); });
}

// Hugging Face's tokenizers do not simply put the second template around the first one.
TEST(PrepareText, TwoTemplatesAreRefused) {
  const TemporaryFolder folder;
  BpeModel model = small_model();
  const std::string one =
      R"({"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}]})";
  model.post_processor = R"({"type": "Sequence", "processors": [)" + one + "," + one + "]}";
  expect_error(ExitCode::kData,
               {"tokenizer.json: a second TemplateProcessing in post_processor is not supported"},
               [&] { parse_tokenizer_json(tokenizer_json(model), "tokenizer.json"); });
}

TEST(PrepareText, TheReportShortensLongTokens) {
  const TemporaryFolder folder;
  BpeModel model = small_model();
  const std::string word(1000, 'x');
  model.pieces.push_back(word);
  model.added.push_back({.id = 259, .special = false, .in_vocabulary = false});
  folder.write("tokenizer.json", tokenizer_json(model));
  ::testing::internal::CaptureStdout();
  PrepareTextOptions options = folder_options(folder, folder.write("a.txt", word + "ab"));
  options.val_fraction = 0.0;
  prepare_text(options);
  const std::string shown = ::testing::internal::GetCapturedStdout();
  const std::string expected = "  begins with  259 \"" + std::string(27, 'x') + "...\"  256 \"ab\"";
  EXPECT_NE(shown.find(expected), std::string::npos) << shown;
}

// Without tokens there is no document: this tokenizer removes spaces, and the end of text is there.
TEST(PrepareText, DocumentsWithoutTokensAreNone) {
  const TemporaryFolder folder;
  BpeModel model = small_model();
  model.pre_tokenizer =
      R"({"type": "Sequence", "pretokenizers": [
          {"type": "Split", "pattern": {"String": " "}, "behavior": "Removed", "invert": false},
          {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]})";
  folder.write("tokenizer_config.json", R"({"eos_token": "</s>"})");
  folder.write("tokenizer.json", tokenizer_json(model));
  PrepareTextOptions options = folder_options(
      folder,
      folder.write("a.jsonl",
                   "{\"text\":\"a b\"}\n{\"text\":\" \"}\n{\"text\":\"c\"}\n{\"text\":\" \"}\n"));
  options.val_fraction = 0;
  prepare_text(options);
  const TokenDataset dataset(inspect_dataset(folder / "out.h5"));
  EXPECT_EQ(H5Reader(folder / "out.h5").read_all<uint16_t>("/train/tokens"),
            (Tokens{'a', 'b', 257, 'c', 257}));
  EXPECT_EQ(dataset.document_starts(Split::kTrain), (std::vector<int64_t>{0, 3, 5}));
  EXPECT_EQ(dataset.document_starts(Split::kVal), std::vector<int64_t>{0});
}

TEST(PrepareText, BpeIsTrainedOnTheTrainingPartAlone) {
  const TemporaryFolder folder;
  const std::string input = folder.write("a.txt", "ababab ababab cdcdcdcdcdcdcdcd");
  PrepareTextOptions options = bpe_options(folder, input);
  options.val_fraction = 16.0 / 30;
  const PrepareReport report = prepare_text(options);
  const H5Reader file(folder / "out.h5");
  const auto tokenizer = load_tokenizer(file);
  // After the bytes: ab, abab, ababab, and with the space.
  EXPECT_EQ(tokenizer->vocab_size(), 261);
  EXPECT_EQ(report.vocab_size, 261);
  EXPECT_EQ(tokenizer->piece(257), "ab");
  EXPECT_EQ(tokenizer->piece(260), " ababab");
  EXPECT_EQ(tokenizer->end_of_text(), 0);
  EXPECT_EQ(tokenizer->kind(), "bpe");
  EXPECT_EQ(file.read_all<uint16_t>("/train/tokens"), (Tokens{259, 260, 221}));
  EXPECT_EQ(file.read_all<uint16_t>("/val/tokens").size(), 17u);  // and the end of text
  EXPECT_EQ(compute_content_hash(folder / "out.h5"), report.content_hash);
}

TEST(PrepareText, TheNumberOfThreadsChangesNoResult) {
  const TemporaryFolder folder;
  std::mt19937 random(3);
  std::string text;
  while (text.size() < 1500000) {
    text.append(random() % 6, static_cast<char>('a' + random() % 4));
    text += std::array{" ", "  ", "\n", "'s", "7", "\303\251 ", "! ", ""}[random() % 8];
  }
  const PrepareTextOptions options = bpe_options(folder, folder.write("a.txt", text));
  PrepareTextOptions more = options;
  more.threads = 5;
  EXPECT_EQ(prepare_text(more).content_hash, prepare_text(options).content_hash);
  // Nor does it matter where the threads' shares were cut.
  WordCounts whole;
  PreTokenizer(kGpt2PreTokenizer, "test").for_each_word(text, [&](std::string_view word) {
    ++whole[std::string(word)];
  });
  WordCounter counter(2);
  counter.add(text);
  EXPECT_TRUE(counter.finish() == whole);
  WordCounter many(2, 200000);
  for (std::string_view rest = text; !rest.empty();) {
    std::string_view next = rest.substr(0, 70000);
    next = next.size() == rest.size() ? next : next.substr(0, next.rfind("! ") + 1);
    many.add(next);
    rest.remove_prefix(next.size());
  }
  EXPECT_TRUE(many.finish() == whole);
}

TEST(PrepareText, WrongVocabularySizesAreNamed) {
  const TemporaryFolder folder;
  PrepareTextOptions options = bpe_options(folder, folder.write("a.txt", "text"));
  options.vocab_size = 256;
  expect_error(ExitCode::kConfig, {"--vocab-size 256: allowed are 257"},
               [&] { prepare_text(options); });
  options.tokenizer = TokenizerKind::kChar;
  expect_error(ExitCode::kConfig, {"--vocab-size: only --tokenizer bpe"},
               [&] { prepare_text(options); });
}

TEST(BpeTokenizer, DamagedOnesInFilesAreNamed) {
  const TemporaryFolder folder;
  const std::string good = tokenizer_json(small_model());
  const auto load = [&](const std::string& json, int64_t end_of_text) {
    H5Writer writer(folder / "a.h5");
    writer.create_group("/tokenizer");
    writer.set_attribute("/tokenizer", "kind", std::string("bpe"));
    writer.set_attribute("/tokenizer", "end_of_text", std::vector<int64_t>{end_of_text});
    writer.write_all<uint8_t>("/tokenizer/tokenizer_json",
                              std::vector<uint8_t>(json.begin(), json.end()));
    writer.commit();
    return load_tokenizer(H5Reader(folder / "a.h5"));
  };
  EXPECT_EQ(load(good, -1)->end_of_text(), std::nullopt);
  EXPECT_EQ(load(good, 257)->encode("abc"), (std::vector<int32_t>{256, 'c'}));
  EXPECT_TRUE(load(good, 257)->definition() == good);
  for (const int64_t id : {int64_t{-2}, int64_t{259}, int64_t{1} << 40}) {
    expect_error(ExitCode::kData, {"a.h5: /tokenizer is damaged: ids outside the vocabulary"},
                 [&] { load(good, id); });
  }
  expect_error(ExitCode::kData, {"a.h5: /tokenizer/tokenizer_json: not a JSON object"},
               [&] { load(good.substr(0, good.size() / 2), 257); });
  for (const char* other : {R"({"model": {"type": "Unigram"}})", "{}", R"({"model": 7})"}) {
    expect_error(ExitCode::kData, {"a.h5: /tokenizer/tokenizer_json: model", "is not supported"},
                 [&] { load(other, 257); });
  }
}

}  // namespace
}  // namespace tandem::testing
