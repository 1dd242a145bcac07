// Hugging Face's tokenizer.json.
#include <algorithm>
#include <set>

#include "src/core/mapped.h"
#include "src/data/bpe/byte_alphabet.h"
#include "src/data/bpe/json_fields.h"
#include "src/data/bpe/model.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;  // fields are written in their usual order

// How tokens of SentencePiece become text.
Json byte_fallback_decoder(bool strips_space) {
  Json steps = {{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
                {{"type", "ByteFallback"}},
                {{"type", "Fuse"}}};
  if (strips_space) {
    steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  return {{"type", "Sequence"}, {"decoders", std::move(steps)}};
}

// One reading of a file.
class Reader {
 public:
  Reader(const nlohmann::json& file, const std::string& place)
      : file_(file), json_(field_or_null(file, "model")), place_(place) {}

  BpeModel run() {
    check_components();
    model_.byte_fallback = bool_field(json_, "byte_fallback", false, place_);
    read_decoder(field_or_null(file_, "decoder"));
    read_vocabulary();
    const auto ids = ordinary_tokens(model_, place_);
    read_merges(ids);
    model_.normalizer = field_or_null(file_, "normalizer").dump();
    model_.ignore_merges = bool_field(json_, "ignore_merges", false, place_);
    model_.pre_tokenizer = field_or_null(file_, "pre_tokenizer").dump();
    model_.post_processor = field_or_null(file_, "post_processor").dump();
    read_post_processor(field_or_null(file_, "post_processor"));
    return std::move(model_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    fail_data(place_, ": ", what, " is not supported");
  }

  // What would change ids, and is not done here.
  void check_components() const {
    for (const char* name : {"truncation", "padding"}) {
      if (!field_or_null(file_, name).is_null()) {
        refuse(name);
      }
    }
    const nlohmann::json& type = field_or_null(json_, "type");
    if (type != "BPE" && !(type.is_null() && json_.contains("merges"))) {
      refuse(str("model ", type.is_string() ? type.get<std::string>() : "without merges"));
    }
    const nlohmann::json& dropout = field_or_null(json_, "dropout");
    if (!dropout.is_null() && dropout != 0) {
      refuse("model.dropout");
    }
    for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const nlohmann::json& affix = field_or_null(json_, name);
      if (!affix.is_null() && affix != "") {
        refuse(str("model.", name));
      }
    }
  }

  // Without one, bytes are joined.
  void read_decoder(const nlohmann::json& decoder) {
    if (!model_.byte_fallback) {
      if (!decoder.is_null() && string_field(decoder, "type", place_) != "ByteLevel") {
        refuse(str("decoder ", string_field(decoder, "type", place_)));
      }
      return;
    }
    model_.strips_space = decoder == nlohmann::json(byte_fallback_decoder(true));
    if (!model_.strips_space && decoder != nlohmann::json(byte_fallback_decoder(false))) {
      refuse(
          "model.byte_fallback with a decoder other than Replace of '▁', ByteFallback, Fuse and "
          "Strip of one space");
    }
  }

  void read_vocabulary() {
    const nlohmann::json& vocabulary = field_or_null(json_, "vocab");
    if (!vocabulary.is_object()) {
      fail_field("vocab", "an object of tokens", place_);
    }
    const nlohmann::json none = nlohmann::json::array();
    const nlohmann::json& added =
        file_.contains("added_tokens") ? array_field(file_, "added_tokens", place_) : none;
    size_t size = vocabulary.size();
    for (const nlohmann::json& token : added) {
      size += vocabulary.contains(string_field(token, "content", place_)) ? 0 : 1;
    }
    model_.pieces.resize(size);
    std::set<std::string> contents;
    for (const nlohmann::json& token : added) {
      contents.insert(read_added_token(token, vocabulary));
    }
    if (contents.size() != added.size()) {
      fail_data(place_, ": two added tokens have the same content");
    }
    for (const auto& [printed, id] : vocabulary.items()) {
      if (contents.contains(printed)) {
        continue;
      }
      const std::optional<std::string> bytes = piece_of_printed(model_, printed);
      if (!bytes) {
        fail_data(place_, ": token '", printed, "' is not of byte-level BPE");
      }
      place_piece(*bytes, id, printed);
    }
  }

  std::string read_added_token(const nlohmann::json& json, const nlohmann::json& vocabulary) {
    const std::string content = string_field(json, "content", place_);
    const auto flag = [&](const char* name) { return bool_field(json, name, false, place_); };
    AddedToken token{.special = flag("special"),
                     .in_vocabulary = vocabulary.contains(content),
                     .normalized = flag("normalized"),
                     .single_word = flag("single_word"),
                     .lstrip = flag("lstrip"),
                     .rstrip = flag("rstrip")};
    if (!token.special && (token.single_word || token.lstrip || token.rstrip)) {
      refuse(str("added token '", content, "' with single_word, lstrip or rstrip"));
    }
    token.id = place_piece(content, field_or_null(json, "id"), content);
    if (token.in_vocabulary && vocabulary[content] != token.id) {
      fail_data(place_, ": added token '", content, "' has another id than in the vocabulary");
    }
    model_.added.push_back(token);
    return content;
  }

  int32_t place_piece(const std::string& bytes, const nlohmann::json& id,
                      std::string_view printed) {
    const int32_t place =
        id_of_json(id, std::ssize(model_.pieces), str("token '", printed, "'"), place_);
    if (!model_.pieces[static_cast<size_t>(place)].empty()) {
      fail_data(place_, ": two tokens have the id ", place);
    }
    model_.pieces[static_cast<size_t>(place)] = bytes;
    return place;
  }

  void read_merges(const TokenIds& ids) {
    for (const nlohmann::json& merge : array_field(json_, "merges", place_)) {
      std::string left, right;
      if (merge.is_string()) {
        const auto& both = merge.get_ref<const std::string&>();
        const size_t space = std::min(both.find(' '), both.size());
        left = both.substr(0, space);
        right = both.substr(std::min(space + 1, both.size()));
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
                 merge[1].is_string()) {
        left = merge[0].get<std::string>();
        right = merge[1].get<std::string>();
      }
      const std::string place = str(place_, ": merge ", model_.merges.size() + 1);
      const auto left_bytes = piece_of_printed(model_, left);
      const auto right_bytes = piece_of_printed(model_, right);
      if (left.empty() || right.empty() || !left_bytes || !right_bytes) {
        fail_data(place, ": expected two symbols of byte-level BPE");
      }
      add_merge(*left_bytes, *right_bytes, ids, place, &model_);
    }
  }

  // ByteLevel changes no ids.
  void read_post_processor(const nlohmann::json& json) {
    if (json.is_null()) {
      return;
    }
    const std::string type = string_field(json, "type", place_);
    if (type == "Sequence") {
      for (const nlohmann::json& part : array_field(json, "processors", place_)) {
        if (field_or_null(part, "type") == "Sequence") {
          refuse("a post_processor Sequence in a Sequence");
        }
        read_post_processor(part);
      }
    } else if (type == "TemplateProcessing") {
      if (has_template_) {
        refuse("a second TemplateProcessing in post_processor");
      }
      has_template_ = true;
      read_template(json);
    } else if (type != "ByteLevel") {
      refuse(str("post_processor ", type));
    }
  }

  void read_template(const nlohmann::json& json) {
    int texts = 0;
    for (const nlohmann::json& part : array_field(json, "single", place_)) {
      const nlohmann::json& special = field_or_null(part, "SpecialToken");
      if (special.is_null()) {
        ++texts;
        continue;
      }
      const std::string name = string_field(special, "id", place_);
      const nlohmann::json& token =
          field_or_null(field_or_null(json, "special_tokens"), name.c_str());
      for (const nlohmann::json& id : array_field(token, "ids", place_)) {
        (texts == 0 ? model_.before : model_.after)
            .push_back(id_of_json(id, std::ssize(model_.pieces), str("special token '", name, "'"),
                                  place_));
      }
    }
    if (texts != 1) {
      refuse("a TemplateProcessing that does not name the text once");
    }
  }

  const nlohmann::json& file_;
  const nlohmann::json& json_;  // the model in it
  const std::string& place_;
  BpeModel model_;
  bool has_template_ = false;
};

// With sorted keys, so that equal models are written equally.
Json component(std::string_view json) { return nlohmann::json::parse(json); }

}  // namespace

BpeModel parse_tokenizer_json(std::string_view text, const std::string& place) {
  return model_of_tokenizer_json(parse_object(text, place), place);
}

BpeModel model_of_tokenizer_json(const nlohmann::json& object, const std::string& place) {
  return Reader(object, place).run();
}

std::string tokenizer_json(const BpeModel& model) {
  std::vector<std::string> printed(model.pieces.size());
  std::ranges::transform(model.pieces, printed.begin(),
                         [&](const std::string& piece) { return printed_piece(model, piece); });
  Json added = Json::array();
  std::set<int32_t> beside;  // added tokens that are not in the vocabulary
  for (const AddedToken& token : model.added) {
    const auto id = static_cast<size_t>(token.id);
    printed[id] = model.pieces[id];
    added.push_back({{"id", token.id},
                     {"content", model.pieces[id]},
                     {"single_word", token.single_word},
                     {"lstrip", token.lstrip},
                     {"rstrip", token.rstrip},
                     {"normalized", token.normalized},
                     {"special", token.special}});
    if (!token.in_vocabulary) {
      beside.insert(token.id);
    }
  }
  Json vocabulary = Json::object();
  auto& tokens = vocabulary.get_ref<Json::object_t&>();
  for (size_t id = 0; id < printed.size(); ++id) {
    if (!beside.contains(static_cast<int32_t>(id))) {
      tokens.Json::object_t::Container::emplace_back(printed[id], id);  // not searched for repeats
    }
  }
  Json merges = mapped(model.merges, [&](const BpeMerge& merge) {
    return std::array{printed[merge.left], printed[merge.right]};
  });
  return Json{{"version", "1.0"},
              {"truncation", nullptr},
              {"padding", nullptr},
              {"added_tokens", std::move(added)},
              {"normalizer", component(model.normalizer)},
              {"pre_tokenizer", component(model.pre_tokenizer)},
              {"post_processor", component(model.post_processor)},
              {"decoder", model.byte_fallback ? byte_fallback_decoder(model.strips_space)
                                              : component(kGpt2PreTokenizer)},
              {"model",
               {{"type", "BPE"},
                {"dropout", nullptr},
                {"unk_token", nullptr},
                {"continuing_subword_prefix", nullptr},
                {"end_of_word_suffix", nullptr},
                {"fuse_unk", false},
                {"byte_fallback", model.byte_fallback},
                {"ignore_merges", model.ignore_merges},
                {"vocab", std::move(vocabulary)},
                {"merges", std::move(merges)}}}}
      .dump();
}

}  // namespace tandem
