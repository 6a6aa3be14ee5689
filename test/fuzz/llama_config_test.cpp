// also: Corpus.llama_config
// Fuzz target: the config.json of a language model. If it is accepted, it must describe the same model when it is
// written and read again, and the model's tensors must have positive sizes.
#include "models/llama_config.h"

#include <nlohmann/json.hpp>

#include "models/llama_tensors.h"
#include "test/fuzz/fuzz.h"

FUZZ_TARGET(llama_config) {
  using namespace lockstep;
  const std::string text(reinterpret_cast<const char*>(data), size);
  fuzz::no_crash([&] {
    const models::LlamaConfig config = models::parse_llama_config(text, "config.json");
    if (!(models::parse_llama_config(models::to_json(config).dump(), "config.json") == config)) std::abort();
    if (config.n_parameters() <= 0) std::abort();
    if (config.layers > 64) return;
    for (const auto& [name, shape] : models::llama_tensors(config))
      if (shape.n_elements() <= 0) std::abort();
  });
  return 0;
}
