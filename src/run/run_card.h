// What a model card says about a training run or a checkpoint: from its configuration, from RUN/metrics.jsonl and
// from the data sets. Whatever is missing or damaged is left out of the card. It does not depend on the number of
// ranks, except for the lines about ranks, time and rounding.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/config.h"
#include "models/llama_config.h"
#include "run/model_card.h"
#include "run/slices.h"

namespace lockstep::run {

struct CardSource {
  const Config& config;  // license, paths of data and of the base model, epochs; of an imported model, the defaults
  const models::LlamaConfig& model;
  const std::map<std::string, std::string>& files;  // of the directory: the tokenizer
  const std::vector<ModelCard::DataSet>& data;      // describe_data()
  std::string name;
  std::string run = {};            // its directory; empty: none is known
  std::string configuration = {};  // the keys that affect what is learned (config::learning_yaml)
  std::int32_t answer_end = -1;    // the token that ends answers; -1: none
  std::int64_t step = 0, steps_per_epoch = 0;
  bool is_trained = true;        // false: a conversion
  std::string merged_base = {};  // of adapters that were merged into their base: its path
  bool averages = false;         // the weights are moving averages
  Slices slices = {};
  std::string dtype = {};     // of the tensors
  std::string versions = {};  // as versions_json()
};
ModelCard make_card(const CardSource& source);

/// The data sets of training and validation, according to their files. `configuration`: as in CardSource.
std::vector<ModelCard::DataSet> describe_data(const Config& config, const std::string& configuration = {});

/// The name on the Hub of the model whose directory or file this is, such as "Qwen/Qwen2-0.5B", from its config.json or
/// from the folders of the Hub's cache. Otherwise its base name, which contains no slash.
std::string name_of_model(const std::string& path);

}  // namespace lockstep::run
