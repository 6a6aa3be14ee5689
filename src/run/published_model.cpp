#include "run/published_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "checkpoint/huggingface.h"
#include "data/text_file.h"
#include "lockstep/error.h"
#include "lockstep/log.h"
#include "tasks/language_modelling/model_source.h"
#include "text/tokenizer.h"

namespace lockstep::run {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char *kTokenizerJson = "tokenizer.json", *kTokenizerBin = "tokenizer.bin";
constexpr const char *kTokenizerConfig = "tokenizer_config.json", *kSpecialTokens = "special_tokens_map.json";

/// The content of one of the files; null if it is missing, and discarded if it is not JSON.
Json parsed(const Files& files, const char* name) {
  const auto found = files.find(name);
  return found == files.end() ? Json() : Json::parse(found->second, nullptr, /*allow_exceptions=*/false);
}

/// What a data set records about its tokenizer. Empty if the set is synthetic or cannot be read.
struct OfData {
  std::string content, hash, chat_template;
  std::int32_t end_token = -1;
};
OfData read_data(const std::string& path) {
  std::error_code error;
  if (path.empty() || path == "synthetic" || !fs::is_regular_file(path, error)) return {};
  try {
    const data::InputFile file(path);
    const data::TextFile layout = data::open_text_file(file);
    return {.content = data::read_tokenizer(file, layout),
            .hash = layout.description.tokenizer_hash,
            .chat_template = layout.description.chat_template,
            .end_token = layout.description.end_token.value_or(-1)};
  } catch (const Error& unreadable) {
    log::warning("the model is written without the tokenizer of its data: {}", unreadable.what());
    return {};
  }
}

/// The files in the directory from which training started, if its tokenizer is that of the data.
Files files_of_start(const Config::Model& model, const OfData& data) {
  for (const std::string& directory : {model.from, model.initialize_from}) {
    if (directory == Config::Model{}.from || !checkpoint::is_huggingface(directory)) continue;
    try {
      const std::string hash = data.hash.empty() ? "" : tasks::tokenizer_hash(directory);
      if (hash.empty() || hash == data.hash) return checkpoint::read_tokenizer_files(directory);
    } catch (const Error& unreadable) {
      log::warning("the files of the tokenizer in {} are not used: {}", directory, unreadable.what());
    }
  }
  return {};
}

struct BeginAndEnd {
  std::int64_t begin = -1, end = -1;
};
/// The end token is that of the data, of the tokenizer, or else of the model. The begin token is that of the model, or
/// else of the tokenizer.
BeginAndEnd begin_and_end(const Files& files, const models::LlamaConfig& model, std::int32_t end_token) {
  BeginAndEnd out{.begin = model.begin_token, .end = end_token};
  if (const auto found = files.find(kTokenizerJson); found != files.end()) {
    try {
      const text::Tokenizer tokenizer = text::Tokenizer::parse(kTokenizerJson, found->second);
      if (out.begin < 0) out.begin = tokenizer.begin_token().value_or(-1);
      if (out.end < 0) out.end = tokenizer.end_token().value_or(-1);
    } catch (const Error&) {  // a tokenizer of another kind, which was copied
    }
  }
  if (out.end < 0 && !model.end_tokens.empty()) out.end = model.end_tokens.front();
  return out;
}

void add_tokenizer_config(Files& files, const models::LlamaConfig& model, const BeginAndEnd& tokens) {
  if (!parsed(files, kTokenizerJson).is_object()) return;
  Json special = Json::object();
  for (const auto& [name, id] : {std::pair{"bos_token", tokens.begin}, std::pair{"eos_token", tokens.end}})
    if (const std::string text = special_token(files, id); !text.empty()) special[name] = text;
  Json config = special;
  config["clean_up_tokenization_spaces"] = false;
  config["model_max_length"] = model.positions;
  config["tokenizer_class"] = "PreTrainedTokenizerFast";  // a class that reads tokenizer.json as it is
  files[kTokenizerConfig] = config.dump(2) + "\n";
  if (!files.contains(kSpecialTokens)) files[kSpecialTokens] = special.dump(2) + "\n";
}

/// transformers prefers this file to tokenizer_config.json, so it is written only if they would differ.
void add_chat_template(Files& files, const std::string& chat_template) {
  if (chat_template.empty()) return;
  const Json config = parsed(files, kTokenizerConfig);
  const bool is_there = config.is_object() && config.value("chat_template", Json()) == chat_template;
  if (is_there)
    files.erase(kTemplateFile);
  else
    files[kTemplateFile] = chat_template;
}

/// Whether the chat template depends on what eos_token is.
bool template_uses_eos_token(const Files& files) {
  const auto found = files.find(kTemplateFile);
  const Json config = parsed(files, kTokenizerConfig);
  const std::string of_config = config.is_object() ? config.value("chat_template", Json()).dump() : "";
  return (found == files.end() ? of_config : found->second).find("eos_token") != std::string::npos;
}

}  // namespace

std::string special_token(const Files& files, std::int64_t id) {
  const Json tokenizer = parsed(files, kTokenizerJson);
  if (!tokenizer.is_object() || !tokenizer.value("added_tokens", Json()).is_array()) return "";
  for (const Json& token : tokenizer["added_tokens"])
    if (token.is_object() && token.value("id", Json()) == id && token.contains("content") &&
        token["content"].is_string())
      return token["content"].get<std::string>();
  return "";
}

std::int32_t answer_end_of(const nlohmann::json& state) {
  const auto inference = state.find("inference");
  if (inference == state.end() || !inference->is_object()) return -1;
  const auto token = inference->find(tasks::kAnswerEndKey);
  return token != inference->end() && token->is_number_integer() ? token->get<std::int32_t>() : -1;
}

void add_answer_end(Files& files, std::int32_t token) {
  if (token < 0) return;
  files.try_emplace(checkpoint::kGenerationConfig, "{}");
  for (const char* name : {checkpoint::kHuggingFaceConfig, checkpoint::kGenerationConfig}) {
    Json config = parsed(files, name);
    if (!config.is_object()) continue;
    Json& ends = config["eos_token_id"];
    Json all = Json::array({token});  // transformers, too, puts the end token of a conversation first
    for (const Json& end : ends.is_array() ? ends : Json::array({ends}))
      if (!end.is_null()) all.push_back(end);
    if (std::ranges::count(all, Json(token)) > 1) continue;
    ends = all.size() == 1 ? all.front() : all;
    files[name] = config.dump(2) + "\n";
  }
  const std::string text = special_token(files, token);
  if (text.empty() || template_uses_eos_token(files)) return;
  for (const char* name : {kTokenizerConfig, kSpecialTokens}) {
    Json config = parsed(files, name);
    if (!config.is_object() || config.value("eos_token", Json()) == text) continue;
    config["eos_token"] = text;
    files[name] = config.dump(2) + "\n";
  }
}

void complete_files(Files& files, const models::LlamaConfig& model, std::int32_t end_token,
                    const std::string& chat_template) {
  const BeginAndEnd tokens = begin_and_end(files, model, end_token);
  if (files.contains(kTokenizerJson) && !files.contains(kTokenizerConfig)) add_tokenizer_config(files, model, tokens);
  add_chat_template(files, chat_template);
  std::vector<std::int64_t> ends = model.end_tokens;
  if (tokens.end >= 0 && std::ranges::find(ends, tokens.end) == ends.end()) ends.push_back(tokens.end);
  if (files.contains(checkpoint::kGenerationConfig) || (tokens.begin < 0 && ends.empty())) return;
  Json generation = Json::object();
  if (tokens.begin >= 0) generation["bos_token_id"] = tokens.begin;
  if (ends.size() == 1) generation["eos_token_id"] = ends.front();
  if (ends.size() > 1) generation["eos_token_id"] = ends;
  files[checkpoint::kGenerationConfig] = generation.dump(2) + "\n";
}

Files tokenizer_files(const Config& config, const models::LlamaConfig& model) {
  const OfData data = read_data(config.data.train);
  Files files = files_of_start(config.model, data);
  if (!data.content.empty()) {
    const bool is_binary = data.content.substr(0, sizeof(std::int32_t)).find('\0') != std::string::npos;
    files[is_binary ? kTokenizerBin : kTokenizerJson] = data.content;  // transformers reads JSON only
  }
  complete_files(files, model, data.end_token, data.chat_template);
  return files;
}

std::string license_note(const std::string& directory) {
  return fmt::format(
      "{}/{} states no licence: set model.license=apache-2.0, or another identifier of the Hugging Face Hub, and rerun "
      "the command",
      directory, checkpoint::kModelCard);
}

}  // namespace lockstep::run
