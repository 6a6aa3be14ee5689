task.o: src/tasks/language_modelling/task.cpp \
 src/tasks/language_modelling/task.h src/data/text_set.h \
 src/data/dataset.h include/lockstep/dtype.h include/lockstep/shape.h \
 src/tasks/task.h src/data/loader.h include/lockstep/backend.h \
 include/lockstep/algorithms.h include/lockstep/timing.h \
 include/lockstep/event.h include/lockstep/op.h \
 include/lockstep/op_table.h include/lockstep/error.h src/errors.def \
 src/graph/graph.h src/graph/execution_order.h src/graph/memory_plan.h \
 src/graph/node.h src/graph/parameters.h include/lockstep/nf4.h \
 include/lockstep/ops/parameter_segment.h \
 include/lockstep/element_range.h src/graph/pending.h \
 include/lockstep/communicator.h include/lockstep/loss_scale.h \
 include/lockstep/ops/step_scalars.h include/lockstep/trace.h \
 include/lockstep/config.h src/base/printable.h src/data/answer_end.h \
 src/data/conversations.h src/data/text_range.h src/data/text_file.h \
 src/data/file.h src/base/file.h include/lockstep/handle.h \
 src/data/stored_bytes.h src/text/tokenizer.h src/data/image_set.h \
 src/data/image_shape.h src/data/resize.h src/data/pixel_area.h \
 include/lockstep/resize_rows.h src/data/numbered_set.h \
 src/layers/layers.h include/lockstep/ops/activation_function.h \
 include/lockstep/ops/image_input.h include/lockstep/image_region.h \
 include/lockstep/ops/rotary.h include/lockstep/log.h src/models/llama.h \
 src/models/llama_config.h src/tasks/language_modelling/model_source.h \
 src/tasks/language_modelling/text_sampler.h src/generate/decoder.h \
 src/generate/language_model.h src/generate/generator.h \
 src/generate/beam_search.h src/generate/reply_text.h \
 src/generate/sampling.h src/text/chat_template.h src/text/jinja.h \
 src/text/known_tokens.h
src/tasks/language_modelling/task.h:
src/data/text_set.h:
src/data/dataset.h:
include/lockstep/dtype.h:
include/lockstep/shape.h:
src/tasks/task.h:
src/data/loader.h:
include/lockstep/backend.h:
include/lockstep/algorithms.h:
include/lockstep/timing.h:
include/lockstep/event.h:
include/lockstep/op.h:
include/lockstep/op_table.h:
include/lockstep/error.h:
src/errors.def:
src/graph/graph.h:
src/graph/execution_order.h:
src/graph/memory_plan.h:
src/graph/node.h:
src/graph/parameters.h:
include/lockstep/nf4.h:
include/lockstep/ops/parameter_segment.h:
include/lockstep/element_range.h:
src/graph/pending.h:
include/lockstep/communicator.h:
include/lockstep/loss_scale.h:
include/lockstep/ops/step_scalars.h:
include/lockstep/trace.h:
include/lockstep/config.h:
src/base/printable.h:
src/data/answer_end.h:
src/data/conversations.h:
src/data/text_range.h:
src/data/text_file.h:
src/data/file.h:
src/base/file.h:
include/lockstep/handle.h:
src/data/stored_bytes.h:
src/text/tokenizer.h:
src/data/image_set.h:
src/data/image_shape.h:
src/data/resize.h:
src/data/pixel_area.h:
include/lockstep/resize_rows.h:
src/data/numbered_set.h:
src/layers/layers.h:
include/lockstep/ops/activation_function.h:
include/lockstep/ops/image_input.h:
include/lockstep/image_region.h:
include/lockstep/ops/rotary.h:
include/lockstep/log.h:
src/models/llama.h:
src/models/llama_config.h:
src/tasks/language_modelling/model_source.h:
src/tasks/language_modelling/text_sampler.h:
src/generate/decoder.h:
src/generate/language_model.h:
src/generate/generator.h:
src/generate/beam_search.h:
src/generate/reply_text.h:
src/generate/sampling.h:
src/text/chat_template.h:
src/text/jinja.h:
src/text/known_tokens.h:
