// The files that belong to a model, and the check that a command does not replace what it reads.
#pragma once

#include <array>
#include <span>
#include <string>

namespace lockstep {

/// The names of the files that describe a tokenizer in the directory of a model.
inline constexpr std::array kTokenizerFiles{"tokenizer.json",
                                            "tokenizer_config.json",
                                            "special_tokens_map.json",
                                            "added_tokens.json",
                                            "vocab.json",
                                            "merges.txt",
                                            "tokenizer.model",
                                            "tokenizer.bin",
                                            "chat_template.jinja",
                                            "chat_template.json",
                                            "generation_config.json"};

/// Throws usage if writing `output` would replace one of the files `inputs`: the same file by device and inode,
/// whatever links and names lead to it. An input that is a model or run directory stands for the files that belong to
/// it. An output that is a directory stands for everything in it. Inputs that are not files ("synthetic") are ignored,
/// and so are pipes and devices.
void require_no_input(const std::string& output, std::span<const std::string> inputs);

}  // namespace lockstep
