#include <array>
#include <cstdlib>
#include <random>
#include <sstream>

#include "src/data/bpe/bpe_tokenizer.h"
#include "src/data/bpe/merger.h"
#include "src/data/bpe/pre_tokenizer.h"
#include "src/data/tokenizer.h"
#include "tests/data/data_files.h"

namespace tandem::testing {
namespace {

// The first 250 merges of GPT-2's published vocab.bpe, two symbols each.
constexpr const char* kMerges = R"(
Ġ t Ġ a h e i n r e o n Ġt he e r Ġ s a t Ġ w Ġ o e n Ġ c i t i s a n o r e s Ġ b e d Ġ f in g Ġ
p o u Ġa n a l a r Ġt o Ġ m Ġo f Ġ in Ġ d Ġ h Ġan d i c a s l e Ġt h i on o m l l en t Ġ n Ġ l s
t Ġ re v e Ġ e r o l y Ġb e Ġ g Ġ T c t Ġ S i d o t Ġ I u t e t Ġ A Ġ is Ġ on i m a m o w a y a d
s e Ġth at Ġ C i g Ġf or a c Ġ y v er u r Ġ u l d Ġs t Ġ M ' s Ġ he Ġ it at ion it h i r c e Ġy
ou i l Ġ B Ġw h o l Ġ P Ġw ith Ġ 1 t er c h Ġa s Ġw e Ġ ( n d i ll Ġ D i f Ġ 2 a g er s k e Ġ " Ġ
H e m Ġc on Ġ W Ġ R he r Ġw as Ġ r o d Ġ F u l at e Ġa t r i p p o re ĠT he Ġs e u s Ġp ro Ġh a u
m Ġa re Ġd e a in an d Ġo r ig h es t is t a b r om Ġ N t h Ġc om Ġ G u n o p 0 0 Ġ L Ġn ot es s
Ġe x Ġ v re s Ġ E e w it y an t Ġb y e l o s or t o c q u Ġf rom Ġha ve Ġs u i ve ou ld Ġs h Ġth
is n t r a p e igh t ar t m ent Ġa l u st en d - - al l Ġ O ac k Ġc h Ġ le i es re d ar d â Ģ ou
t Ġ J Ġa b e ar i v al ly ou r o st g h p t Ġp l as t Ġc an a k om e u d T he Ġh is Ġd o Ġg o Ġh
as g e ' t Ġ U r ou Ġs a Ġ j Ġb ut Ġw or Ġa ll e ct Ġ k am e Ġw ill o k Ġw he Ġthe y id e 0 1 f f
ic h p l t her Ġt r . . Ġin t i e u re ag e Ġn e i al a p in e ic e Ġm e Ġo ut an s on e
)";

// Mixed text, and the ids that OpenAI's encoder.py gives for it: with the 250 merges above, and
// with the whole published vocabulary.
struct Golden {
  std::string text;
  std::vector<int32_t> small;
  std::vector<int32_t> full;
};

const std::vector<Golden>& golden() {
  static const std::vector<Golden> instance = {
      {"Hello world", {39, 68, 297, 78, 476, 335}, {15496, 995}},
      {"The quick brown fox's tail isn't there; we're they'll I'd you've I'm IT'S",
       {464, 220, 421, 291, 74,  275, 305, 86, 77,  277, 78,  87,  338, 256,
        64,  346, 318, 77,  470, 262, 260, 26, 356, 6,   260, 484, 6,   297,
        314, 6,   67,  345, 6,   303, 314, 6,  76,  314, 51,  6,   50},
       {464, 2068, 7586, 21831, 338, 7894, 2125, 470,  612,  26, 356, 821,
        484, 1183, 314,  1549,  345, 1053, 314,  1101, 7283, 6,  50}},
      {"def f(x):\n    return x ** 2  # square\n",
       {67, 68,  69, 277, 7, 87, 8,   25,  198, 220, 220, 220, 302, 83,  333,
        77, 220, 87, 220, 9, 9,  362, 220, 220, 2,   264, 421, 64,  260, 198},
       {4299, 277, 7, 87, 2599, 198, 220, 220, 220, 1441, 2124, 12429, 362, 220, 1303, 6616, 198}},
      {"   leading and trailing   \n\n\t tabs\t\t",
       {220, 220, 443, 324, 278, 290, 256, 430, 346, 278, 220,
        220, 220, 198, 198, 197, 256, 397, 82,  197, 197},
       {220, 220, 3756, 290, 25462, 220, 220, 220, 628, 197, 22524, 197, 197}},
      {"\344\270\255\346\226\207\345\210\206\350\257\215\346\265\213\350\257\225 "
       "\346\227\245\346\234\254\350\252\236 \355\225\234\352\265\255\354\226\264",
       {160, 116, 255, 162, 244, 229, 161, 230, 228, 164, 107, 235, 162,
        113, 233, 164, 107, 243, 220, 162, 245, 98,  162, 250, 105, 164,
        103, 252, 220, 169, 243, 250, 166, 113, 255, 168, 244, 112},
       {40792, 23877, 229,   26344, 228, 46237, 235, 38184, 233, 46237, 243, 10545, 245, 98,
        17312, 105,   45739, 252,   220, 47991, 250, 166,   113, 255,   168, 244,   112}},
      {"\360\237\221\251\342\200\215\360\237\221\251\342\200\215\360\237\221\247 emoji "
       "\360\237\230\200!",
       {172, 253, 239, 102, 447, 235, 172, 253, 239, 102, 447, 235, 172, 253,
        239, 100, 304, 76,  78,  73,  72,  220, 172, 253, 246, 222, 0},
       {41840, 102, 447, 235, 41840, 102, 447, 235, 41840, 100, 44805, 30325, 222, 0}},
      {"Numbers 3.14159, 2024 \302\275 \342\205\253 \331\243",
       {45, 388, 65, 364, 220, 18,  13,  16,  19,  16,  20,  24,  11, 362,
        15, 17,  19, 220, 126, 121, 220, 158, 227, 104, 220, 149, 96},
       {49601, 513, 13, 1415, 19707, 11, 48609, 25208, 2343, 227, 104, 18923, 96}},
      {"e\314\201 combining cafe\314\201 n\314\203",
       {68, 136, 223, 401, 65, 259, 278, 269, 64, 69, 68, 136, 223, 299, 136, 225},
       {68, 136, 223, 19771, 26725, 136, 223, 299, 136, 225}},
      {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
       {64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64,
        64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64},
       {24794, 24794, 24794, 24794, 24794, 24794, 24794, 24794, 24794, 24794}},
      {"\302\240nbsp\343\200\200wide\341\240\216ver\341\232\200ogham\342\200\250ls\302\205nel\034f"
       "s",
       {126, 254, 77, 65,  82,  79,  159, 222, 222, 86,  485, 157, 254, 236, 332, 157,
        248, 222, 78, 456, 321, 447, 101, 75,  82,  126, 227, 77,  417, 216, 69,  82},
       {1849, 77,    24145, 5099, 222, 4421, 157, 254, 236,  332, 157, 248,
        222,  46664, 321,   447,  101, 7278, 126, 227, 4954, 216, 9501}},
      {"<|endoftext|>",
       {27, 91, 437, 78, 69, 83, 68, 87, 83, 91, 29},
       {27, 91, 437, 1659, 5239, 91, 29}},
      {"", {}, {}},
  };
  return instance;
}

// How the published files write a byte (encoder.py, bytes_to_unicode).
std::array<std::string, 256> printed_bytes(std::vector<int>* order) {
  std::array<std::string, 256> printed;
  std::vector<int> others;
  for (int byte = 0; byte < 256; ++byte) {
    const bool plain = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
    (plain ? *order : others).push_back(byte);
    append_utf8(plain ? byte : 255 + static_cast<int32_t>(others.size()),
                &printed[static_cast<size_t>(byte)]);
  }
  order->insert(order->end(), others.begin(), others.end());
  return printed;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    out += (c == '"' || c == '\\') ? std::string("\\") + c : std::string(1, c);
  }
  return out + "\"";
}

// Writes encoder.json and vocab.bpe of the 250 merges; the ids are numbered as the published ones
// are.
void write_small_vocabulary(const TemporaryFolder& folder) {
  std::vector<int> order;
  const auto printed = printed_bytes(&order);
  std::string json = "{";
  int id = 0;
  for (const int byte : order) {
    json += quoted(printed[static_cast<size_t>(byte)]) + ": " + str(id++) + ", ";
  }
  std::string bpe = "#version: 0.2\n";
  std::istringstream merges(kMerges);
  for (std::string left, right; merges >> left >> right;) {
    bpe += left + " " + right + "\n";
    json += quoted(left + right) + ": " + str(id++) + ", ";
  }
  folder.write("encoder.json", json + "\"<|endoftext|>\": " + str(id) + "}");
  folder.write("vocab.bpe", bpe);
}

using Words = std::vector<std::string>;

Words words_of(const PreTokenizer& pre_tokenizer, const std::string& text) {
  Words words;
  pre_tokenizer.for_each_word(text, [&](std::string_view word) { words.emplace_back(word); });
  return words;
}

TEST(PreTokenizer, CutsAsGpt2sPattern) {
  const PreTokenizer gpt2(kGpt2PreTokenizer, "test");
  const auto words = [&](const std::string& text) { return words_of(gpt2, text); };
  EXPECT_EQ(words("it's we'LL 12ab"), (Words{"it", "'s", " we", "'", "LL", " 12", "ab"}));
  EXPECT_EQ(
      words("can't they're I've I'm she'll he'd"),
      (Words{"can", "'t", " they", "'re", " I", "'ve", " I", "'m", " she", "'ll", " he", "'d"}));
  EXPECT_EQ(words("a   b \n\n c  "), (Words{"a", "  ", " b", " \n\n", " c", "  "}));
  // In Python's `regex`, U+00A0 is white space; U+180E and U+001C are not.
  EXPECT_EQ(words("\302\240\302\240x"), (Words{"\302\240", "\302\240", "x"}));
  EXPECT_EQ(words("\341\240\216! \034!"), (Words{"\341\240\216!", " \034!"}));
}

TEST(PreTokenizer, LongRunsAreNoTrap) {
  const PreTokenizer gpt2(kGpt2PreTokenizer, "test");
  const std::string spaces(5000000, ' '), letters(5000000, 'a');
  EXPECT_EQ(words_of(gpt2, spaces + "x"), (Words{spaces.substr(1), " x"}));
  EXPECT_EQ(words_of(gpt2, letters), Words{letters});
}

// The loop of encoder.py: merges all occurrences of the best pair at once, and repeats.
std::vector<int32_t> merge_as_reference(std::vector<int32_t> word,
                                        const std::vector<BpeMerge>& merges) {
  for (size_t rank = 0; rank < merges.size();) {
    std::vector<int32_t> next;
    for (size_t i = 0; i < word.size(); ++i) {
      const bool hit =
          i + 1 < word.size() && word[i] == merges[rank].left && word[i + 1] == merges[rank].right;
      next.push_back(hit ? merges[rank].result : word[i]);
      i += hit ? 1 : 0;
    }
    // Only after a merge can there be a new pair of lower rank.
    rank = next.size() < word.size() ? 0 : rank + 1;
    word = next;
  }
  return word;
}

TEST(BytePairMerger, MergesAsTheReferenceLoop) {
  // Three letters, and random merges of tokens that exist so far. Each merge has its own result, as
  // in trained BPE.
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<BpeMerge> merges;
    for (int32_t next = 3; next < 15; ++next) {
      merges.push_back(
          {static_cast<int32_t>(random() % next), static_cast<int32_t>(random() % next), next});
    }
    std::vector<int32_t> word(random() % 40);
    for (int32_t& symbol : word) {
      symbol = static_cast<int32_t>(random() % 3);
    }
    std::vector<int32_t> merged = word;
    BytePairMerger(merges).merge(&merged);
    EXPECT_EQ(merged, merge_as_reference(word, merges));
  }
}

TEST(BytePairMerger, AWordOfAMillionLetters) {
  std::vector<int32_t> word(1 << 20, 0);
  BytePairMerger({{0, 0, 1}, {1, 1, 2}, {2, 2, 3}}).merge(&word);
  EXPECT_EQ(word, std::vector<int32_t>((1 << 20) / 8, 3));
}

TEST(Gpt2Tokenizer, GivesTheReferenceIds) {
  const TemporaryFolder folder;
  write_small_vocabulary(folder);
  const auto tokenizer = load_gpt2_tokenizer(folder.path());
  EXPECT_EQ(tokenizer->vocab_size(), 257 + 250);
  EXPECT_EQ(tokenizer->end_of_text(), 256 + 250);
  for (const Golden& one : golden()) {
    EXPECT_EQ(tokenizer->encode(one.text), one.small) << one.text;
    EXPECT_EQ(tokenizer->decode(one.small), one.text);
  }
  EXPECT_EQ(tokenizer->encode("a\377b"), tokenizer->encode("a\357\277\275b"));
}

TEST(Gpt2Tokenizer, GivesTheSameIdsAsTokenizerJson) {
  const TemporaryFolder folder;
  write_small_vocabulary(folder);
  const std::string json = tokenizer_json(read_gpt2_files(folder.path()));
  BpeTokenizer tokenizer(parse_tokenizer_json(json, "test"), "bpe", "test");
  for (const Golden& one : golden()) {
    EXPECT_EQ(tokenizer.encode(one.text), one.small) << one.text;
  }
}

TEST(Gpt2Tokenizer, GivesThePublishedIds) {
  const char* vocabulary = std::getenv("TANDEM_GPT2_VOCAB");
  if (vocabulary == nullptr) {
    GTEST_SKIP() << "set TANDEM_GPT2_VOCAB to the folder of OpenAI's encoder.json and vocab.bpe";
  }
  const auto tokenizer = load_gpt2_tokenizer(vocabulary);
  EXPECT_EQ(tokenizer->vocab_size(), 50257);
  EXPECT_EQ(tokenizer->end_of_text(), 50256);
  for (const Golden& one : golden()) {
    EXPECT_EQ(tokenizer->encode(one.text), one.full) << one.text;
    EXPECT_EQ(tokenizer->decode(one.full), one.text);
  }
}

TEST(Gpt2Tokenizer, StreamsWholeCharacters) {
  const TemporaryFolder folder;
  write_small_vocabulary(folder);
  const auto tokenizer = load_gpt2_tokenizer(folder.path());
  const std::string text = "xz \360\237\230\200!";
  StreamDecoder decoder(*tokenizer, true);
  std::vector<std::string> parts;
  for (const int32_t token : tokenizer->encode(text)) {
    parts.push_back(decoder.push(token));
  }
  EXPECT_EQ(parts, (std::vector<std::string>{"x", "z", " ", "", "", "", "\360\237\230\200", "!"}));
  EXPECT_EQ(decoder.finish(), "");
  decoder.push(tokenizer->encode("\360\237\230\200")[0]);
  EXPECT_EQ(decoder.finish(), "\357\277\275");
  expect_error(ExitCode::kData, {"token id 507 is outside the gpt2 vocabulary of 507"},
               [&] { decoder.push(507); });
}

TEST(Gpt2Tokenizer, DamagedFilesAreNamed) {
  const TemporaryFolder folder;
  expect_error(ExitCode::kData, {"encoder.json: cannot open"},
               [&] { load_gpt2_tokenizer(folder.path()); });
  write_small_vocabulary(folder);
  const std::string encoder = read_bytes(folder / "encoder.json");
  const std::string bpe = read_bytes(folder / "vocab.bpe");
  folder.write("vocab.bpe", bpe + "zz zz\n");
  expect_error(ExitCode::kData, {"vocab.bpe:252:", "belong together"},
               [&] { load_gpt2_tokenizer(folder.path()); });
  folder.write("vocab.bpe", bpe + "word\n");
  expect_error(ExitCode::kData, {"vocab.bpe:252:", "two symbols"},
               [&] { load_gpt2_tokenizer(folder.path()); });
  folder.write("vocab.bpe", bpe);
  folder.write("encoder.json", encoder.substr(0, 1000));
  expect_error(ExitCode::kData, {"encoder.json: not a JSON object"},
               [&] { load_gpt2_tokenizer(folder.path()); });
  folder.write("encoder.json", "{\"a\": 7}");
  expect_error(ExitCode::kData, {"encoder.json: token 'a' has no id from 0 to 0"},
               [&] { load_gpt2_tokenizer(folder.path()); });
  folder.write("encoder.json", "{\"a\": 0}");
  expect_error(ExitCode::kData, {"encoder.json: no token for byte 0"},
               [&] { load_gpt2_tokenizer(folder.path()); });
}

TEST(CharTokenizer, KnowsItsCharactersOnly) {
  const auto tokenizer = make_char_tokenizer({'\n', 'a', 'b', 0xE9, 0x1F600});
  EXPECT_EQ(tokenizer->vocab_size(), 5);
  EXPECT_EQ(tokenizer->end_of_text(), std::nullopt);
  const std::vector<int32_t> ids = {1, 3, 4, 0, 2};
  EXPECT_EQ(tokenizer->encode("a\303\251\360\237\230\200\nb"), ids);
  EXPECT_EQ(tokenizer->decode(ids), "a\303\251\360\237\230\200\nb");
  expect_error(ExitCode::kData, {"'\303\250' (U+00E8)", "the 5 characters"},
               [&] { tokenizer->encode("a\303\250"); });
  expect_error(ExitCode::kData, {"'' (U+0009)"}, [&] { tokenizer->encode("\t"); });
}

TEST(BytesTokenizer, TakesEveryByte) {
  const auto tokenizer = make_bytes_tokenizer();
  std::string all;
  std::vector<int32_t> ids;
  for (int byte = 0; byte < 256; ++byte) {
    all.push_back(static_cast<char>(byte));
    ids.push_back(byte);
  }
  EXPECT_EQ(tokenizer->vocab_size(), 256);
  EXPECT_EQ(tokenizer->encode(all), ids);
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{0xC3, 0xA9}), "\303\251");
  EXPECT_EQ(tokenizer->piece(200), std::string_view("\310"));
}

TEST(Tokenizer, LivesInsideAFile) {
  const TemporaryFolder folder;
  write_small_vocabulary(folder);
  std::vector<std::unique_ptr<Tokenizer>> all;
  all.push_back(make_char_tokenizer({'\n', ' ', 'H', 'd', 'e', 'l', 'o', 'r', 'w'}));
  all.push_back(make_bytes_tokenizer());
  all.push_back(load_gpt2_tokenizer(folder.path()));
  for (const auto& tokenizer : all) {
    H5Writer writer(folder / "a.h5");
    tokenizer->save(&writer);
    writer.commit();
    const auto loaded = load_tokenizer(H5Reader(folder / "a.h5"));
    EXPECT_EQ(loaded->kind(), tokenizer->kind());
    EXPECT_EQ(loaded->vocab_size(), tokenizer->vocab_size());
    EXPECT_EQ(loaded->end_of_text(), tokenizer->end_of_text());
    EXPECT_EQ(loaded->encode("Hello world\n"), tokenizer->encode("Hello world\n"));
    EXPECT_EQ(loaded->decode(tokenizer->encode("Hello world\n")), "Hello world\n");
    for (int32_t token = 0; token < tokenizer->vocab_size(); ++token) {
      ASSERT_EQ(loaded->piece(token), tokenizer->piece(token));
    }
  }
  H5Writer(folder / "none.h5").commit();
  expect_error(ExitCode::kData, {"none.h5: holds no tokenizer (/tokenizer)"},
               [&] { load_tokenizer(H5Reader(folder / "none.h5")); });
}

}  // namespace
}  // namespace tandem::testing
