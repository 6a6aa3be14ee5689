// The tensors of a decoder of the Llama family under transformers' names, which are those of the parameters in
// checkpoints: "model.layers.0.self_attn.q_proj.weight".
#pragma once

#include <string>

#include "models/llama_config.h"
#include "models/tensor_shapes.h"

namespace lockstep::models {

/// If embeddings are tied, there is no lm_head.weight.
TensorShapes llama_tensors(const LlamaConfig& config);

/// Whether the names of the tensors are those of a decoder.
bool has_llama_names(const TensorShapes& tensors);

/// Throws checkpoint_mismatch if the tensors of `source` are not those of the configuration: names the first that has
/// another shape, is missing or is not expected.
void check_llama_tensors(const LlamaConfig& config, const TensorShapes& tensors, const std::string& source);

}  // namespace lockstep::models
