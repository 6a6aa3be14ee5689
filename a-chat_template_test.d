chat_template_test.o: test/text/chat_template_test.cpp \
 src/text/chat_template.h src/text/jinja.h include/lockstep/error.h \
 src/errors.def
src/text/chat_template.h:
src/text/jinja.h:
include/lockstep/error.h:
src/errors.def:
