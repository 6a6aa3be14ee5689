jinja.o: src/text/jinja.cpp src/text/jinja.h src/base/stop_signal.h \
 include/lockstep/error.h src/errors.def
src/text/jinja.h:
src/base/stop_signal.h:
include/lockstep/error.h:
src/errors.def:
