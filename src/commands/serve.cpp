// tandem serve: a trained language model behind HTTP.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>

#include "src/commands/commands.h"
#include "src/commands/request.h"
#include "src/core/visible_text.h"
#include "src/inference/model_tokenizer.h"
#include "src/inference/prompt.h"
#include "src/inference/trained_model.h"
#include "src/serve/http/http_server.h"
#include "src/serve/text_requests.h"
#include "src/weights/stored_weights.h"

namespace tandem {

namespace {

constexpr const char* kUsage = R"(tandem serve: answers requests for texts over HTTP

  tandem serve runs/NAME --port 8080
  curl localhost:8080/v1/completions -d '{"prompt": "Once upon", "max_tokens": 50}'

Paths: GET /ping and POST /invocations as SageMaker asks for them (the latter as text-generation-inference takes it),
POST /v1/completions and /v1/chat/completions and GET /v1/models as OpenAI's clients do, GET /metrics for Prometheus.
On the CPU a text depends on its request alone, to the bit, not on those beside it. There is no encryption and no key:
leave the address local, or put a proxy before it. SIGTERM or SIGINT: running texts end; a second one ends at once.)";

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
    options.add("batch", batch, "texts that are written side by side", 1, 1024);
    options.add("context", context,
                "window of a text, prompt included, which takes memory; 0: the model's", 0,
                1 << 24);
    options.add("queue", queue, "requests that may wait; more are refused with 429", 1, 1 << 20);
    options.add("max-body-kb", max_body_kb, "largest body of a request", 1, 1 << 20);
    options.add("timeout-s", timeout_s, "longest time for an answer, then 504", 1, 86400);
    options.add("grace-s", grace_s, "how long running texts have to end after SIGTERM", 0, 86400);
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

volatile std::sig_atomic_t stop_requested = 0;

void on_signal(int number) {
  if (stop_requested) {
    ::_exit(128 + number);
  }
  stop_requested = 1;
}

void serve(const Request& request, World& world) {
  const StoredModel stored =
      resolve_model(world.control(), request.checkpoint, request.base, request.adapter);
  const Config config = config_of(stored);
  require_text_model(config, stored.checkpoint);
  DatasetInfo sizes{.kind = DatasetKind::kText};
  sizes.path = tokenizer_path(request.tokenizer, stored.checkpoint, config);
  // One encodes requests, on the API's thread; the other one decodes on this thread.
  const std::unique_ptr<Tokenizer> encoder = tokenizer_at(sizes.path),
                                   decoder_tokens = tokenizer_at(sizes.path);
  sizes.vocab_size = encoder->vocab_size();
  const std::string form =
      request.form == "plain" ? chat_template_of(stored.checkpoint) : request.form;
  const int64_t longest = config.model->context();
  if (request.context > longest) {
    fail(ExitCode::kConfig,
         str("--context ", request.context, " must be at most model.context = ", longest));
  }
  const int64_t window = request.context > 0 ? request.context : longest;
  ServeMetrics metrics;
  TextService service(request.queue, metrics);
  const std::string name = request.name.empty() ? folder_name(request.checkpoint) : request.name;
  Api api({.name = name,
           .posts = text_posts({.name = name,
                                .form = form,
                                .context = window,
                                .ends = end_tokens(form, stored.checkpoint, *encoder),
                                .tokenizer = encoder.get()},
                               service)},
          service, metrics);
  HttpServer server(
      request.host, static_cast<int>(request.port),
      {.body_bytes = request.max_body_kb << 10, .answer = std::chrono::seconds(request.timeout_s)},
      [&](HttpRequest asked, const std::shared_ptr<HttpAnswer>& answer) {
        api.handle(std::move(asked), answer);
      },
      error_json, [&](int status) { metrics.count_answer(status); });
  std::signal(SIGTERM, on_signal);
  std::signal(SIGINT, on_signal);
  server.start();
  Machine machine(request.run, {.tensor = 1, .backend = Backend::kMpi}, world);
  const DType dtype = machine.device() == Device::kCpu ? DType::kF32 : config.train.precision;
  const TrainedModel trained = load_trained_model(stored, sizes, dtype, machine, world.control());
  const std::unique_ptr<Decoder> decoder = decoder_of(trained, machine, request.batch, window);
  TextBatch batch(*decoder, machine.stream, sizes.vocab_size);
  service.open();
  show("serving %s at http://%s:%d\n", stored.checkpoint.c_str(), request.host.c_str(),
       server.port());
  std::fflush(stdout);
  try {
    service.run(
        batch, *decoder_tokens, [] { return stop_requested != 0; },
        std::chrono::seconds(request.grace_s));
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
