#include "text/chat_template.h"

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "base/json.h"
#include "lockstep/error.h"

namespace lockstep::text {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxFileBytes = 16 << 20;
constexpr std::uint64_t kMaxTemplateBytes = 1 << 20;
constexpr const char* kConfig = "tokenizer_config.json";
constexpr const char* kTemplateFile = "chat_template.jinja";

/// OpenAI's "Chat Markup Language", without a default system message.
constexpr std::string_view kChatMl =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
    "'\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
/// The template of meta-llama/Meta-Llama-3-8B-Instruct.
constexpr std::string_view kLlama3 =
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
    "message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 "
    "%}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ "
    "'<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}";

/// Returns null if there is no such file.
nlohmann::json config_in(const std::string& folder) {
  const std::string path = (fs::path(folder) / kConfig).string();
  if (folder.empty() || !is_there(path)) return nullptr;
  nlohmann::json config = parse_json(read_file(path, kMaxFileBytes), path, ErrorCode::model_file_damaged);
  require(config.is_object(), ErrorCode::model_file_damaged, "{}: expected an object, found {}", path,
          config.type_name());
  return config;
}

bool has_generation(const std::vector<jinja::Statement>& statements) {
  return std::ranges::any_of(statements, [](const jinja::Statement& s) {
    return s.kind == jinja::Statement::Kind::generation || has_generation(s.body) || has_generation(s.otherwise);
  });
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view jinja, std::string source, std::map<std::string, std::string> variables)
    : source_(std::move(source)),
      text_(jinja),
      variables_(std::move(variables)),
      statements_(jinja::parse(text_, source_)) {}

std::unique_ptr<ChatTemplate> ChatTemplate::preset(std::string_view name,
                                                   std::map<std::string, std::string> variables) {
  if (name == "chatml") return std::make_unique<ChatTemplate>(kChatMl, "chatml", std::move(variables));
  if (name != "llama3") return nullptr;
  if (!variables.contains("bos_token")) variables["bos_token"] = "<|begin_of_text|>";
  return std::make_unique<ChatTemplate>(kLlama3, "llama3", std::move(variables));
}

std::unique_ptr<ChatTemplate> ChatTemplate::open(const std::string& folder, std::string_view name) {
  if (folder.empty()) return nullptr;
  const std::string file = (fs::path(folder) / kTemplateFile).string();
  if (is_there(file))
    return std::make_unique<ChatTemplate>(read_file(file, kMaxFileBytes), file, special_tokens_of(folder));
  const nlohmann::json config = config_in(folder);
  if (config.is_null() || !config.contains("chat_template")) return nullptr;
  const std::string source = (fs::path(folder) / kConfig).string();
  const nlohmann::json& found = config["chat_template"];
  if (found.is_string())
    return std::make_unique<ChatTemplate>(found.get<std::string>(), source, special_tokens_of(folder));
  if (!found.is_array()) return nullptr;
  for (const nlohmann::json& entry : found)
    if (entry.is_object() && entry.value("name", "") == name && entry.contains("template") &&
        entry["template"].is_string())
      return std::make_unique<ChatTemplate>(entry["template"].get<std::string>(), source, special_tokens_of(folder));
  return nullptr;
}

ChatTemplate ChatTemplate::choose(const std::string& choice, const std::string& folder, const std::string& option,
                                  const std::string& tokenizer) {
  std::map<std::string, std::string> variables = special_tokens_of(folder);
  if (auto built_in = preset(choice, variables)) return std::move(*built_in);
  if (choice == "auto") {
    if (auto own = open(folder)) return std::move(*own);
    fail(ErrorCode::usage,
         "the tokenizer {} has no chat template in tokenizer_config.json or chat_template.jinja beside it: name one "
         "with {} chatml, llama3 or FILE",
         tokenizer, option);
  }
  require(is_there(choice), ErrorCode::usage, "{}: expected chatml, llama3, auto or a file, found {}", option, choice);
  return {read_file(choice, kMaxTemplateBytes), choice, std::move(variables)};
}

std::string ChatTemplate::render(std::span<const ChatMessage> messages, ReplyBegin reply_begin) const {
  return render(messages, nullptr, reply_begin).text;
}

jinja::Rendering ChatTemplate::render(std::span<const ChatMessage> messages, const jinja::Value& variables,
                                      ReplyBegin reply_begin) const {
  jinja::Value all{{"tools", nullptr}, {"documents", nullptr}}, list = jinja::Value::array();
  for (const auto& [name, text] : variables_) all[name] = text;
  if (variables.is_object()) all.update(variables);
  for (const ChatMessage& message : messages)
    list.push_back(message.fields.is_object() ? message.fields
                                              : jinja::Value{{"role", message.role}, {"content", message.content}});
  all["messages"] = std::move(list);
  all["add_generation_prompt"] = reply_begin == ReplyBegin::add;
  return jinja::render(statements_, all, source_);
}

bool ChatTemplate::marks_answers() const { return has_generation(statements_); }

jinja::Value message_fields(const jinja::Value& message) {
  jinja::Value fields = jinja::Value::object();
  for (const auto& [name, value] : message.items())
    if (!value.is_null()) fields[name] = value;
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    if (!fields.contains(name)) continue;
    const jinja::Value reasoning = fields[name];
    fields["reasoning_content"] = reasoning;
    if (!fields.contains("thinking")) fields["thinking"] = reasoning;
    break;
  }
  return fields;
}

std::map<std::string, std::string> special_tokens_of(const std::string& folder) {
  std::map<std::string, std::string> out;
  const nlohmann::json config = config_in(folder);
  if (config.is_null()) return out;
  for (const char* name : {"bos_token", "eos_token", "unk_token", "pad_token"}) {
    const auto found = config.find(name);
    if (found == config.end()) continue;
    if (found->is_string())
      out[name] = found->get<std::string>();
    else if (found->is_object() && found->contains("content") && (*found)["content"].is_string())
      out[name] = (*found)["content"].get<std::string>();
  }
  return out;
}

}  // namespace lockstep::text
