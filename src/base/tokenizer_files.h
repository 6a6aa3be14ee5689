// The names of the files that describe a tokenizer in the directory of a model.
#pragma once

#include <array>

namespace lockstep {

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

}  // namespace lockstep
