// The files of karpathy's llama2.c in its first format, without a magic number: seven int32 (width, FFN width, layers,
// heads, key-value heads, vocabulary, positions), then fp32 tensors. Source: karpathy/llama2.c, export.py
// (legacy_export) and run.c (memory_map_weights).
//
// In llama2.c, the rotary embedding rotates the pairs of elements (2i, 2i + 1) of a head; in transformers, it rotates
// the pairs (i, i + head_size / 2). The rows of the query and key matrices are permuted accordingly, which changes no
// value and no result of attention.
#pragma once

#include <string>

#include "checkpoint/model_file.h"

namespace lockstep::checkpoint {

/// Tensors with transformers' names, and a config.json of LlamaForCausalLM. Values that are not in the file are those
/// of run.c: a norm epsilon of 1e-5 and a rope_theta of 10000. Throws model_file_damaged if the sizes in the file are
/// not possible or do not add up to its length, and model_feature for a later format of llama2.c.
ModelFile read_llama2c(const std::string& path);

}  // namespace lockstep::checkpoint
