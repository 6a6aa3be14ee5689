// A trained language model as a Hugging Face directory that transformers loads: RUN/model at the end of a run, and what
// `lockstep checkpoint export` writes. It has the weights, config.json, generation_config.json, the files of the
// tokenizer, and the model card.
//
// The tokenizer is that of the data. Its other files (tokenizer_config.json and so on) and generation_config.json are
// those of the directory from which training started, if that has the same tokenizer. Otherwise they are written with
// what the data set and the model's configuration record: the tokens that begin and end a text, and the chat template.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "lockstep/config.h"
#include "models/llama_config.h"

namespace lockstep::train {

using Files = std::map<std::string, std::string>;  // contents by name

/// All files but config.json, the weights and the card. Files that cannot be read are left out: a run may end when its
/// data are gone.
Files tokenizer_files(const Config& config, const models::LlamaConfig& model);

/// The same, merged with `files`, which a task gives. Of two files with the same name, that of tokenizer_files() is
/// kept.
Files with_tokenizer(Files files, const Config& config, const models::LlamaConfig& model);

/// Adds those that are derived from others: tokenizer_config.json and special_tokens_map.json of a tokenizer.json, and
/// generation_config.json. Existing ones stay. `end_token`: that of the data; -1: none. `chat_template`: that of the
/// data, or empty.
void complete_files(Files& files, const models::LlamaConfig& model, std::int32_t end_token,
                    const std::string& chat_template);

/// What the user should know about a card without a licence.
std::string license_note(const std::string& directory);

}  // namespace lockstep::train
