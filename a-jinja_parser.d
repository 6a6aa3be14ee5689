jinja_parser.o: src/text/jinja_parser.cpp include/lockstep/error.h \
 src/errors.def src/text/jinja_lexer.h src/text/jinja.h
include/lockstep/error.h:
src/errors.def:
src/text/jinja_lexer.h:
src/text/jinja.h:
