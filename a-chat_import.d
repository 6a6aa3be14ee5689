chat_import.o: src/data/chat_import.cpp src/data/chat_import.h \
 src/data/import.h src/data/image_file.h src/data/image_set.h \
 src/data/dataset.h include/lockstep/dtype.h include/lockstep/shape.h \
 src/data/image_shape.h src/data/resize.h src/data/pixel_area.h \
 include/lockstep/resize_rows.h src/data/user_block.h src/base/hash.h \
 src/data/file.h src/base/file.h include/lockstep/error.h src/errors.def \
 include/lockstep/handle.h src/data/stored_bytes.h src/hdf5/user_block.h \
 src/hdf5/placement.h src/data/text_file.h \
 src/text/conversation_encoder.h src/text/chat_template.h \
 src/text/jinja.h src/text/tokenizer.h src/base/input_check.h \
 src/data/batches.h src/data/chat_source.h src/data/text_source.h \
 include/lockstep/philox.h
src/data/chat_import.h:
src/data/import.h:
src/data/image_file.h:
src/data/image_set.h:
src/data/dataset.h:
include/lockstep/dtype.h:
include/lockstep/shape.h:
src/data/image_shape.h:
src/data/resize.h:
src/data/pixel_area.h:
include/lockstep/resize_rows.h:
src/data/user_block.h:
src/base/hash.h:
src/data/file.h:
src/base/file.h:
include/lockstep/error.h:
src/errors.def:
include/lockstep/handle.h:
src/data/stored_bytes.h:
src/hdf5/user_block.h:
src/hdf5/placement.h:
src/data/text_file.h:
src/text/conversation_encoder.h:
src/text/chat_template.h:
src/text/jinja.h:
src/text/tokenizer.h:
src/base/input_check.h:
src/data/batches.h:
src/data/chat_source.h:
src/data/text_source.h:
include/lockstep/philox.h:
