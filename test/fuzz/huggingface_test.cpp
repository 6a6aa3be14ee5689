// also: Corpus.huggingface
// Fuzz target: models of other programs. The first byte of an input says what follows:
//   0, 1: config.json, 0, the index, 0, the JSON header of a .safetensors file, 0, its data. They become a Hugging Face
//      directory; with 1, its tensors are in model.safetensors, so that the index is not read. The length of the
//      header is inserted before it.
//   otherwise: a llama2.c file.
// The model that such a file describes is then checked against its tensors.
#include "checkpoint/huggingface.h"
#include "checkpoint/model_file.h"
#include "models/llama_tensors.h"
#include "test/fuzz/fuzz.h"

namespace {

using namespace lockstep;

void check(const checkpoint::ModelFile& file) {
  models::TensorShapes shapes;
  for (const checkpoint::NamedTensor& tensor : file.tensors) {
    if (tensor.values().size() != tensor.n_elements()) std::abort();
    shapes[tensor.name] = tensor.shape;
  }
  const models::LlamaConfig config = models::parse_llama_config(file.config, "config.json");
  const std::string written = models::to_json(config).dump();
  if (!(models::parse_llama_config(written, "config.json") == config)) std::abort();
  models::check_llama_tensors(config, shapes, file.path);
}

}  // namespace

FUZZ_TARGET(huggingface) {
  static const fuzz::ScratchFolder model(".model");
  static const fuzz::ScratchFile file(".bin");
  std::string_view input(reinterpret_cast<const char*>(data), size);
  const char kind = input.empty() ? '\0' : input.front();
  input.remove_prefix(std::min<std::size_t>(1, input.size()));
  if (kind != '\0' && kind != '\1') {
    file.write(input);
    fuzz::no_crash([&] { check(checkpoint::read_llama2c(file.path())); });
    return 0;
  }
  model.write("config.json", fuzz::take_text(input));
  model.write("model.safetensors.index.json", fuzz::take_text(input));
  const std::string_view header = fuzz::take_text(input);
  const std::string weights = fuzz::safetensors_of(header, input);
  model.remove(kind == '\0' ? "model.safetensors" : "model-1.safetensors");
  model.write(kind == '\0' ? "model-1.safetensors" : "model.safetensors", weights);
  fuzz::no_crash([&] { check(checkpoint::read_model_file(model.path())); });
  return 0;
}
