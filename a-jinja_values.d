jinja_values.o: src/text/jinja_values.cpp include/lockstep/error.h \
 src/errors.def src/text/jinja.h src/text/utf8.h
include/lockstep/error.h:
src/errors.def:
src/text/jinja.h:
src/text/utf8.h:
