// Requests as Hugging Face's text-generation-inference takes them, which SageMaker's clients send.
#include <algorithm>
#include <utility>

#include "src/serve/json_fields.h"
#include "src/serve/text_requests.h"

namespace tandem {

namespace {

constexpr int64_t kUsualTokens = 100;

class GeneratedText final : public AnswerForm {
 public:
  explicit GeneratedText(std::vector<int32_t> ends) : ends_(std::move(ends)) {}

  nlohmann::ordered_json whole(const std::vector<WrittenText>& texts) const override {
    return nlohmann::ordered_json::array({{{"generated_text", texts[0].text}}});
  }
  nlohmann::ordered_json event(size_t, const WrittenText& text, const std::string& piece,
                               int32_t token) const override {
    const bool is_special = std::ranges::count(ends_, token) > 0;
    nlohmann::ordered_json event = {
        {"index", text.tokens},
        {"token", {{"id", token}, {"text", piece}, {"special", is_special}}}};
    event["generated_text"] = nullptr;
    if (text.has_ended) {
      event["generated_text"] = text.text;
    }
    event["details"] = nullptr;
    return event;
  }
  bool tells_prompt_in_event() const override { return false; }

 private:
  std::vector<int32_t> ends_;
};

}  // namespace

AskedTexts invocation_request(const std::string& body, const ServedModel& model) {
  const nlohmann::json object = json_object(body);
  JsonFields fields(object);
  if (!fields.find("inputs")) {
    throw HttpError(400, "'inputs' is missing: the text to continue");
  }
  const std::string prompt = fields.text("inputs");
  const nlohmann::json* given = fields.find("parameters");
  const nlohmann::json none = nlohmann::json::object();
  if (given && !given->is_object()) {
    throw HttpError(400, "'parameters' must be an object");
  }
  JsonFields parameters(given ? *given : none);
  AskedTexts asked{.form = std::make_unique<GeneratedText>(model.ends),
                   .streams = fields.flag("stream", false)};
  TextRequest request;
  request.prompt = tokens_of("plain", prompt, model);
  request.ends = model.ends;
  request.stops = parameters.texts("stop");
  request.tokens = tokens_after(std::ssize(request.prompt),
                                parameters.integer("max_new_tokens", -1, 1), kUsualTokens, model);
  request.sampling = {.temperature = parameters.number("temperature", 1, 0, 1000),
                      .top_k = parameters.integer("top_k", 0, 0),
                      .top_p = parameters.number("top_p", 1, 1e-6, 1),
                      .seed = seed_of(parameters.integer("seed", -1, 0))};
  // With one of these text-generation-inference samples, too.
  const bool is_usual = request.sampling.temperature == 1 && request.sampling.top_k == 0 &&
                        request.sampling.top_p == 1;
  if (!parameters.flag("do_sample", false) && is_usual) {
    request.sampling.temperature = 0;
  }
  request.is_beginning = prompt.empty();
  asked.texts.push_back({.text = parameters.flag("return_full_text", false) ? prompt : ""});
  parameters.require_unused("repetition_penalty", 1);
  for (const char* name : {"details", "decoder_input_details", "watermark"}) {
    parameters.require_unused(name, false);
  }
  parameters.finish();
  fields.finish();
  asked.requests.push_back(std::move(request));
  return asked;
}

}  // namespace tandem
