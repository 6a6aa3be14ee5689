#include "train/published_model.h"

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

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char *kTokenizerJson = "tokenizer.json", *kTokenizerBin = "tokenizer.bin";
constexpr const char *kTokenizerConfig = "tokenizer_config.json", *kSpecialTokens = "special_tokens_map.json";
constexpr const char* kTemplateFile = "chat_template.jinja";

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

/// The special token of this id; empty if the tokenizer has none.
std::string special_token(const Json& tokenizer, std::int64_t id) {
  const auto added = tokenizer.find("added_tokens");
  if (id < 0 || added == tokenizer.end() || !added->is_array()) return "";
  for (const Json& token : *added)
    if (token.is_object() && token.value("id", Json()) == id && token.contains("content") &&
        token["content"].is_string())
      return token["content"].get<std::string>();
  return "";
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
  const Json tokenizer = Json::parse(files.at(kTokenizerJson), nullptr, /*allow_exceptions=*/false);
  if (!tokenizer.is_object()) return;
  Json special = Json::object();
  for (const auto& [name, id] : {std::pair{"bos_token", tokens.begin}, std::pair{"eos_token", tokens.end}})
    if (const std::string text = special_token(tokenizer, id); !text.empty()) special[name] = text;
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
  const auto found = files.find(kTokenizerConfig);
  const Json config = found == files.end() ? Json() : Json::parse(found->second, nullptr, /*allow_exceptions=*/false);
  const bool is_there = config.is_object() && config.value("chat_template", Json()) == chat_template;
  if (is_there)
    files.erase(kTemplateFile);
  else
    files[kTemplateFile] = chat_template;
}

}  // namespace

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

Files with_tokenizer(Files files, const Config& config, const models::LlamaConfig& model) {
  Files found = tokenizer_files(config, model);
  if (found.contains(kTokenizerBin)) files.erase(kTokenizerJson);
  found.merge(files);
  return found;
}

std::string license_note(const std::string& directory) {
  return fmt::format(
      "{}/{} states no licence: set model.license=apache-2.0, or another identifier of the Hugging Face Hub, and rerun "
      "the command",
      directory, checkpoint::kModelCard);
}

}  // namespace lockstep::train
