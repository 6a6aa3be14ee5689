// Models of which a decoder is only a part, such as Gemma3ForConditionalGeneration: config.json describes the decoder
// in text_config, its tensors are called "language_model.model.norm.weight" and so on, and others belong to a vision
// tower. Lockstep trains the decoder, whose tensors have the usual names ("model.norm.weight") in ModelFile, in
// checkpoints and everywhere else. The vision tower is carried along: it is only copied.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/model_file.h"

namespace lockstep::checkpoint {

/// `config`: the text of a config.json; it may be empty.
bool is_composite(const std::string& config);
/// The usual name of a decoder's tensor; other names do not change.
std::string decoder_name(const std::string& name);
/// If `config` describes such a model, renames the decoder's tensors, and moves those of the vision tower to
/// file.carried.
void separate_decoder(ModelFile& file, const std::string& config);
/// The decoder's tensors, followed by what is carried.
std::vector<NamedTensor> all_tensors(const ModelFile& file);
/// The names that the decoder's tensors have in a directory of such a model. The names of others do not change.
void name_as_part(std::vector<NamedTensor>& tensors);

}  // namespace lockstep::checkpoint
