chat_template.o: src/text/chat_template.cpp src/text/chat_template.h \
 src/text/jinja.h src/base/file.h include/lockstep/error.h src/errors.def \
 include/lockstep/handle.h src/base/json.h
src/text/chat_template.h:
src/text/jinja.h:
src/base/file.h:
include/lockstep/error.h:
src/errors.def:
include/lockstep/handle.h:
src/base/json.h:
