// Decoders of the Llama family (Touvron et al., "LLaMA: Open and Efficient Foundation Language Models", 2023): RMS
// norms, rotary positions, grouped-query attention, SwiGLU. Parameters have the names and shapes of transformers.
#pragma once

#include <string>

#include "graph/graph.h"
#include "lockstep/config.h"
#include "models/llama_config.h"

namespace lockstep::models {

/// Which activations are not kept for the backward pass but recomputed (model.recompute). The results have the same
/// bits.
///   none: everything is kept
///   block: of each layer only its input and what attention has computed are kept
///   selective: only norms and SwiGLU are recomputed
enum class Recompute : std::uint8_t { none, block, selective };

struct LlamaOptions {
  Recompute recompute = Recompute::none;
  Config::Model::Lora lora{};  // adapters beside the matrices of the layers
  bool base_in_nf4 = false;    // the matrices of the layers are stored in NF4
  std::uint32_t seed = 0;      // of their dropout
};

/// For generating text: keys and values of earlier tokens. Then sequence_length is 1, and the tokens of a batch, each
/// with a position, may belong to any of the sequences (lockstep/ops/cached_attention.h).
struct LlamaCache {
  std::int64_t slots = 0;                                // sequences; 0: there is no cache
  std::int64_t capacity = 0;                             // tokens of each
  graph::TensorId slot = graph::kNoTensor;               // (batch) int32
  graph::TensorId cache_indirection = graph::kNoTensor;  // (slots, capacity) int32
};

/// Each (batch, sequence_length) int32. `document_start`: for each token, the place in the row at which its document
/// begins. A token attends to no token before that. kNoTensor: a row is one document.
struct LlamaInputs {
  std::int64_t sequence_length = 0;  // tokens
  graph::TensorId tokens = graph::kNoTensor, positions = graph::kNoTensor, document_start = graph::kNoTensor;
  LlamaCache cache{};
  std::int64_t n_positions = 0;                   // of the table of rotary positions; 0: sequence_length
  graph::TensorId sample_ids = graph::kNoTensor;  // (batch) uint32; for the dropout of adapters in training
};

/// The normalised hidden states, (batch, sequence_length, width). Their products with the rows of the matrix
/// llama_head() + ".weight" are the logits.
graph::ActivationId llama(graph::Graph& graph, const LlamaConfig& config, const LlamaInputs& inputs,
                          const LlamaOptions& options = {});

/// The layer whose weight, (vocabulary, width), is used in the last product: the embedding if the two are tied.
std::string llama_head(const LlamaConfig& config);
/// Initial weights are as in transformers: normal, with the standard deviation of the configuration.
graph::Initializer llama_initializer(const LlamaConfig& config);

}  // namespace lockstep::models
