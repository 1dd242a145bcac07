// Requests as Hugging Face's text-generation-inference takes them, which SageMaker's clients send.
#include "src/serve/json_fields.h"
#include "src/serve/text_requests.h"

namespace tandem {

namespace {

constexpr int64_t kUsualTokens = 100;

class GeneratedText final : public AnswerForm {
 public:
  nlohmann::ordered_json whole(const std::vector<WrittenText>& texts) const override {
    return nlohmann::ordered_json::array({{{"generated_text", texts[0].text}}});
  }
  nlohmann::ordered_json event(size_t, const WrittenText& text, const std::string& piece,
                               int32_t token) const override {
    nlohmann::ordered_json event = {
        {"index", text.tokens}, {"token", {{"id", token}, {"text", piece}, {"special", false}}}};
    event["generated_text"] = nullptr;
    if (text.has_ended) {
      event["generated_text"] = text.text;
    }
    event["details"] = nullptr;
    return event;
  }
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
  AskedTexts asked{.form = std::make_unique<GeneratedText>(),
                   .streams = fields.flag("stream", false)};
  TextRequest request;
  request.prompt = tokens_of("plain", prompt, model);
  request.ends = model.ends;
  request.stops = parameters.texts("stop");
  request.tokens = tokens_after(std::ssize(request.prompt),
                                parameters.integer("max_new_tokens", -1, 1), kUsualTokens, model);
  const bool samples = parameters.flag("do_sample", false);
  const double temperature = parameters.number("temperature", 1, 0, 1000);
  request.sampling = {.temperature = samples ? temperature : 0,
                      .top_k = parameters.integer("top_k", 0, 0),
                      .top_p = parameters.number("top_p", 1, 1e-6, 1),
                      .seed = seed_of(parameters.integer("seed", -1, 0))};
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
