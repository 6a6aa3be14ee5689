// Adapters (model.lora) and their base model. The checkpoint of a run with adapters, or a PEFT directory, contains only
// the adapters. Finds the base, and combines both into a model.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "checkpoint/model_file.h"
#include "lockstep/config.h"
#include "models/llama_config.h"

namespace lockstep::inference {

/// Whether the tensors of a file are adapters.
bool holds_adapters(const checkpoint::ModelFile& file);
/// The keys of model.lora that it records.
Config::Model::Lora lora_of(const checkpoint::ModelFile& file);

/// The path of the base weights beside which adapters are trained: model.from, else model.initialize_from. Empty: there
/// is none.
std::string base_of(const Config::Model& model);
/// The vision tower of a composite model (checkpoint/composite.h): that of `file`, or else of the first of several
/// models that has one. A place is a path or empty, and that of a checkpoint also stands for the RUN/model of its run.
/// If there is none, `model` becomes that of the decoder alone, and the log says so.
std::vector<checkpoint::NamedTensor> carried_tensors(models::LlamaConfig& model, const checkpoint::ModelFile& file,
                                                     const std::vector<std::string>& places);
/// Computes the hash of the names, shapes and values of tensors while they are read: it is equal for all files with the
/// same weights, whatever their format and order. Calls `done` once, when each tensor has been read from its first
/// element to its last.
void hash_while_read(std::vector<checkpoint::NamedTensor>& tensors, std::function<void(const std::string& hash)> done);
/// Reads all tensors to compute that hash.
std::string hash_of_base(std::vector<checkpoint::NamedTensor> tensors);
/// Throws model_mismatch if `state`, that of the file `adapters`, records a different base.
void require_same_base(const checkpoint::StateJson& state, const std::string& adapters, const std::string& hash,
                       const std::string& base);

/// A file of adapters together with their base: its state describes the model with adapters. A file without adapters is
/// returned as it is. `base`: a path; empty: what the file names. Throws cannot_open or model_mismatch. If the file
/// records the hash of another base, reading the last tensor of the base throws model_mismatch.
checkpoint::ModelFile with_base(checkpoint::ModelFile file, const std::string& base);
/// The result of with_base() as a model without adapters: W + scale * B A, computed in double and rounded once
/// when the tensor is read.
checkpoint::ModelFile merged(checkpoint::ModelFile file);

}  // namespace lockstep::inference
