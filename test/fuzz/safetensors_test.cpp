// also: Corpus.safetensors
// Fuzz target: .safetensors files. Input: either 0, a JSON header, 0, and the data, where the length of the header is
// inserted before it, since a fuzzer does not find lengths; or any other first byte and then the unchanged file.
#include "checkpoint/safetensors.h"

#include "checkpoint/checkpoint.h"
#include "checkpoint/tensor_names.h"
#include "models/resnet_table.h"
#include "test/fuzz/fuzz.h"

namespace {

std::string file_of(std::string_view input) {
  if (input.empty() || input.front() != '\0') return std::string(input.substr(std::min<std::size_t>(1, input.size())));
  input.remove_prefix(1);
  const std::string_view header = lockstep::fuzz::take_text(input);
  return lockstep::fuzz::safetensors_of(header, input);
}

}  // namespace

FUZZ_TARGET(safetensors) {
  using namespace lockstep;
  static const fuzz::ScratchFile file(".safetensors");
  file.write(file_of({reinterpret_cast<const char*>(data), size}));
  fuzz::no_crash([&] {
    std::vector<checkpoint::NamedTensor> tensors = checkpoint::read_safetensors(file.path());
    models::TensorShapes shapes;
    for (const checkpoint::NamedTensor& tensor : tensors) shapes[tensor.name] = tensor.shape;
    fuzz::no_crash([&] { models::infer_resnet(shapes, file.path()); });
    for (const checkpoint::NamedTensor& tensor : tensors)
      if (tensor.values().size() != tensor.n_elements()) std::abort();
    checkpoint::from_torchvision(std::move(tensors));
  });
  return 0;
}
