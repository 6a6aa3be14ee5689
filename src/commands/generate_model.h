// What `lockstep generate` generates with: the model, its tokenizer, and the tokens that end a reply.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/model_file.h"
#include "generate/reply_text.h"
#include "lockstep/config.h"
#include "models/llama_config.h"
#include "text/tokenizer.h"

namespace lockstep::commands {

struct ModelRequest {
  std::vector<std::string> operands;  // a run, a directory of Hugging Face, a file, a configuration, key=value
  std::string checkpoint, tokenizer;  // --checkpoint, --tokenizer; may be empty
  bool averages = false;
};

struct TextModelSource {
  Config config;
  models::LlamaConfig model;
  checkpoint::ModelFile file;
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::string tokenizer_folder;  // with tokenizer_config.json, if there is one; may be empty
  std::vector<std::int32_t> end_tokens;
  std::string base;             // of adapters: where their base was read; may be empty
  bool sets_precision = false;  // the configuration does
};

/// What a request names. The files of a base are known when it has been read (TextModelSource::base).
std::vector<std::string> inputs_of(const ModelRequest& request);

/// Reads everything. Throws Error with a sentence that names the remedy: a model that is not a language model, one
/// without a tokenizer, or with another one than it was trained with.
TextModelSource open_text_model(const ModelRequest& request);

/// The text of tokens. Ids that the tokenizer does not have are left out: a model may have more.
generate::Decode decode_with(std::shared_ptr<const text::Tokenizer> tokenizer);

}  // namespace lockstep::commands
