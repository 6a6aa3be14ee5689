conversation_encoder.o: src/text/conversation_encoder.cpp \
 src/text/conversation_encoder.h src/text/chat_template.h \
 src/text/jinja.h src/text/tokenizer.h include/lockstep/error.h \
 src/errors.def
src/text/conversation_encoder.h:
src/text/chat_template.h:
src/text/jinja.h:
src/text/tokenizer.h:
include/lockstep/error.h:
src/errors.def:
