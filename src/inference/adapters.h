// Adapters (model.lora) and their base model. The checkpoint of a run with adapters, or a PEFT directory, contains only
// the adapters. Finds the base, and combines both into a model.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/model_file.h"
#include "lockstep/config.h"

namespace lockstep::inference {

/// Whether the tensors of a file are adapters.
bool holds_adapters(const checkpoint::ModelFile& file);
/// The keys of model.lora that it records.
Config::Model::Lora lora_of(const checkpoint::ModelFile& file);

/// The path of the base weights beside which adapters are trained: model.from, else model.initialize_from. Empty: there
/// is none.
std::string base_of(const Config::Model& model);
/// Hash of names, shapes and values: equal for all files with the same weights, whatever their format.
std::string hash_of_base(const std::vector<checkpoint::NamedTensor>& tensors);
/// Throws model_mismatch if `state`, that of the file `adapters`, records a different base.
void require_same_base(const checkpoint::StateJson& state, const std::string& adapters, const std::string& hash,
                       const std::string& base);

/// A file of adapters together with their base: its state describes the model with adapters. A file without adapters is
/// returned as it is. `base`: a path; empty: what the file names. Throws cannot_open or model_mismatch.
checkpoint::ModelFile with_base(checkpoint::ModelFile file, const std::string& base);
/// The result of with_base() as a model without adapters: W + scale * B A, computed in double and rounded once.
checkpoint::ModelFile merged(checkpoint::ModelFile file);

}  // namespace lockstep::inference
