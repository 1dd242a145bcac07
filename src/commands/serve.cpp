// tandem serve: a trained model behind HTTP.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>

#include "src/commands/commands.h"
#include "src/commands/request.h"
#include "src/core/visible_text.h"
#include "src/inference/image_classifier.h"
#include "src/inference/model_tokenizer.h"
#include "src/inference/prompt.h"
#include "src/inference/trained_model.h"
#include "src/serve/http/http_server.h"
#include "src/serve/image_requests.h"
#include "src/serve/text_requests.h"
#include "src/weights/stored_weights.h"

namespace tandem {

namespace {

constexpr const char* kUsage =
    R"(tandem serve: answers requests for texts, or for the classes of images, over HTTP

  tandem serve runs/NAME --port 8080
  curl localhost:8080/v1/completions -d '{"prompt": "Once upon", "max_tokens": 50}'
  curl localhost:8080/invocations -H 'Content-Type: image/jpeg' --data-binary @cat.jpg

Paths: GET /ping and POST /invocations as SageMaker asks for them (the latter as text-generation-inference takes it, or
a JPEG or PNG file where the model reads images), POST /v1/completions and /v1/chat/completions and GET /v1/models as
OpenAI's clients do, GET /metrics for Prometheus. On the CPU an answer depends on its request alone, to the bit, not on
those beside it. There is no encryption and no key: leave the address local, or put a proxy before it. SIGTERM or
SIGINT: running texts end; a second one ends at once.)";

struct Request {
  std::string checkpoint, base, adapter, form = "plain", tokenizer, host = "127.0.0.1", name;
  int64_t port = 8080, batch = 16, context = 0, queue = 64, max_body_kb = 1024, timeout_s = 55,
          grace_s = 25;
  RunConfig run{};
  bool help = false;
  Options options{kUsage};

  Request() {
    add_model(options, checkpoint, base, adapter);
    options.add("tokenizer", tokenizer,
                "file or folder with the tokenizer; the model's own when not given");
    add_template(options, form,
                 "of /v1/chat/completions; plain: what the model's chat_template.jinja is");
    options.add("name", name, "of the model in requests; its folder's when not given");
    options.add("host", host, "address to listen on; 0.0.0.0: all");
    options.add("port", port, "0: a free one", 0, 65535);
    options.add("batch", batch,
                "texts that are written side by side, or images that go through the model together",
                1, 1024);
    options.add("context", context,
                "window of a text, prompt included, which takes memory; 0: the model's", 0,
                1 << 24);
    options.add("queue", queue, "requests that may wait; more are refused with 429", 1, 1 << 20);
    options.add("max-body-kb", max_body_kb, "largest body of a request", 1, 1 << 20);
    options.add("timeout-s", timeout_s, "longest time for an answer, then 504", 1, 86400);
    options.add("grace-s", grace_s, "how long what runs has to end after SIGTERM", 0, 86400);
    run.bind_device(options, "device");
    options.add("threads", run.threads, "CPU threads of the model; 0: all cores", 0, 4096);
    options.add("help", help, "print this");
  }
};

std::string folder_name(const std::string& path) {
  const std::filesystem::path whole = std::filesystem::absolute(path).lexically_normal();
  return (whole.has_filename() ? whole : whole.parent_path()).filename().string();
}

constexpr std::chrono::milliseconds kLastAnswers{1000};  // for clients to read them

volatile std::sig_atomic_t is_loading = 1, stop_requested = 0;

// Nothing was accepted while the model was loaded.
void on_signal(int number) {
  if (is_loading || stop_requested) {
    ::_exit(is_loading ? 0 : 128 + number);
  }
  stop_requested = 1;
}

// What is behind the paths: requests that wait, and a model that answers them.
class Endpoint {
 public:
  virtual ~Endpoint() = default;
  virtual const DatasetInfo& sizes() const = 0;
  virtual ModelState& state() = 0;
  virtual std::map<std::string, Api::Post> posts() = 0;
  // Runs the model until a signal comes. `ready` is called when it can be asked.
  virtual void run(const TrainedModel& trained, Machine& machine, DType dtype,
                   const std::function<void()>& ready) = 0;
};

bool is_asked_to_stop() { return stop_requested != 0; }

class TextEndpoint final : public Endpoint {
 public:
  TextEndpoint(const Request& request, const std::string& name, const StoredModel& stored,
               const Config& config, ServeMetrics& metrics)
      : request_(request), service_(request.queue, metrics) {
    sizes_.path = tokenizer_path(request.tokenizer, stored.checkpoint, config);
    encoder_ = tokenizer_at(sizes_.path);
    decoder_ = tokenizer_at(sizes_.path);
    sizes_.vocab_size = encoder_->vocab_size();
    const std::string form =
        request.form == "plain" ? chat_template_of(stored.checkpoint) : request.form;
    const int64_t longest = config.model->context();
    if (request.context > longest) {
      fail(ExitCode::kConfig, "--context ", request.context,
           " must be at most model.context = ", longest);
    }
    model_ = {.name = name,
              .form = form,
              .context = request.context > 0 ? request.context : longest,
              .ends = end_tokens(form, stored.checkpoint, *encoder_),
              .tokenizer = encoder_.get()};
  }
  const DatasetInfo& sizes() const override { return sizes_; }
  ModelState& state() override { return service_; }
  std::map<std::string, Api::Post> posts() override { return text_posts(model_, service_); }
  void run(const TrainedModel& trained, Machine& machine, DType,
           const std::function<void()>& ready) override {
    const std::unique_ptr<Decoder> decoder =
        decoder_of(trained, machine, request_.batch, model_.context);
    TextBatch batch(*decoder, machine.stream, sizes_.vocab_size);
    ready();
    service_.run(batch, *decoder_, is_asked_to_stop, std::chrono::seconds(request_.grace_s));
  }

 private:
  const Request& request_;
  DatasetInfo sizes_{.kind = DatasetKind::kText};
  // One encodes requests, on the API's thread; the other one decodes on the model's.
  std::unique_ptr<Tokenizer> encoder_, decoder_;
  ServedModel model_{};
  TextService service_;
};

class ImageEndpoint final : public Endpoint {
 public:
  ImageEndpoint(const Request& request, const StoredModel& stored, const Config& config,
                ServeMetrics& metrics)
      : request_(request),
        images_(classes_of(stored.checkpoint, config)),
        service_(request.queue, metrics) {
    if (!request.tokenizer.empty() || request.context > 0 || request.form != "plain") {
      fail(ExitCode::kConfig, "--tokenizer, --context and --template are for texts, and ",
           stored.checkpoint, " reads images: leave them out");
    }
  }
  const DatasetInfo& sizes() const override { return images_; }
  ModelState& state() override { return service_; }
  std::map<std::string, Api::Post> posts() override { return image_posts(images_, service_); }
  void run(const TrainedModel& trained, Machine& machine, DType dtype,
           const std::function<void()>& ready) override {
    ImageClassifier classifier(trained, machine, images_, dtype);
    ready();
    service_.run(classifier, request_.batch, is_asked_to_stop,
                 std::chrono::seconds(request_.grace_s));
  }

 private:
  const Request& request_;
  DatasetInfo images_;
  ImageService service_;
};

void serve(const Request& request, World& world) {
  catch_ends(on_signal);
  const StoredModel stored =
      resolve_model(world.control(), request.checkpoint, request.base, request.adapter);
  const Config config = config_of(stored);
  const std::string name = request.name.empty() ? folder_name(request.checkpoint) : request.name;
  ServeMetrics metrics;
  std::unique_ptr<Endpoint> endpoint;
  if (config.model->reads_text()) {
    endpoint = std::make_unique<TextEndpoint>(request, name, stored, config, metrics);
  } else {
    endpoint = std::make_unique<ImageEndpoint>(request, stored, config, metrics);
  }
  Api api({.name = name, .posts = endpoint->posts(), .queue = request.queue}, endpoint->state(),
          metrics);
  HttpServer server(
      request.host, static_cast<int>(request.port),
      {.body_bytes = request.max_body_kb << 10, .answer = std::chrono::seconds(request.timeout_s)},
      [&](HttpRequest asked, const std::shared_ptr<HttpAnswer>& answer) {
        api.handle(std::move(asked), answer);
      },
      error_json, [&](int status) { metrics.count_answer(status); });
  server.start();
  Machine machine(request.run, {.tensor = 1, .backend = Backend::kMpi}, world);
  const DType dtype = machine.device() == Device::kCpu ? DType::kF32 : config.train.precision;
  const TrainedModel trained =
      load_trained_model(stored, endpoint->sizes(), dtype, machine, world.control());
  const auto ready = [&] {
    is_loading = 0;
    endpoint->state().open();
    const bool is_v6 = request.host.find(':') != std::string::npos;
    const std::string host = is_v6 ? "[" + request.host + "]" : request.host;
    show("serving %s at http://%s:%d\n", stored.checkpoint.c_str(), host.c_str(), server.port());
    std::fflush(stdout);
  };
  try {
    endpoint->run(trained, machine, dtype, ready);
  } catch (const Error&) {
    server.finish(kLastAnswers);
    throw;
  }
  server.finish(kLastAnswers);
}

}  // namespace

ExitCode serve_command(const Words& words, World& world) {
  Request request;
  require_one_process(world, "serve");
  std::vector<std::string> problems = request.options.apply_words(words, "checkpoint");
  if (!request.help && request.checkpoint.empty()) {
    problems.push_back("--checkpoint is missing, such as `tandem serve runs/NAME`");
  }
  fail_if_any(problems);
  if (request.help) {
    return print_help(request.options, world);
  }
  serve(request, world);
  return ExitCode::kOk;
}

}  // namespace tandem
