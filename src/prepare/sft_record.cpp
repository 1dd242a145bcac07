#include "src/prepare/sft_record.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "src/core/error.h"
#include "src/prepare/record_fields.h"

namespace tandem {
namespace {

using Json = nlohmann::json;

// Tables have null for what a record lacks.
bool has(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && !found->is_null();
}

std::string optional_text(const Json& object, const char* name) {
  return has(object, name) ? text_field(object, name) : "";
}

}  // namespace

std::vector<ChatMessage> chat_messages(const Json& list) {
  if (!list.is_array() || list.empty()) {
    throw BadRecord("field 'messages' is not a list of messages");
  }
  std::vector<ChatMessage> messages;
  for (const Json& message : list) {
    if (!message.is_object()) {
      throw BadRecord("a message is not an object");
    }
    const std::string& role = text_field(message, "role");
    const bool after_user = !messages.empty() && messages.back().role == "user";
    const bool fits =
        role == "system" ? messages.empty() : role == (after_user ? "assistant" : "user");
    if (!fits) {
      throw BadRecord(str("message ", messages.size() + 1, " is of role '", role,
                          "'; after system, which may be missing, user and assistant take turns"));
    }
    messages.push_back({role, text_field(message, "content")});
  }
  return messages;
}

namespace {

// The words of Alpaca.
std::string alpaca(const std::string& instruction, const std::string& input) {
  return str("Below is an instruction that describes a task",
             input.empty() ? "" : ", paired with an input that provides further context",
             ". Write a response that appropriately completes the request.\n\n### Instruction:\n",
             instruction, input.empty() ? "" : "\n\n### Input:\n" + input, "\n\n### Response:\n");
}

// Throws BadRecord if the record can be read in two ways.
void require_one_reading(const Json& record) {
  std::vector<const char*> readings;
  if (has(record, "messages")) {
    readings.push_back("messages");
  }
  if (has(record, "prompt") && has(record, "completion")) {
    readings.push_back("prompt with completion");
  }
  if (has(record, "instruction") && has(record, "output")) {
    readings.push_back("instruction with output");
  }
  if (readings.size() > 1) {
    throw BadRecord(str("both ", readings[0], " and ", readings[1], "; keep one of them"));
  }
}

// Throws BadRecord for a field that says what would be dropped.
void refuse(const Json& object, std::initializer_list<const char*> names, const char* instead) {
  for (const char* name : names) {
    const auto found = object.find(name);
    if (found != object.end() && !found->empty() && *found != "") {
      throw BadRecord(str("field '", name, "' is not supported; ", instead));
    }
  }
}

// The templates have no text for tools.
void refuse_tools(const Json& object) {
  refuse(object, {"tools", "functions", "tool_calls", "function_call"},
         "leave out records with tools");
}

// Throws BadRecord for what OpenAI's chats may have, and would not be learned as it is meant.
void refuse_unread(const Json& record) {
  refuse_tools(record);
  const Json& messages = record["messages"];
  for (size_t i = 0; i < messages.size(); ++i) {
    refuse_tools(messages[i]);
    refuse(messages[i], {"reasoning_content", "thinking"}, "what is to be learned is content");
    const auto weight = messages[i].find("weight");
    if (messages[i]["role"] == "assistant" && weight != messages[i].end() && !weight->is_null() &&
        *weight != 1) {
      throw BadRecord(
          str("message ", i + 1,
              " has a 'weight' other than 1, but all that an assistant says is learned"));
    }
  }
}

std::vector<ChatPart> parts_of(const Json& record, std::string_view form) {
  const bool is_plain = form == "plain";
  require_one_reading(record);
  refuse(record, {"system", "history"}, "make it a part of messages");
  if (has(record, "messages")) {
    if (is_plain) {
      throw BadRecord("field 'messages' needs --template chatml or llama3");
    }
    const std::vector<ChatMessage> messages = chat_messages(record["messages"]);
    refuse_unread(record);
    return chat_parts(form, messages);
  }
  std::string prompt, completion;
  if (has(record, "instruction")) {
    const std::string& instruction = text_field(record, "instruction");
    const std::string input = optional_text(record, "input");
    completion = text_field(record, "output");
    prompt = is_plain        ? alpaca(instruction, input)
             : input.empty() ? instruction
                             : instruction + "\n\n" + input;
  } else if (has(record, "prompt")) {
    prompt = text_field(record, "prompt");
    completion = text_field(record, "completion");
  } else {
    throw BadRecord("neither messages, nor prompt and completion, nor instruction and output");
  }
  if (!is_plain) {
    return chat_parts(form, {{"user", prompt}, {"assistant", completion}});
  }
  return {{prompt, false, false}, {completion, false, true}};
}

}  // namespace

bool is_sft_field(std::string_view name) {
  constexpr std::array<std::string_view, 10> kFields = {
      "messages", "prompt", "completion", "instruction", "input",
      "output",   "system", "history",    "tools",       "functions"};
  return std::ranges::count(kFields, name) > 0;
}

std::vector<ChatPart> sft_parts(const nlohmann::json& record, std::string_view form,
                                std::string* problem) {
  try {
    if (!record.is_object()) {
      throw BadRecord("not a JSON object");
    }
    std::vector<ChatPart> parts = parts_of(record, form);
    const auto learns = [](const ChatPart& part) {
      return part.is_learned && !part.is_token && !part.text.empty();
    };
    if (std::ranges::none_of(parts, learns)) {
      throw BadRecord("nothing in it is to be learned: its completion is empty");
    }
    return parts;
  } catch (const BadRecord& bad) {
    *problem = bad.what();
    return {};
  }
}

}  // namespace tandem
