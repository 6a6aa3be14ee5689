// also: Corpus.peft
// Fuzz target: adapters in the layout of PEFT. Input: adapter_config.json, 0, the JSON header of
// adapter_model.safetensors, 0, its data. The length of the header is inserted before it.
#include "checkpoint/peft.h"

#include "checkpoint/safetensors.h"
#include "test/fuzz/fuzz.h"

FUZZ_TARGET(peft) {
  using namespace lockstep;
  static const fuzz::ScratchFolder folder(".peft");
  std::string_view input(reinterpret_cast<const char*>(data), size);
  folder.write(checkpoint::kPeftConfig, fuzz::take_text(input));
  const std::string_view header = fuzz::take_text(input);
  folder.write("adapter_model.safetensors", fuzz::safetensors_of(header, input));
  fuzz::no_crash([&] {
    const checkpoint::ModelFile file = checkpoint::read_peft(folder.path());
    for (const checkpoint::NamedTensor& tensor : file.tensors)
      if (tensor.values().size() != tensor.n_elements()) std::abort();
    const checkpoint::StateJson& model = file.state.at("model");
    if (model.at("lora.rank").get<std::int64_t>() < 1 || !(model.at("lora.alpha").get<double>() > 0)) std::abort();
    file.state.dump();
  });
  return 0;
}
