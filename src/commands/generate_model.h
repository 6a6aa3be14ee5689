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
  std::vector<std::string> operands;  // a run, a Hugging Face directory, a file, a configuration, key=value
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
  bool sets_precision = false;  // the configuration sets the precision
};

/// The files that a request names. Those of a base model are known only after reading (TextModelSource::base).
std::vector<std::string> inputs_of(const ModelRequest& request);

/// Reads everything. Throws Error, with the remedy, if the model is not a language model, if it has no tokenizer, or if
/// its tokenizer is not the one that it was trained with.
TextModelSource open_text_model(const ModelRequest& request);

/// Decodes tokens to text. Ids that the tokenizer does not have are skipped, since a model may have more of them.
generate::Decode decode_with(std::shared_ptr<const text::Tokenizer> tokenizer, text::SpecialTokens special);

}  // namespace lockstep::commands
