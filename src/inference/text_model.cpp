#include "inference/text_model.h"

#include "inference/inference.h"

namespace lockstep::inference {
namespace {

/// The weights never change, so 16-bit weights need no fp32 master copies.
graph::ParameterTable table_of_base() {
  graph::ParameterTable table;
  table.set_base([](const std::string&) { return true; });
  return table;
}

}  // namespace

TextModel::TextModel(const models::LlamaConfig& model, const generate::DecoderSizes& sizes, Precision precision,
                     const checkpoint::ModelFile& file, Backend& backend)
    : table_(table_of_base()),
      decoder_(model, sizes, storage_type(precision), precision == Precision::tf32, backend, table_) {
  const DType dtype = storage_type(precision);
  table_.fix_order(
      {}, dtype == DType::fp32 ? std::function<bool(graph::ParameterId)>()
                               : [this](graph::ParameterId id) { return decoder_.is_read_in_fp32(id); });
  const std::unique_ptr<Stream> stream = backend.make_stream();
  parameters_ = std::make_unique<graph::ParameterArena>(table_, dtype, backend);
  load_parameters(file, table_, *parameters_, backend, *stream);
  parameters_->refresh(*stream);
  stream->synchronize();
  decoder_.allocate(parameters_->bindings());
}

}  // namespace lockstep::inference
