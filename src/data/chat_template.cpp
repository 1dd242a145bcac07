#include "src/data/chat_template.h"

#include <algorithm>
#include <array>
#include <utility>

#include "src/core/error.h"
#include "src/data/tokenizer.h"
#include "src/data/utf8.h"

namespace tandem {
namespace {

struct Marks {
  std::string_view name;
  std::string_view begin, before_role, after_role, end;  // special tokens; "": none
  std::string_view after_header, after_end;              // text
  bool strips;
};

constexpr std::array<Marks, 2> kTemplates = {
    {{"chatml", "", "<|im_start|>", "", "<|im_end|>", "\n", "\n", false},
     {"llama3", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
      "\n\n", "", true}}};

const Marks& marks_of(std::string_view name) {
  const auto found = std::ranges::find(kTemplates, name, &Marks::name);
  require(found != kTemplates.end(), "no chat template is called ", name);
  return *found;
}

// As Python's str.isspace() has it.
bool is_space(int32_t point) {
  return (point >= 9 && point <= 13) || (point >= 28 && point <= 32) || point == 0x85 ||
         point == 0xA0 || point == 0x1680 || (point >= 0x2000 && point <= 0x200A) ||
         point == 0x2028 || point == 0x2029 || point == 0x202F || point == 0x205F ||
         point == 0x3000;
}

// A text as a literal of Jinja.
std::string quoted(std::string_view text) {
  std::string literal = "'";
  for (const char letter : text) {
    literal += letter == '\n' ? std::string("\\n") : std::string(1, letter);
  }
  return literal + "'";
}

std::string printed(std::string_view text) {
  return text.empty() ? "" : "{{ " + quoted(text) + " }}";
}

struct Parts {
  std::vector<ChatPart> all;

  void add(std::string_view text, bool is_token, bool is_learned) {
    if (!text.empty()) {
      all.push_back({std::string(text), is_token, is_learned});
    }
  }
  void add_header(const Marks& marks, std::string_view role) {
    add(marks.before_role, true, false);
    add(role, false, false);
    add(marks.after_role, true, false);
    add(marks.after_header, false, false);
  }
};

void append_text(std::string_view before, std::string_view learned, Tokenizer& tokenizer,
                 ChatTokens* out) {
  const std::vector<int32_t> whole = tokenizer.encode(str(before, learned));
  size_t begin = whole.size();
  if (!learned.empty()) {
    const std::vector<int32_t> alone = tokenizer.encode(before);
    begin = static_cast<size_t>(std::ranges::mismatch(whole, alone).in1 - whole.begin());
  }
  out->add(std::span(whole).first(begin), false);
  out->add(std::span(whole).subspan(begin), true);
}

}  // namespace

bool is_chat_template(std::string_view name) {
  return std::ranges::count(kTemplates, name, &Marks::name) > 0;
}

std::vector<ChatPart> chat_parts(std::string_view name, const std::vector<ChatMessage>& messages) {
  const Marks& marks = marks_of(name);
  Parts parts;
  parts.add(marks.begin, true, false);
  for (const ChatMessage& message : messages) {
    const bool is_learned = message.role == "assistant";
    parts.add_header(marks, message.role);
    parts.add(marks.strips ? stripped(message.content) : message.content, false, is_learned);
    parts.add(marks.end, true, is_learned);
    parts.add(marks.after_end, false, false);
  }
  return std::move(parts.all);
}

std::vector<ChatPart> chat_prompt(std::string_view name, const std::vector<ChatMessage>& messages) {
  Parts parts{chat_parts(name, messages)};
  parts.add_header(marks_of(name), "assistant");
  return std::move(parts.all);
}

std::string_view chat_end(std::string_view name) { return marks_of(name).end; }

std::string chat_jinja(std::string_view name) {
  const Marks& marks = marks_of(name);
  const auto header = [&](const std::string& role) {
    return str("{{ ", quoted(marks.before_role), " + ", role, " + ",
               quoted(str(marks.after_role, marks.after_header)), " }}");
  };
  const std::string said =
      str("{{ message['content']", marks.strips ? " | trim" : "", " }}", printed(marks.end));
  return str(printed(marks.begin), "{% for message in messages %}", header("message['role']"),
             "{% if message['role'] == 'assistant' %}{% generation %}", said,
             "{% endgeneration %}{% else %}", said, "{% endif %}", printed(marks.after_end),
             "{% endfor %}{% if add_generation_prompt %}", header("'assistant'"), "{% endif %}");
}

void ChatTokens::add(std::span<const int32_t> more, bool is_learned) {
  tokens.insert(tokens.end(), more.begin(), more.end());
  loss.resize(tokens.size(), is_learned ? 1 : 0);
}

void append_parts(std::span<const ChatPart> parts, Tokenizer& tokenizer, ChatTokens* out) {
  std::string before, learned;
  for (const ChatPart& part : parts) {
    if (!part.is_token) {
      (part.is_learned ? learned : before) += part.text;
      continue;
    }
    append_text(std::exchange(before, ""), std::exchange(learned, ""), tokenizer, out);
    const auto id = tokenizer.special_token(part.text);
    if (!id) {
      fail(ExitCode::kConfig, "the tokenizer has no special token ", part.text,
           ", which the template needs; take another template");
    }
    out->add(std::array{*id}, part.is_learned);
  }
  append_text(before, learned, tokenizer, out);
}

std::string_view stripped(std::string_view text) {
  size_t begin = text.size(), end = 0;  // of what is not white space
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = read_utf8(text, at);
    const size_t next = at + static_cast<size_t>(step.length);
    if (!is_space(step.code_point)) {
      begin = std::min(begin, at);
      end = next;
    }
    at = next;
  }
  return begin < end ? text.substr(begin, end - begin) : "";
}

}  // namespace tandem
