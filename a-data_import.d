data_import.o: src/commands/data_import.cpp src/base/file.h \
 include/lockstep/error.h src/errors.def include/lockstep/handle.h \
 src/base/stop_signal.h src/commands/commands.h src/commands/data_words.h \
 src/data/image_set.h src/data/dataset.h include/lockstep/dtype.h \
 include/lockstep/shape.h src/data/image_shape.h src/data/resize.h \
 src/data/pixel_area.h include/lockstep/resize_rows.h \
 src/commands/report.h src/base/printable.h include/lockstep/config.h \
 src/commands/stoppable.h src/data/chat_import.h src/data/import.h \
 src/data/image_file.h src/data/user_block.h src/base/hash.h \
 src/data/file.h src/data/stored_bytes.h src/hdf5/user_block.h \
 src/hdf5/placement.h src/data/text_file.h \
 src/text/conversation_encoder.h src/text/chat_template.h \
 src/text/jinja.h src/text/tokenizer.h src/data/cifar10.h \
 src/data/image_folder.h src/data/text_import.h include/lockstep/log.h \
 include/lockstep/philox.h src/train/metrics.h src/tasks/task.h \
 src/data/loader.h include/lockstep/backend.h \
 include/lockstep/algorithms.h include/lockstep/timing.h \
 include/lockstep/event.h include/lockstep/op.h \
 include/lockstep/op_table.h src/graph/graph.h \
 src/graph/execution_order.h src/graph/memory_plan.h src/graph/node.h \
 src/graph/parameters.h include/lockstep/nf4.h \
 include/lockstep/ops/parameter_segment.h \
 include/lockstep/element_range.h src/graph/pending.h \
 include/lockstep/communicator.h include/lockstep/loss_scale.h \
 include/lockstep/ops/step_scalars.h include/lockstep/trace.h \
 src/train/data_watch.h src/base/clock.h
src/base/file.h:
include/lockstep/error.h:
src/errors.def:
include/lockstep/handle.h:
src/base/stop_signal.h:
src/commands/commands.h:
src/commands/data_words.h:
src/data/image_set.h:
src/data/dataset.h:
include/lockstep/dtype.h:
include/lockstep/shape.h:
src/data/image_shape.h:
src/data/resize.h:
src/data/pixel_area.h:
include/lockstep/resize_rows.h:
src/commands/report.h:
src/base/printable.h:
include/lockstep/config.h:
src/commands/stoppable.h:
src/data/chat_import.h:
src/data/import.h:
src/data/image_file.h:
src/data/user_block.h:
src/base/hash.h:
src/data/file.h:
src/data/stored_bytes.h:
src/hdf5/user_block.h:
src/hdf5/placement.h:
src/data/text_file.h:
src/text/conversation_encoder.h:
src/text/chat_template.h:
src/text/jinja.h:
src/text/tokenizer.h:
src/data/cifar10.h:
src/data/image_folder.h:
src/data/text_import.h:
include/lockstep/log.h:
include/lockstep/philox.h:
src/train/metrics.h:
src/tasks/task.h:
src/data/loader.h:
include/lockstep/backend.h:
include/lockstep/algorithms.h:
include/lockstep/timing.h:
include/lockstep/event.h:
include/lockstep/op.h:
include/lockstep/op_table.h:
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
src/train/data_watch.h:
src/base/clock.h:
