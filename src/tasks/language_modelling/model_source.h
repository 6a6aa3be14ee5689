// Where the architecture of a language model comes from (model.from and model.config), and which tokenizer it has.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "lockstep/config.h"
#include "models/llama.h"
#include "models/llama_config.h"

namespace lockstep::tasks {

/// In inference_stamp(): the token that ends the answers of the conversations on which the model was trained.
inline constexpr const char* kAnswerEndKey = "answer_end_token";

/// model.config is a preset, the path of a config.json or of a directory with one, or a JSON object; if it is empty,
/// the directory model.from has the config.json. Throws config_invalid if there is none, and what parse_llama_config()
/// throws.
models::LlamaConfig model_source(const Config::Model& model);

/// The adapters of a model, and how its base is stored.
models::LlamaOptions model_options(const Config::Model& model);

/// For a run that is resumed: if the file that describes the model is gone, model.config becomes what the run recorded
/// in `model_stamp`. Returns a sentence that says so, or nothing.
std::string restore_model_source(Config::Model& model, const nlohmann::json& model_stamp);

/// The hash of the tokenizer of a model in a directory; empty if there is no tokenizer.json. Throws what
/// text::Tokenizer::open() throws.
std::string tokenizer_hash(const std::string& directory);

}  // namespace lockstep::tasks
