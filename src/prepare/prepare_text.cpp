#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <thread>

#include "src/core/error.h"
#include "src/core/formatted.h"
#include "src/core/visible_text.h"
#include "src/data/bpe/bpe_tokenizer.h"
#include "src/data/bpe/trainer.h"
#include "src/data/tokenizer.h"
#include "src/data/utf8.h"
#include "src/io/file.h"
#include "src/io/hdf5/hdf5.h"
#include "src/prepare/bad_records.h"
#include "src/prepare/prepare.h"
#include "src/prepare/temporary_file.h"
#include "src/prepare/text_file.h"
#include "src/prepare/text_reader.h"

namespace tandem {
namespace {

constexpr int32_t kCodePoints = 0x110000;
constexpr int64_t kLargestVocabulary = int64_t{1} << 24;

// What the first pass over the text learns.
struct Survey {
  int64_t characters = 0;  // of the stream, line ends between documents included
  std::vector<int32_t> code_points;
  TextReadCounts counts;
};

// The line end between two documents, when the tokenizer has no token for it.
class Joiner {
 public:
  explicit Joiner(bool active) : active_(active) {}

  // The text between the previous document and this one.
  std::string_view before(const TextDocument& document) {
    const bool needed = active_ && !first_ && (document.is_record || last_is_record_ || !ended_);
    first_ = false;
    last_is_record_ = document.is_record;
    ended_ = document.text.ends_with('\n');
    return needed ? "\n" : "";
  }

 private:
  bool active_;
  bool first_ = true;
  bool last_is_record_ = false;
  bool ended_ = false;
};

Survey survey_text(const PrepareTextOptions& options, bool joined_by_newline, BadRecords* bad) {
  Survey survey;
  Joiner joiner(joined_by_newline);
  std::vector<bool> seen(kCodePoints);
  survey.counts = for_each_document(options, bad, [&](const TextDocument& document) {
    if (!joiner.before(document).empty()) {
      ++survey.characters;
      seen['\n'] = true;
    }
    for_each_block(document, [&](std::string_view text) {
      for (size_t at = 0; at < text.size(); ++survey.characters) {
        const Utf8Step step = read_utf8(text, at);
        seen[static_cast<size_t>(step.code_point)] = true;
        at += static_cast<size_t>(step.length);
      }
    });
  });
  for (int32_t code_point = 0; code_point < kCodePoints; ++code_point) {
    if (seen[static_cast<size_t>(code_point)]) {
      survey.code_points.push_back(code_point);
    }
  }
  return survey;
}

// A part of the stream that belongs to one split.
struct Piece {
  bool is_val;
  bool is_joint;  // stands between two documents
  bool is_record;
  bool is_end;  // reaches to the end of its document
  std::string_view text;
};

// Cuts the stream of documents into the two splits.
class Splitter {
 public:
  Splitter(bool joined_by_newline, const Survey& survey, double val_fraction)
      : joiner_(joined_by_newline),
        split_(static_cast<int64_t>(
            std::floor(static_cast<double>(survey.characters) * (1.0 - val_fraction)))) {}

  // Calls `use` for each piece that the document adds, in order.
  template <class Use>
  void add(const TextDocument& document, const Use& use) {
    const auto put = [&](bool is_val, bool is_joint, std::string_view text, bool is_end = true) {
      if (!text.empty()) {
        use(Piece{is_val, is_joint, document.is_record, is_end, text});
        has_text_[is_val ? 1 : 0] = true;
      }
    };
    const std::string_view joint = joiner_.before(document);
    const int64_t joint_at = position_;
    const int64_t begin = joint_at + std::ssize(joint);
    position_ = begin;
    size_t cut = 0;  // bytes before the split
    for_each_block(document, [&](std::string_view text) {
      cut += byte_of_character(text, std::max<int64_t>(split_ - position_, 0));
      position_ += count_characters(text);
    });
    const std::string_view text = document.text;
    if (document.is_record) {
      const bool is_val = begin > 0 && (position_ > split_ || has_text_[1]);
      if (has_text_[is_val ? 1 : 0]) {
        put(is_val, true, joint);
      }
      put(is_val, false, text);
      return;
    }
    put(joint_at >= split_, true, joint);
    put(false, false, text.substr(0, cut), cut == text.size());
    put(true, false, text.substr(cut));
  }

  int64_t characters() const { return position_; }

 private:
  Joiner joiner_;
  int64_t split_;  // where validation begins, in characters
  int64_t position_ = 0;
  std::array<bool, 2> has_text_{};  // training, validation
};

// Later passes report nothing that the first one has reported.
void read_again(const PrepareTextOptions& options,
                const std::function<void(const TextDocument&)>& use) {
  BadRecords already_reported(std::numeric_limits<int64_t>::max(), BadRecords::Printing::kOff);
  for_each_document(options, &already_reported, use);
}

std::string some_input(const PrepareTextOptions& options) {
  return options.input[0] + (options.input.size() > 1 ? " or another input" : "");
}

// BPE of the training part.
std::unique_ptr<Tokenizer> train_tokenizer(const PrepareTextOptions& options,
                                           const Survey& survey) {
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  WordCounter counter(options.threads > 0 ? options.threads : cores);
  Splitter splitter(false, survey, options.val_fraction);
  const std::string place = some_input(options);
  read_again(options, [&](const TextDocument& document) {
    splitter.add(document, [&](const Piece& piece) {
      for (std::string_view rest = piece.is_val ? "" : piece.text; !rest.empty();) {
        at_place(place, [&] { counter.add(WordCounter::take_share(&rest)); });
        document.forget();
      }
    });
  });
  const WordCounts counts = at_place(place, [&] { return counter.finish(); });
  return std::make_unique<BpeTokenizer>(train_bpe(counts, options.vocab_size), "bpe",
                                        "trained tokenizer");
}

// The tokenizers that are there before any text is read; null for the others.
std::unique_ptr<Tokenizer> ready_tokenizer(const PrepareTextOptions& options) {
  switch (options.tokenizer) {
    case TokenizerKind::kBytes:
      return make_bytes_tokenizer();
    case TokenizerKind::kGpt2:
      return load_gpt2_tokenizer(options.vocab);
    case TokenizerKind::kHuggingFace:
      return load_hugging_face_tokenizer(options.vocab);
    default:
      return nullptr;
  }
}

// Collects both splits.
template <class Token>
class Parts {
 public:
  Parts(Tokenizer* tokenizer, const Survey& survey, double val_fraction, const std::string& folder)
      : tokenizer_(*tokenizer),
        splitter_(!tokenizer->end_of_text(), survey, val_fraction),
        leaks_(folder),
        train_(folder),
        val_(folder) {}

  void add(const TextDocument& document) {
    splitter_.add(document, [&](const Piece& piece) {
      TokenPart<Token>* part = piece.is_val ? &val_ : &train_;
      if (piece.is_joint) {
        append(piece.text, document, part);
        return;
      }
      if (piece.is_record) {
        leaks_.add(piece.text, piece.is_val);
      }
      append_document(piece, document, part);
    });
  }

  int64_t characters() const { return splitter_.characters(); }
  int64_t leaked() { return leaks_.count(); }
  // Ends a split, and returns it.
  const TokenPart<Token>& finish(bool is_val) {
    TokenPart<Token>& part = is_val ? val_ : train_;
    part.mark();
    return part;
  }

 private:
  // The end of text stands after each document, once where its template ends with it.
  void append_document(const Piece& piece, const TextDocument& document, TokenPart<Token>* part) {
    part->mark();
    part->append(tokenizer_.before_text());
    append(piece.text, document, part);
    part->append(tokenizer_.after_text());
    const auto end_of_text = tokenizer_.end_of_text();
    if (piece.is_end && end_of_text && part->last() != *end_of_text) {
      part->append(std::array{*end_of_text});
    }
  }

  void append(std::string_view text, const TextDocument& document, TokenPart<Token>* part) {
    const auto drain = [&] {
      part->append(tokens_);
      tokens_.clear();
      document.forget();
    };
    at_place(document.place, [&] { tokenizer_.append_tokens(text, &tokens_, drain); });
    drain();
  }

  Tokenizer& tokenizer_;
  Splitter splitter_;
  LeakedRecords leaks_;
  TokenPart<Token> train_, val_;
  std::vector<int32_t> tokens_;
};

void check_options(const PrepareTextOptions& options) {
  check_text_input(options);
  if (options.tokenizer != TokenizerKind::kGpt2 &&
      options.tokenizer != TokenizerKind::kHuggingFace && !options.vocab.empty()) {
    fail(ExitCode::kConfig, "--vocab: only --tokenizer gpt2 takes a vocabulary from files");
  }
  const bool is_trained = options.tokenizer == TokenizerKind::kBpe;
  if (options.vocab_size != 0 && !is_trained) {
    fail(ExitCode::kConfig, "--vocab-size: only --tokenizer bpe is made to a size");
  }
  if (is_trained &&
      (options.vocab_size < kSmallestVocabulary || options.vocab_size > kLargestVocabulary)) {
    fail(ExitCode::kConfig, "--tokenizer bpe --vocab-size ", options.vocab_size, ": allowed are ",
         kSmallestVocabulary, " (the bytes and the end ", "of text) to ", kLargestVocabulary);
  }
}

// The second pass: encodes and writes everything.
template <class Token>
void encode_and_write(const PrepareTextOptions& options, const Survey& survey, Tokenizer* tokenizer,
                      H5Writer* file, PrepareReport* report) {
  Parts<Token> parts(tokenizer, survey, options.val_fraction, parent_of(options.output));
  read_again(options, [&](const TextDocument& document) { parts.add(document); });
  if (parts.characters() != survey.characters) {
    fail_data(some_input(options), ": changed while it was read; prepare again");
  }
  write_text_file(*tokenizer, parts.finish(false), parts.finish(true), file, report);
  report->leaked = parts.leaked();
}

void print_report(const PrepareTextOptions& options, const Tokenizer& tokenizer,
                  const PrepareReport& report) {
  constexpr size_t kMostShown = 30;  // bytes of a token
  std::string tokens;
  for (const int32_t token : report.first_tokens) {
    std::string piece(tokenizer.piece(token));
    repair_utf8(&piece);
    tokens += str("  ", token, " \"", visible(shortened(piece, kMostShown)), "\"");
  }
  std::string text = str(options.output, ": ", counted(report.documents, "document"), ", ",
                         counted(report.characters, "character"), "\n  train ",
                         counted(report.train_count, "token"), ", val ",
                         counted(report.val_count, "token"), ", vocabulary ", report.vocab_size,
                         " (", tokenizer.kind(), ")\n  begins with", tokens, "\n");
  const bool ends =
      options.tokenizer != TokenizerKind::kHuggingFace || tokenizer.end_of_text().has_value();
  text += notes_of(report, ends ? "" : options.vocab, "line ends join documents");
  show("%s", text.c_str());
}

}  // namespace

PrepareReport prepare_text(const PrepareTextOptions& options) {
  check_options(options);
  make_directories(parent_of(options.output));
  // Created first, so that an output that cannot be written fails before the work begins.
  H5Writer file(options.output);
  BadRecords bad(options.max_bad);
  std::unique_ptr<Tokenizer> tokenizer = ready_tokenizer(options);
  const bool ends_texts = tokenizer != nullptr ? tokenizer->end_of_text().has_value()
                                               : options.tokenizer == TokenizerKind::kBpe;
  Survey survey = survey_text(options, !ends_texts, &bad);
  bad.finish();
  if (survey.characters == 0) {
    fail_data(options.input[0], ": no record holds any text");
  }
  if (options.tokenizer == TokenizerKind::kBpe) {
    tokenizer = train_tokenizer(options, survey);
  } else if (tokenizer == nullptr) {
    tokenizer = make_char_tokenizer(std::move(survey.code_points));
  }
  PrepareReport report;
  report.documents = survey.counts.documents;
  report.characters = survey.characters;
  report.broken_utf8 = survey.counts.broken_utf8;
  report.empty = survey.counts.empty;
  report.bad = bad.count();
  with_token_type(tokenizer->vocab_size(), [&]<class Token>() {
    encode_and_write<Token>(options, survey, tokenizer.get(), &file, &report);
  });
  print_report(options, *tokenizer, report);
  return report;
}

}  // namespace tandem
