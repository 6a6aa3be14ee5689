// Models of which a decoder is only a part, such as Gemma3ForConditionalGeneration: config.json describes the decoder
// in text_config, its tensors are called "language_model.model.norm.weight" and so on, and all others belong to a
// vision tower. Lockstep trains the decoder, whose tensors have the usual names ("model.norm.weight") in ModelFile, in
// checkpoints and everywhere else. The others are carried along: they are only copied.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/model_file.h"

namespace lockstep::checkpoint {

/// `config`: the text of a config.json; it may be empty.
bool is_composite(const std::string& config);
/// The usual name of a decoder's tensor. Empty if it belongs to another part of the model.
std::optional<std::string> decoder_name(const std::string& name);
/// If `config` describes such a model, renames the decoder's tensors and moves all others to file.carried.
void separate_decoder(ModelFile& file, const std::string& config);
/// The names that the decoder's tensors have in a directory of such a model. The names of others do not change.
void name_as_part(std::vector<NamedTensor>& tensors);

}  // namespace lockstep::checkpoint
