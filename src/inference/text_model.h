// A trained language model that tells how probable texts are: for each text, the sum of the logarithms of the
// probabilities of its last tokens, each given all tokens before it. The sums are computed on fp32 logits and added in
// fp64, so that they equal those of lm-evaluation-harness up to rounding.
//
// There is one graph for each length of windows (32, 64, 128 and so on, as far as they are needed), which share the
// weights and all other memory. Which window a text has depends on its length alone, and the graph of a length always
// has the same number of rows, so a result does not depend on the texts around it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "checkpoint/model_file.h"
#include "generate/decoder.h"
#include "graph/graph.h"
#include "graph/parameter_arena.h"
#include "lockstep/backend.h"
#include "lockstep/config.h"
#include "models/llama_config.h"

namespace lockstep::inference {

struct ScoredText {
  std::vector<std::int32_t> tokens;
  std::int64_t first = 1;  // the token with which the sum begins, at least 1
};

class TextScorer {
 public:
  /// Makes the graphs that are needed for the lengths of these texts. `file` may be released afterwards. The backend
  /// must outlive it. Throws what Inference::load() throws, and out_of_memory.
  TextScorer(const models::LlamaConfig& model, std::span<const ScoredText> texts, Precision precision,
             const checkpoint::ModelFile& file, Backend& backend, World& world);
  ~TextScorer();

  /// Returns the sums in the order of the texts, which have at most model.positions + 1 tokens. `after_batch`: called
  /// between the steps of the model with the number of texts that are done; may be empty.
  std::vector<double> score(std::span<const ScoredText> texts, const std::function<void(std::int64_t)>& after_batch);

 private:
  struct Step;
  std::unique_ptr<Step> make_step(const models::LlamaConfig& model, std::int64_t length, std::int64_t n_positions,
                                  Precision precision);
  void run(Step& step, std::span<const ScoredText> texts, std::span<const std::size_t> numbers,
           std::span<double> results);

  Backend& backend_;
  graph::ParameterTable table_;
  std::unique_ptr<Stream> stream_;
  std::vector<std::unique_ptr<Step>> steps_;  // ascending by length
  std::unique_ptr<graph::ParameterArena> parameters_;
  std::unique_ptr<graph::ForwardArenas> arenas_;
};

// A trained language model that generates text: the weights of a file, and a decoder with its cache
// (generate/decoder.h).

class TextModel {
 public:
  /// `file` may be released afterwards. The backend must outlive it. Throws what Inference::load() throws, and
  /// out_of_memory.
  TextModel(const models::LlamaConfig& model, const generate::DecoderSizes& sizes, Precision precision,
            const checkpoint::ModelFile& file, Backend& backend, World& world,
            const models::LlamaOptions& options = {});

  generate::Decoder& decoder() { return decoder_; }

 private:
  graph::ParameterTable table_;
  generate::Decoder decoder_;
  std::unique_ptr<graph::ParameterArena> parameters_;
};

}  // namespace lockstep::inference
