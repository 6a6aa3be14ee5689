chat.o: src/commands/chat.cpp src/commands/chat.h src/commands/generate.h \
 src/commands/generate_model.h src/checkpoint/model_file.h \
 src/checkpoint/checkpoint.h include/lockstep/communicator.h \
 include/lockstep/backend.h include/lockstep/algorithms.h \
 include/lockstep/timing.h include/lockstep/dtype.h \
 include/lockstep/event.h include/lockstep/op.h \
 include/lockstep/op_table.h include/lockstep/error.h src/errors.def \
 include/lockstep/shape.h include/lockstep/element_range.h \
 src/checkpoint/safetensors.h src/base/file.h include/lockstep/handle.h \
 src/generate/reply_text.h include/lockstep/config.h \
 src/models/llama_config.h src/text/tokenizer.h src/generate/generator.h \
 src/generate/beam_search.h src/generate/language_model.h \
 src/generate/sampling.h src/base/printable.h src/base/signal_handler.h \
 src/base/standard_streams.h src/text/chat_template.h src/text/jinja.h \
 src/text/conversation_encoder.h src/train/text_model.h \
 src/generate/decoder.h src/graph/graph.h src/graph/execution_order.h \
 src/graph/memory_plan.h src/graph/node.h src/graph/parameters.h \
 include/lockstep/nf4.h include/lockstep/ops/parameter_segment.h \
 src/graph/pending.h include/lockstep/loss_scale.h \
 include/lockstep/ops/step_scalars.h include/lockstep/trace.h \
 src/models/llama.h src/train/parameter_arena.h \
 include/lockstep/ops/cast.h src/train/step_plan.h src/comm/reducer.h \
 src/comm/topology.h src/comm/ranks.h src/data/dataset.h \
 include/lockstep/ops/optimizer.h src/tasks/task.h src/data/loader.h \
 src/train/batch_shape.h src/data/sample_order.h src/train/shard.h \
 src/train/state_tensors.h src/train/step_state.h
src/commands/chat.h:
src/commands/generate.h:
src/commands/generate_model.h:
src/checkpoint/model_file.h:
src/checkpoint/checkpoint.h:
include/lockstep/communicator.h:
include/lockstep/backend.h:
include/lockstep/algorithms.h:
include/lockstep/timing.h:
include/lockstep/dtype.h:
include/lockstep/event.h:
include/lockstep/op.h:
include/lockstep/op_table.h:
include/lockstep/error.h:
src/errors.def:
include/lockstep/shape.h:
include/lockstep/element_range.h:
src/checkpoint/safetensors.h:
src/base/file.h:
include/lockstep/handle.h:
src/generate/reply_text.h:
include/lockstep/config.h:
src/models/llama_config.h:
src/text/tokenizer.h:
src/generate/generator.h:
src/generate/beam_search.h:
src/generate/language_model.h:
src/generate/sampling.h:
src/base/printable.h:
src/base/signal_handler.h:
src/base/standard_streams.h:
src/text/chat_template.h:
src/text/jinja.h:
src/text/conversation_encoder.h:
src/train/text_model.h:
src/generate/decoder.h:
src/graph/graph.h:
src/graph/execution_order.h:
src/graph/memory_plan.h:
src/graph/node.h:
src/graph/parameters.h:
include/lockstep/nf4.h:
include/lockstep/ops/parameter_segment.h:
src/graph/pending.h:
include/lockstep/loss_scale.h:
include/lockstep/ops/step_scalars.h:
include/lockstep/trace.h:
src/models/llama.h:
src/train/parameter_arena.h:
include/lockstep/ops/cast.h:
src/train/step_plan.h:
src/comm/reducer.h:
src/comm/topology.h:
src/comm/ranks.h:
src/data/dataset.h:
include/lockstep/ops/optimizer.h:
src/tasks/task.h:
src/data/loader.h:
src/train/batch_shape.h:
src/data/sample_order.h:
src/train/shard.h:
src/train/state_tensors.h:
src/train/step_state.h:
