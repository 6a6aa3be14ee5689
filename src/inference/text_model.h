// A trained language model that generates text: the weights of a file, and a decoder with its cache
// (generate/decoder.h).
#pragma once

#include <memory>

#include "checkpoint/model_file.h"
#include "generate/decoder.h"
#include "graph/parameter_arena.h"
#include "lockstep/backend.h"
#include "lockstep/config.h"
#include "models/llama_config.h"

namespace lockstep::inference {

class TextModel {
 public:
  /// `file` may be released afterwards. The backend must outlive it. Throws what Inference::load() throws, and
  /// out_of_memory.
  TextModel(const models::LlamaConfig& model, const generate::DecoderSizes& sizes, Precision precision,
            const checkpoint::ModelFile& file, Backend& backend);

  generate::Decoder& decoder() { return decoder_; }

 private:
  graph::ParameterTable table_;
  generate::Decoder decoder_;
  std::unique_ptr<graph::ParameterArena> parameters_;
};

}  // namespace lockstep::inference
