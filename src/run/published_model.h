// A trained language model as a Hugging Face directory that transformers loads: RUN/model at the end of a run, and what
// `lockstep checkpoint export` writes. It has the weights, config.json, generation_config.json, the files of the
// tokenizer, and the model card.
//
// The tokenizer is that of the data. Its other files (tokenizer_config.json and so on) and generation_config.json are
// those of the directory from which training started, if that has the same tokenizer. Otherwise they are written with
// what the data set and the model's configuration record: the tokens that begin and end a text, and the chat template.
//
// If the model was trained on conversations, the token that ends their answers joins the end tokens in all these files,
// so that transformers stops there.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "lockstep/config.h"
#include "models/llama_config.h"

namespace lockstep::run {

using Files = std::map<std::string, std::string>;  // contents by name

inline constexpr char kTemplateFile[] = "chat_template.jinja";

/// All files but config.json, the weights and the card. Files that cannot be read are left out: an export may happen
/// when the data are gone.
Files tokenizer_files(const Config& config, const models::LlamaConfig& model);

/// Adds those that are derived from others: tokenizer_config.json and special_tokens_map.json of a tokenizer.json, and
/// generation_config.json. Existing ones stay. `end_token`: that of the data; -1: none. `chat_template`: that of the
/// data, or empty.
void complete_files(Files& files, const models::LlamaConfig& model, std::int32_t end_token,
                    const std::string& chat_template);

/// The token that ends the answers of the conversations on which a model was trained, according to
/// Task::inference_stamp() in the state of its checkpoint; -1: none.
std::int32_t answer_end_of(const nlohmann::json& state);

/// Puts that token before the others of eos_token_id in config.json, if that is there, and in generation_config.json,
/// and makes it the eos_token of the tokenizer, unless the chat template uses that variable. A file that has it already
/// stays as it is. -1: nothing changes.
void add_answer_end(Files& files, std::int32_t token);

/// The special token of this id in tokenizer.json; empty if it has none.
std::string special_token(const Files& files, std::int64_t id);

/// What the user should know about a card without a licence.
std::string license_note(const std::string& directory);

}  // namespace lockstep::run
