#include "train/text_model.h"

#include "train/inference.h"

namespace lockstep::train {

TextModel::TextModel(const models::LlamaConfig& model, const generate::DecoderSizes& sizes, Precision precision,
                     const checkpoint::ModelFile& file, Backend& backend)
    : decoder_(model, sizes, storage_type(precision), precision == Precision::tf32, backend, table_) {
  fix_order_for_inference(table_);
  const DType dtype = storage_type(precision);
  const std::unique_ptr<Stream> stream = backend.make_stream();
  parameters_ = std::make_unique<ParameterArena>(table_, dtype, backend);
  load_parameters(file, table_, *parameters_, backend, *stream);
  parameters_->refresh(*stream);
  stream->synchronize();
  decoder_.bind({.parameters = parameters_->masters(),
                 .compute_weights = parameters_->compute_weights(),
                 .compute_dtype = parameters_->compute_dtype()});
}

}  // namespace lockstep::train
