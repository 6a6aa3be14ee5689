conversation_encoder_test.o: test/text/conversation_encoder_test.cpp \
 src/text/conversation_encoder.h src/text/chat_template.h \
 src/text/jinja.h src/text/tokenizer.h include/lockstep/error.h \
 src/errors.def test/text/golden.h src/base/file.h \
 include/lockstep/handle.h include/lockstep/philox.h
src/text/conversation_encoder.h:
src/text/chat_template.h:
src/text/jinja.h:
src/text/tokenizer.h:
include/lockstep/error.h:
src/errors.def:
test/text/golden.h:
src/base/file.h:
include/lockstep/handle.h:
include/lockstep/philox.h:
