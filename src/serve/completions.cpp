// Requests and answers of OpenAI's completions and chat completions.
#include <algorithm>
#include <cmath>
#include <ctime>
#include <iterator>

#include "src/core/error.h"
#include "src/core/mapped.h"
#include "src/data/chat_template.h"
#include "src/prepare/record_fields.h"
#include "src/prepare/sft_record.h"
#include "src/serve/json_fields.h"
#include "src/serve/text_requests.h"

namespace tandem {

namespace {

constexpr int64_t kUsualTokens = 16, kMostTexts = 128, kMostLikeliest = 5,
                  kMostLikeliestOfChats = 20;

class Completion final : public AnswerForm {
 public:
  Completion(std::string model, bool is_chat, bool counts, int64_t prompt_tokens)
      : model_(std::move(model)),
        is_chat_(is_chat),
        counts_(counts),
        prompt_tokens_(prompt_tokens),
        id_(str(is_chat ? "chatcmpl-" : "cmpl-", created_, "-", next_++)) {}

  nlohmann::ordered_json whole(const std::vector<WrittenText>& texts) const override {
    nlohmann::ordered_json choices = nlohmann::json::array();
    for (size_t i = 0; i < texts.size(); ++i) {
      nlohmann::ordered_json choice = {{"index", i}};
      if (is_chat_) {
        choice["message"] = {{"role", "assistant"}, {"content", texts[i].text}};
      } else {
        choice["text"] = texts[i].text;
      }
      choice["logprobs"] = logprobs(texts[i]);
      choice["finish_reason"] = texts[i].finish_reason();
      choices.push_back(std::move(choice));
    }
    nlohmann::ordered_json answer = head(is_chat_ ? "chat.completion" : "text_completion", choices);
    answer["usage"] = usage(texts);
    return answer;
  }
  nlohmann::ordered_json event(size_t index, const WrittenText& text, const std::string& piece,
                               int32_t) const override {
    if (piece.empty() && !text.has_ended) {
      return nullptr;
    }
    nlohmann::ordered_json choice = {{"index", index}};
    if (is_chat_) {
      choice["delta"] = {{"content", piece}};
      if (!text.is_told) {  // clients join what comes under one name
        choice["delta"]["role"] = "assistant";
      }
    } else {
      choice["text"] = piece;
    }
    choice["logprobs"] = logprobs(text);
    choice["finish_reason"] = nullptr;
    if (text.has_ended) {
      choice["finish_reason"] = text.finish_reason();
    }
    return head(chunk(), nlohmann::ordered_json::array({choice}));
  }
  std::string end(const std::vector<WrittenText>& texts) const override {
    std::string last = "data: [DONE]\n\n";
    if (counts_) {
      nlohmann::ordered_json event = head(chunk(), nlohmann::json::array());
      event["usage"] = usage(texts);
      last.insert(0, server_sent(event));
    }
    return last;
  }

 private:
  nlohmann::ordered_json logprobs(const WrittenText& text) const {
    if (text.chosen.empty()) {
      return nullptr;
    }
    return is_chat_ ? chat_logprobs(text) : text_logprobs(text);
  }
  static nlohmann::ordered_json chat_logprobs(const WrittenText& text) {
    const auto json = [](const ChosenToken::Likely& token) -> nlohmann::ordered_json {
      return {{"token", token.text},
              {"logprob", token.logprob},
              {"bytes", std::vector<uint8_t>(token.text.begin(), token.text.end())}};
    };
    nlohmann::ordered_json content = nlohmann::json::array();
    for (const auto& [chosen, likeliest] : text.chosen) {
      nlohmann::ordered_json token = json(chosen);
      token["top_logprobs"] = mapped(likeliest, json);
      content.push_back(std::move(token));
    }
    return {{"content", std::move(content)}, {"refusal", nullptr}};
  }
  static nlohmann::ordered_json text_logprobs(const WrittenText& text) {
    nlohmann::ordered_json all = {
        {"text_offset", {}}, {"token_logprobs", {}}, {"tokens", {}}, {"top_logprobs", {}}};
    int64_t offset = text.offset;
    for (const auto& [chosen, likeliest] : text.chosen) {
      nlohmann::ordered_json top = nlohmann::json::object();
      for (const ChosenToken::Likely& likely : likeliest) {
        top.emplace(likely.text, likely.logprob);  // of equal texts the likelier one
      }
      top.emplace(chosen.text, chosen.logprob);
      const bool is_first = std::isnan(chosen.logprob);  // of a prompt; JSON has null for NaN
      all["text_offset"].push_back(offset);
      all["token_logprobs"].push_back(chosen.logprob);
      all["tokens"].push_back(chosen.text);
      all["top_logprobs"].push_back(is_first ? nullptr : std::move(top));
      offset += characters(chosen.text);
    }
    return all;
  }
  const char* chunk() const { return is_chat_ ? "chat.completion.chunk" : "text_completion"; }
  nlohmann::ordered_json head(const char* object, nlohmann::ordered_json choices) const {
    return {{"id", id_},
            {"object", object},
            {"created", created_},
            {"model", model_},
            {"choices", std::move(choices)}};
  }
  nlohmann::ordered_json usage(const std::vector<WrittenText>& texts) const {
    const int64_t written = sum_of(texts, &WrittenText::tokens);
    return {{"prompt_tokens", prompt_tokens_},
            {"completion_tokens", written},
            {"total_tokens", prompt_tokens_ + written}};
  }

  static inline int64_t next_ = 0;  // of the one thread that reads requests
  std::string model_;
  bool is_chat_, counts_;
  int64_t prompt_tokens_, created_ = std::time(nullptr);
  std::string id_;
};

struct Prompt {
  std::string text{};
  std::vector<int32_t> tokens{};
};

Prompt prompt_of(const nlohmann::json& value, const ServedModel& model) {
  if (value.is_string()) {
    return {value, tokens_of("plain", value, model)};
  }
  Prompt prompt;
  for (const nlohmann::json& token : value) {
    const int64_t vocab = model.tokenizer->vocab_size();
    if (!token.is_number_integer() || token < 0 || token >= vocab) {
      throw HttpError(400, "'prompt' has a token that is none of 0 to ", vocab - 1);
    }
    prompt.tokens.push_back(token);
  }
  if (prompt.tokens.empty()) {
    throw HttpError(400, "'prompt' is an empty list");
  }
  prompt.text = model.tokenizer->decode(prompt.tokens);
  return prompt;
}

// A text, a list of tokens, or a list of either.
std::vector<Prompt> prompts_of(const nlohmann::json* value, const ServedModel& model) {
  if (!value || !(value->is_string() || value->is_array())) {
    throw HttpError(400, "'prompt' must be a text, a list of tokens, or a list of either");
  }
  if (value->is_string() || value->empty() || value->front().is_number()) {
    return {prompt_of(*value, model)};
  }
  std::vector<Prompt> prompts;
  for (const nlohmann::json& each : *value) {
    if (!each.is_string() && !each.is_array()) {
      throw HttpError(400, "'prompt' must be a text, a list of tokens, or a list of either");
    }
    prompts.push_back(prompt_of(each, model));
  }
  return prompts;
}

// What both kinds of requests have in common.
AskedTexts asked_for(JsonFields& fields, const std::vector<Prompt>& prompts, bool is_chat,
                     const ServedModel& model) {
  if (const std::string name = fields.text("model", model.name); name != model.name) {
    throw HttpError(404, "the model '", name.substr(0, 64), "' does not exist; this is ",
                    model.name);
  }
  const int64_t count = fields.integer("n", 1, 1, kMostTexts);
  if (count * std::ssize(prompts) > kMostTexts) {
    throw HttpError(400, "'n' times the prompts must be at most ", kMostTexts);
  }
  AskedTexts asked{.streams = fields.flag("stream", false)};
  const nlohmann::json* options = fields.find("stream_options");
  bool counts = false;
  if (options) {
    if (!options->is_object() || !asked.streams) {
      throw HttpError(400, "'stream_options' must be an object, and needs 'stream'");
    }
    JsonFields streamed(*options);
    counts = streamed.flag("include_usage", false);
    streamed.finish();
  }
  TextRequest request{.ends = model.ends,
                      .stops = fields.texts("stop"),
                      .sampling = {.temperature = fields.number("temperature", 1, 0, 1000),
                                   .top_k = fields.integer("top_k", 0, 0),
                                   .top_p = fields.number("top_p", 1, 1e-6, 1)}};
  const int64_t seed = fields.integer("seed", -1, 0);
  const bool echoes = !is_chat && fields.flag("echo", false);
  if (!is_chat) {
    request.likeliest = fields.integer("logprobs", -1, 0, kMostLikeliest);
    request.tells_prompt = echoes && request.likeliest >= 0;
  } else if (fields.flag("logprobs", false)) {
    request.likeliest = fields.integer("top_logprobs", 0, 0, kMostLikeliestOfChats);
  } else {
    fields.require_unused("top_logprobs", 0);
  }
  const int64_t wanted = fields.integer("max_tokens", -1, echoes ? 0 : 1);
  int64_t read = 0;
  for (const Prompt& prompt : prompts) {
    const int64_t tokens = std::ssize(prompt.tokens);
    request.prompt = prompt.tokens;
    request.sampling.seed = seed_of(seed);  // another one for each prompt, unless one is given
    request.tokens =
        tokens_after(tokens, is_chat ? fields.integer("max_completion_tokens", wanted, 1) : wanted,
                     is_chat ? model.context : kUsualTokens, model);
    request.is_beginning = !is_chat && prompt.text.empty();
    read += tokens;
    for (request.number = 0; request.number < static_cast<uint64_t>(count); ++request.number) {
      asked.requests.push_back(request);
      asked.texts.push_back({.text = echoes ? prompt.text : ""});
    }
  }
  fields.find("user");
  fields.require_unused("frequency_penalty", 0);
  fields.require_unused("presence_penalty", 0);
  fields.require_unused("logit_bias", nlohmann::json::object());
  if (!is_chat) {
    fields.require_unused("best_of", count);
  }
  fields.finish();
  asked.form = std::make_unique<Completion>(model.name, is_chat, counts, read);
  return asked;
}

}  // namespace

AskedTexts completion_request(const std::string& body, const ServedModel& model) {
  const nlohmann::json object = json_object(body);
  JsonFields fields(object);
  return asked_for(fields, prompts_of(fields.find("prompt"), model), false, model);
}

AskedTexts chat_request(const std::string& body, const ServedModel& model) {
  if (model.form == "plain") {
    throw HttpError(404, "this model has no chat template; start the server with --template");
  }
  const nlohmann::json object = json_object(body);
  JsonFields fields(object);
  const nlohmann::json* given = fields.find("messages");
  ChatTokens chat;
  try {
    const auto messages = chat_messages(given ? *given : nlohmann::json());
    for (const nlohmann::json& each : *given) {
      JsonFields message(each);
      message.find("role"), message.find("content");
      message.finish();
    }
    if (messages.back().role != "user") {
      throw BadRecord("'messages' must end with what the user says");
    }
    append_parts(chat_prompt(model.form, messages), *model.tokenizer, &chat);
  } catch (const BadRecord& bad) {
    throw HttpError(400, bad.what());
  } catch (const Error& error) {
    throw HttpError(400, error.what());
  }
  return asked_for(fields, {{.tokens = std::move(chat.tokens)}}, true, model);
}

}  // namespace tandem
